#include "tier/record_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "base/random.h"

namespace kvasir {
namespace {

RecordName Name(uint32_t number) {
  RecordName name;
  Random random(number);
  for (auto& byte : name.key) byte = static_cast<uint8_t>(random.Bits());
  return name;
}

Arena ArenaFor(uint32_t max_records) {
  Arena count;
  RecordIndex planned(count, max_records);
  Arena arena = *Arena::Create(count.used());
  return arena;
}

TEST(RecordIndex, TheColdestWithoutDependentsLeavesFirst) {
  Arena arena = ArenaFor(8);
  RecordIndex index(arena, 8);
  EXPECT_EQ(arena.used(), arena.size());
  const EntryId root = *index.Add(Name(1), OwnerId{}, std::nullopt, 1);
  const EntryId leaf = *index.Add(Name(2), OwnerId{}, Name(1), 5);
  const EntryId other = *index.Add(Name(3), OwnerId{}, std::nullopt, 3);
  EXPECT_FALSE(index.Coldest());  // nothing is stored
  index.SetStored(root, {0, 0});
  index.SetStored(leaf, {0, 1});
  index.SetStored(other, {0, 2});
  EXPECT_EQ(index.Coldest(), other);
  index.Touch(other, 9);
  EXPECT_EQ(index.Coldest(), leaf);
  index.AddReader(leaf);
  EXPECT_EQ(index.Coldest(), other);
  index.EndReader(leaf);
  index.Remove(leaf);
  EXPECT_EQ(index.Coldest(), root);
  EXPECT_TRUE(index.CheckInvariants());
}

TEST(RecordIndex, AMissingRecordIsFoundAgainByThoseThatDependOnIt) {
  Arena arena = ArenaFor(8);
  RecordIndex index(arena, 8);
  const EntryId child = *index.Add(Name(2), OwnerId{}, Name(1), 1);
  index.SetStored(child, {0, 0});
  EXPECT_FALSE(index.Find(Name(1)));
  EXPECT_FALSE(index.IsAnchored(child));
  const EntryId parent = *index.Add(Name(1), OwnerId{}, std::nullopt, 2);
  index.SetStored(parent, {0, 1});
  EXPECT_TRUE(index.IsAnchored(child));
  EXPECT_EQ(index.Coldest(), child);
  index.Remove(parent);
  EXPECT_FALSE(index.Find(Name(1)));
  EXPECT_TRUE(index.CheckInvariants());
  index.Remove(child);
  EXPECT_TRUE(index.CheckInvariants());
  EXPECT_FALSE(index.Find(Name(2)));
}

TEST(RecordIndex, AgreesWithASimpleTwin) {
  constexpr uint32_t kRecords = 40;
  Arena arena = ArenaFor(kRecords);
  RecordIndex index(arena, kRecords);
  struct Twin {
    uint64_t order;
    std::optional<uint32_t> after;
  };
  std::map<uint32_t, Twin> twin;
  Random random(7);
  uint64_t order = 0;
  for (int step = 0; step < 20000; ++step) {
    const auto number = static_cast<uint32_t>(random.Below(80));
    const auto found = index.Find(Name(number));
    ASSERT_EQ(found.has_value(), twin.contains(number));
    switch (random.Below(4)) {
      case 0:
      case 1: {
        if (found) break;
        std::optional<uint32_t> after;
        if (random.Below(2) == 0 && !twin.empty()) after = number / 2;
        if (after == number) after.reset();
        const auto added = index.Add(Name(number), OwnerId{},
                                     after ? std::optional(Name(*after)) : std::nullopt, ++order);
        if (!added) {
          ASSERT_TRUE(twin.size() >= kRecords || index.is_full());
          break;
        }
        index.SetStored(*added, {0, number});
        twin[number] = {order, after};
        break;
      }
      case 2:
        if (found) {
          index.Touch(*found, ++order);
          twin[number].order = order;
        }
        break;
      case 3:
        if (found) {
          index.Remove(*found);
          twin.erase(number);
        }
        break;
    }
    ASSERT_TRUE(index.CheckInvariants()) << "step " << step;
    std::optional<uint32_t> coldest;
    for (const auto& [n, one] : twin) {
      const bool needed =
          std::ranges::any_of(twin, [&](const auto& other) { return other.second.after == n; });
      if (!needed && (!coldest || one.order < twin[*coldest].order)) coldest = n;
    }
    ASSERT_EQ(index.Coldest().has_value(), coldest.has_value());
    if (coldest) {
      ASSERT_EQ(index.at(*index.Coldest()).name, Name(*coldest));
    }
  }
}

}  // namespace
}  // namespace kvasir
