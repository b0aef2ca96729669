#include "remote/remote_names.h"

#include <gtest/gtest.h>

#include <cstring>
#include <utility>
#include <vector>

#include "base/random.h"

namespace kvasir {
namespace {

constexpr OwnerId kAnOwner{1}, kAnotherOwner{2};
using NameEntry = RemoteNames::Entry;

RecordName NameOfNumber(uint64_t number) {
  RecordName name;
  std::memcpy(name.key.data(), &number, sizeof(number));
  return name;
}

// A table in memory of the planned size.
struct NameTable {
  static Arena Planned(uint32_t num_names) {
    Arena counted;
    const RemoteNames table(counted, num_names);
    return std::move(*Arena::Create(counted.used()));
  }
  explicit NameTable(uint32_t num_names) : arena(Planned(num_names)), names(arena, num_names) {}
  // Puts a name that was seen then.
  NameEntry* Put(uint64_t number, uint32_t seen_s, OwnerId owner = kAnOwner) {
    NameEntry* const entry = names.Put(NameOfNumber(number), owner);
    if (entry != nullptr) entry->seen_s = seen_s;
    return entry;
  }
  bool Has(uint64_t number) const { return names.Find(NameOfNumber(number)) != nullptr; }

  Arena arena;
  RemoteNames names;
};

TEST(RemoteNames, ANewNameTakesThePlaceOfTheOneSeenLongestAgo) {
  NameTable table(8);  // one bucket
  for (uint32_t i = 0; i < 8; ++i) ASSERT_TRUE(table.Put(i, /*seen_s=*/100 + (i + 5) % 8));
  for (uint32_t i = 0; i < 8; ++i) EXPECT_TRUE(table.Has(i)) << i;
  table.names.Find(NameOfNumber(3))->is_writing = true;  // the oldest: 100
  ASSERT_TRUE(table.Put(8, 200));
  EXPECT_TRUE(table.Has(3)) << "it is being written";
  EXPECT_FALSE(table.Has(4)) << "101";
  RemoteNames::Remove(table.names.Find(NameOfNumber(7)));
  ASSERT_TRUE(table.Put(9, 0));
  for (const uint64_t number : {0, 1, 2, 3, 5, 6, 8, 9}) EXPECT_TRUE(table.Has(number)) << number;
}

TEST(RemoteNames, ThereIsNoPlaceWhereAllAreBeingWritten) {
  NameTable table(8);
  for (uint32_t i = 0; i < 8; ++i) table.Put(i, 100)->is_writing = true;
  EXPECT_EQ(table.Put(8, 200), nullptr);
  EXPECT_TRUE(table.Put(3, 100)) << "it has its own place";
  EXPECT_TRUE(table.Has(3));
}

TEST(RemoteNames, ANameThatIsKnownKeepsWhatIsKnownOfIt) {
  NameTable table(16);
  table.Put(1, 100)->refreshed_s = 70;
  NameEntry* const again = table.names.Put(NameOfNumber(1), kAnotherOwner);
  EXPECT_EQ(again->seen_s, 100u);
  EXPECT_EQ(again->refreshed_s, 70u);
  EXPECT_EQ(again->owner, kAnotherOwner);
  RecordName part = NameOfNumber(1);
  part.part = 1;
  EXPECT_EQ(table.names.Find(part), nullptr) << "another part of the block";
  part = NameOfNumber(1);
  part.layer_group = 1;
  EXPECT_EQ(table.names.Find(part), nullptr);
}

TEST(RemoteNames, AnOwnersNamesAreDoubtedOrLeaveAlone) {
  NameTable table(64);
  for (uint32_t i = 0; i < 16; ++i) table.Put(i, 100, i % 2 == 0 ? kAnOwner : kAnotherOwner);
  table.names.DoubtOwner(kAnOwner);
  for (uint32_t i = 0; i < 16; ++i) {
    EXPECT_EQ(table.names.Find(NameOfNumber(i))->seen_s, i % 2 == 0 ? 0u : 100u) << i;
  }
  table.names.RemoveOwner(kAnOwner);
  for (uint32_t i = 0; i < 16; ++i) EXPECT_EQ(table.Has(i), i % 2 == 1) << i;
}

TEST(RemoteNames, FindNothingElseInRandomHistories) {
  Random random(3);
  NameTable table(64);
  std::vector<uint32_t> seen_s(300);  // when each number was put last; 0: never
  for (uint32_t now_s = 1; now_s < 2000; ++now_s) {
    const uint64_t put = random.Below(300);
    ASSERT_TRUE(table.Put(put, now_s));
    seen_s[put] = now_s;
    uint32_t found = 0;
    for (uint64_t i = 0; i < 300; ++i) {
      const NameEntry* const entry = table.names.Find(NameOfNumber(i));
      if (entry == nullptr) continue;
      ++found;
      ASSERT_EQ(entry->name, NameOfNumber(i));
      ASSERT_EQ(entry->seen_s, seen_s[i]);
    }
    ASSERT_TRUE(table.Has(put));
    ASSERT_LE(found, 64u);
    if (now_s > 1000) {
      ASSERT_EQ(found, 64u) << "nothing leaves before a bucket is full";
    }
  }
}

TEST(RemoteNames, SayWhatNeedsNotBeAskedOrWritten) {
  constexpr uint32_t kSeen = 1000;
  NameEntry entry{.is_taken = true, .seen_s = kSeen, .refreshed_s = kSeen};
  EXPECT_TRUE(entry.IsFresh(kSeen + RemoteNames::kFreshS - 1));
  EXPECT_FALSE(entry.IsFresh(kSeen + RemoteNames::kFreshS));
  EXPECT_TRUE(entry.IsKnown(kSeen + RemoteNames::kKnownS - 1));
  EXPECT_FALSE(entry.IsKnown(kSeen + RemoteNames::kKnownS)) << "its lifetime must begin anew";
  EXPECT_FALSE(entry.IsDue(kSeen + RemoteNames::kKnownS - 1));
  EXPECT_TRUE(entry.IsDue(kSeen + RemoteNames::kKnownS));
  entry.refreshed_s = 0;  // another machine wrote it
  EXPECT_TRUE(entry.IsDue(kSeen));
  EXPECT_TRUE(entry.IsKnown(kSeen)) << "it was just seen";
  EXPECT_FALSE(entry.IsKnown(kSeen + RemoteNames::kFreshS));
  entry.seen_s = 0;
  EXPECT_FALSE(entry.IsFresh(1));
  EXPECT_FALSE(entry.IsKnown(1));
  entry.is_writing = true;
  EXPECT_TRUE(entry.IsKnown(1));
  entry.seen_s = kSeen;
  EXPECT_FALSE(entry.IsFresh(kSeen)) << "it is not there yet";
}

}  // namespace
}  // namespace kvasir
