// What no key opens stays, whatever its neighbours forget or erase.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/hex.h"
#include "tier/disk_tier.h"
#include "tier/erase_files.h"
#include "tier/set_aside.h"
#include "tier/tier_driver_for_test.h"
#include "tier/tier_folder_for_test.h"
#include "tier/unread_files.h"

namespace kvasir {
namespace {

namespace fs = std::filesystem;
using Read = TierDriver::Read;

class DiskTierUnread : public TierFolderTest {
 protected:
  static constexpr uint32_t kEach = 12;  // records of either owner, in turn: in the same segments
  // Chains of owner 0, of owner 1, and new ones.
  static constexpr uint32_t kOurs = 81, kTheirs = 82, kMore = 83;

  std::unique_ptr<DiskTier> OpenTier() {
    auto tier = DiskTier::Open(options_, storage_);
    EXPECT_TRUE(tier) << tier.error().message;
    return tier ? std::move(*tier) : nullptr;
  }
  fs::path KeyOf(uint32_t owner) const {
    return fs::path(options_.folder) / ToHex(StoreIdOf(options_.secret, options_.identity)) /
           "keys" / KeyFileName(options_.secret, TestRecord::Owner(owner));
  }
  // Begins anew.
  void Fill() {
    fs::remove_all(options_.folder);
    fs::remove(parent_ / "kept");
    const auto tier = OpenTier();
    TierDriver driver(*tier);
    for (uint32_t i = 0; i < kEach; ++i) {
      ASSERT_TRUE(driver.Write(Record(kOurs, i, 0)));
      ASSERT_TRUE(driver.Write(Record(kTheirs, i, 1)));
    }
    ASSERT_TRUE(driver.Flush());
    kept_ = parent_ / "kept";
    fs::copy_file(KeyOf(0), kept_);
  }
  // Puts another secret's key there.
  void MakeForeign() {
    const Secret other{9, 9, 9};
    const auto file =
        SealKeyFile(other, StoreIdOf(options_.secret, options_.identity),
                    OwnerKey{.owner = TestRecord::Owner(0), .key = {7}, .namespace_id = {7}}, {});
    ASSERT_TRUE(file);
    std::ofstream(KeyOf(0), std::ios::binary)
        .write(reinterpret_cast<const char*>(file->data()),
               static_cast<std::streamsize>(file->size()));
  }
  void MakeRight() { fs::copy_file(kept_, KeyOf(0), fs::copy_options::overwrite_existing); }
  // Counts how many of so many records open.
  template <typename RecordAt>
  uint32_t NumRead(uint32_t count, const RecordAt& record_at) {
    const auto tier = OpenTier();
    TierDriver driver(*tier);
    uint32_t num = 0;
    for (uint32_t i = 0; i < count; ++i) num += driver.ReadBack(record_at(i)) == Read::kRight;
    return num;
  }
  uint32_t Hits(uint32_t chain, uint32_t owner) {
    return NumRead(kEach, [&](uint32_t i) { return Record(chain, i, owner); });
  }
  // Finds the record's name as the header has it, anywhere in the folder's segments.
  bool IsOnDisk(const TestRecord& record) const {
    const std::string name(reinterpret_cast<const char*>(record.facts.name.key.data()),
                           record.facts.name.key.size());
    for (const auto& entry : fs::recursive_directory_iterator(options_.folder)) {
      if (!entry.is_regular_file()) continue;
      std::ifstream in(entry.path(), std::ios::binary);
      const std::string all(std::istreambuf_iterator<char>(in), {});
      if (all.find(name) != all.npos) return true;
    }
    return false;
  }

  RealStorage storage_;
  fs::path kept_;
};

TEST_F(DiskTierUnread, StaysWhereAnotherForgets) {
  Fill();
  MakeForeign();
  {
    const auto tier = OpenTier();
    TierDriver driver(*tier);
    const auto forgotten = driver.Forget(TierDriver::ForgetOf(Record(kTheirs, 4, 1), 3));
    ASSERT_TRUE(forgotten) << forgotten.error().message;
    EXPECT_EQ(forgotten->blocks, kEach - 4);
    for (uint32_t i = 0; i < kEach; ++i) {
      EXPECT_EQ(driver.ReadBack(Record(kTheirs, i, 1)), i < 4 ? Read::kRight : Read::kNotThere)
          << i;
      EXPECT_EQ(IsOnDisk(Record(kTheirs, i, 1)), i < 4) << i;
    }
    for (uint32_t i = 0; i < 40; ++i) ASSERT_TRUE(driver.Write(Record(kMore, i, 1)));
    ASSERT_TRUE(driver.Flush());
    EXPECT_TRUE(tier->CheckInvariants());
  }
  MakeRight();
  EXPECT_EQ(Hits(kOurs, 0), kEach);
  EXPECT_EQ(Hits(kTheirs, 1), 4u);
}

TEST_F(DiskTierUnread, StaysWhereAnotherIsErased) {
  Fill();
  MakeForeign();
  {
    const auto tier = OpenTier();
    TierDriver driver(*tier);
    const auto erased = driver.Erase(TestRecord::Owner(1));
    ASSERT_TRUE(erased) << erased.error().message;
    EXPECT_EQ(erased->blocks, kEach);
    EXPECT_FALSE(fs::exists(KeyOf(1)));
    for (uint32_t i = 0; i < kEach; ++i) EXPECT_FALSE(IsOnDisk(Record(kTheirs, i, 1))) << i;
    EXPECT_TRUE(tier->CheckInvariants());
  }
  MakeRight();
  EXPECT_EQ(Hits(kOurs, 0), kEach);
  EXPECT_EQ(Hits(kTheirs, 1), 0u);
}

// An erase that the next start finishes, and one in a store that no process has open.
TEST_F(DiskTierUnread, StaysWhereAnErasesNeighbourIsZeroed) {
  for (const bool by_start : {true, false}) {
    Fill();
    MakeForeign();
    if (by_start) {
      const auto root = Own(storage_, storage_.OpenRoot(options_.folder));
      ASSERT_TRUE(root);
      ASSERT_TRUE(WriteIntent(
          storage_, root->id(), options_.secret,
          {ToHex(StoreIdOf(options_.secret, options_.identity)), KeyOf(1).filename().string()}));
      OpenTier();
    } else {
      const Digest identity = options_.identity;
      options_.identity = Digest{8};
      {
        const auto tier = OpenTier();
        TierDriver driver(*tier);
        const auto erased = driver.Erase(TestRecord::Owner(1));
        ASSERT_TRUE(erased) << erased.error().message;
        EXPECT_EQ(erased->blocks, kEach);
      }
      options_.identity = identity;
    }
    EXPECT_FALSE(fs::exists(KeyOf(1)));
    for (uint32_t i = 0; i < kEach; ++i) EXPECT_FALSE(IsOnDisk(Record(kTheirs, i, 1))) << i;
    MakeRight();
    EXPECT_EQ(Hits(kOurs, 0), kEach) << by_start;
  }
}

class FailingSync : public RealStorage {
 public:
  IoStatus SyncData(FileId file) override {
    return fails.exchange(false) ? IoFailed(EIO) : RealStorage::SyncData(file);
  }
  std::atomic<bool> fails{false};
};

// A segment is given up when a sync of it fails; what others have there stays all the same.
TEST_F(DiskTierUnread, StaysInASegmentThatWasAbandoned) {
  for (const bool forgets : {true, false}) {
    Fill();
    MakeForeign();
    {
      FailingSync storage;
      auto opened = DiskTier::Open(options_, storage);
      ASSERT_TRUE(opened);
      TierDriver driver(**opened);
      storage.fails = true;
      ASSERT_TRUE(driver.Write(Record(kMore, 0, 1)));
      (void)driver.Flush();
      EXPECT_FALSE(storage.fails);
      const auto done = forgets ? driver.Forget(TierDriver::ForgetOf(Record(kTheirs, 4, 1), 3))
                                : driver.Erase(TestRecord::Owner(1));
      EXPECT_FALSE(done) << "what stays must be said";
      EXPECT_NE((*opened)->Stats().state, TierStats::State::kOn) << "it is opened anew first";
    }
    OpenTier();  // ends what was begun
    MakeRight();
    EXPECT_EQ(Hits(kOurs, 0), kEach) << forgets;
    EXPECT_LE(Hits(kTheirs, 1), forgets ? 4u : 0u);
    for (uint32_t i = 4; i < kEach; ++i) EXPECT_FALSE(IsOnDisk(Record(kTheirs, i, 1))) << i;
  }
}

// A key of the name that this secret gives: it is the owner's own, damaged or of a newer version.
TEST_F(DiskTierUnread, AnOwnersOwnEraseAndForgetTakeIt) {
  for (const bool forgets : {true, false}) {
    Fill();
    MakeForeign();
    {
      const auto tier = OpenTier();
      TierDriver driver(*tier);
      ASSERT_TRUE(driver.Write(Record(kMore, 0, 0)));  // sets the file aside
      ASSERT_TRUE(driver.Flush());
      const auto done = forgets ? driver.Forget(TierDriver::ForgetOf(Record(kOurs, 4, 0), 3))
                                : driver.Erase(TestRecord::Owner(0));
      ASSERT_TRUE(done) << done.error().message;
      EXPECT_EQ(driver.ReadBack(Record(kMore, 0, 0)), forgets ? Read::kRight : Read::kNotThere);
      EXPECT_EQ(driver.ReadBack(Record(kTheirs, 0, 1)), Read::kRight);
      EXPECT_FALSE(fs::exists(KeyOf(0).string() + ".aside-1"));
      for (uint32_t i = 0; i < kEach; ++i) EXPECT_FALSE(IsOnDisk(Record(kOurs, i, 0))) << i;
      EXPECT_TRUE(tier->CheckInvariants());
    }
    EXPECT_EQ(Hits(kTheirs, 1), kEach);
  }
}

// A link in the place of the store, or of its keys. What it leads to is whole again when it is put
// back; until it is removed, erases say that it may lead to blocks.
TEST_F(DiskTierUnread, IsNotReachedThroughALinkAndAnEraseSaysSo) {
  for (const bool of_keys : {true, false}) {
    Fill();
    const fs::path keys = KeyOf(0).parent_path();
    const fs::path place = of_keys ? keys : keys.parent_path();
    fs::rename(place, parent_ / "elsewhere");
    fs::create_symlink(parent_ / "elsewhere", place);
    const fs::path aside = place.string() + ".aside-1";
    {
      const auto tier = OpenTier();
      TierDriver driver(*tier);
      EXPECT_TRUE(fs::is_symlink(aside));
      ASSERT_TRUE(driver.Write(Record(kMore, 0, 1)));
      ASSERT_TRUE(driver.Flush());
      const auto forgotten = driver.Forget(TierDriver::ForgetOf(Record(kMore, 0, 1), 3));
      const auto erased = driver.Erase(TestRecord::Owner(1));
      for (const auto* answer : {&forgotten, &erased}) {
        ASSERT_FALSE(*answer);
        EXPECT_EQ(answer->error().code, Code::kUnavailable);
        EXPECT_NE(answer->error().message.find(aside), std::string::npos)
            << answer->error().message;
      }
      EXPECT_EQ(driver.ReadBack(Record(kMore, 0, 1)), Read::kNotThere);
      ASSERT_TRUE(driver.Write(Record(kMore + 1, 0, 1))) << "nothing of it is tried again";
      ASSERT_TRUE(driver.Flush());
    }
    fs::remove(aside);
    fs::remove_all(place);
    fs::rename(parent_ / "elsewhere", place);
    EXPECT_EQ(Hits(kOurs, 0), kEach) << of_keys;
    EXPECT_EQ(Hits(kTheirs, 1), kEach) << of_keys;
    const auto tier = OpenTier();
    TierDriver driver(*tier);
    const auto erased = driver.Erase(TestRecord::Owner(1));
    ASSERT_TRUE(erased) << erased.error().message;
    EXPECT_EQ(erased->blocks, kEach);
  }
}

// Sessions open again when a link in the place of their keys, which lie beside the stores, is put
// back. A forget does not concern them.
TEST_F(DiskTierUnread, AnEraseSaysThatALinkMayLeadToSessions) {
  Fill();
  for (const char* name : {"keys.aside-1", "keys"}) {
    const fs::path link = fs::path(options_.folder) / name;
    fs::create_symlink(parent_ / "elsewhere", link);
    const auto tier = OpenTier();
    TierDriver driver(*tier);
    EXPECT_TRUE(driver.Forget(TierDriver::ForgetOf(Record(kOurs, 0, 0), 3)));
    const auto erased = driver.Erase(TestRecord::Owner(1));
    ASSERT_FALSE(erased);
    EXPECT_EQ(erased.error().code, Code::kUnavailable);
    EXPECT_NE(erased.error().message.find(link), std::string::npos) << erased.error().message;
    fs::remove(link);
    EXPECT_TRUE(driver.Erase(TestRecord::Owner(1)));
  }
}

TEST_F(DiskTierUnread, LinksAreListedAndRemovedByName) {
  Fill();
  const fs::path keys = KeyOf(0).parent_path();
  fs::rename(keys, parent_ / "elsewhere");
  fs::create_symlink(parent_ / "elsewhere", keys);
  OpenTier();
  const auto root = Own(storage_, storage_.OpenRoot(options_.folder));
  const auto unread = ListUnread(storage_, root->id(), options_.secret);
  ASSERT_TRUE(unread);
  const std::string store = keys.parent_path().filename();
  EXPECT_EQ(unread->names, std::vector<std::string>{store + "/keys.aside-1"});
  ASSERT_TRUE(RemoveUnread(storage_, root->id(), options_.secret, *unread));
  EXPECT_FALSE(fs::is_symlink(keys.string() + ".aside-1"));
  EXPECT_TRUE(fs::exists(parent_ / "elsewhere" / KeyOf(0).filename()));
  const auto tier = OpenTier();
  EXPECT_TRUE(TierDriver(*tier).Erase(TestRecord::Owner(1)));
}

// Set aside, or as it was put there. Of forgets only blocks matter.
TEST_F(DiskTierUnread, AnEraseNamesALinkToTheKeysOfRows) {
  Fill();
  const fs::path link = fs::path(options_.folder) / kRowsKeysName;
  fs::create_symlink(parent_ / "elsewhere", link);
  const auto tier = OpenTier();
  TierDriver driver(*tier);
  const auto root = Own(storage_, storage_.OpenRoot(options_.folder));
  std::string name(kRowsKeysName);
  for (const bool is_aside : {false, true}) {
    if (is_aside) {
      name += ".aside-1";
      fs::rename(link, fs::path(options_.folder) / name);
    }
    EXPECT_TRUE(driver.Forget(TierDriver::ForgetOf(Record(kTheirs, 4, 1), 3)));
    const auto erased = driver.Erase(TestRecord::Owner(1));
    ASSERT_FALSE(erased) << name;
    EXPECT_EQ(erased.error().code, Code::kUnavailable);
    EXPECT_NE(erased.error().message.find(options_.folder + "/" + name + ":"), std::string::npos)
        << erased.error().message;
    const auto unread = ListUnread(storage_, root->id(), options_.secret);
    ASSERT_TRUE(unread);
    EXPECT_EQ(unread->names, std::vector<std::string>{name});
    if (is_aside) {
      ASSERT_TRUE(RemoveUnread(storage_, root->id(), options_.secret, *unread));
    }
  }
  EXPECT_TRUE(driver.Erase(TestRecord::Owner(1)));
}

// They have blocks of others, which another build reads. A damaged one is of no use to anybody.
TEST_F(DiskTierUnread, AForgetLeavesSegmentsOfAnotherVersionAndNamesThem) {
  Fill();
  const fs::path store = KeyOf(0).parent_path().parent_path();
  const auto segment = [&](uint32_t number) { return store / SegmentFileName(number); };
  fs::copy_file(segment(0), segment(7));
  std::fstream(segment(7), std::ios::in | std::ios::out | std::ios::binary).seekp(8).put(99);
  fs::create_symlink(parent_ / "elsewhere", segment(8));
  const StoreId id = StoreIdOf(options_.secret, options_.identity);
  const SegmentHead other{
      .shape = ShapeOfSegment({.block_tokens = 2 * kTokens, .payload_bytes = kPayload}, 1 << 20),
      .store = id,
      .segment = 9,
      .generation = 1};
  std::array<std::byte, kHeadBytes> head;
  EncodeHead(HeadKeyOf(options_.secret), other, head);
  std::ofstream(segment(9), std::ios::binary)
      .write(reinterpret_cast<const char*>(head.data()), head.size());
  fs::resize_file(segment(9), 1 << 20);
  fs::copy_file(segment(0), segment(10));
  fs::resize_file(segment(10), 10'000);
  fs::create_directory(segment(11));
  {
    const auto tier = OpenTier();
    TierDriver driver(*tier);
    const auto forgotten = driver.Forget(TierDriver::ForgetOf(Record(kTheirs, 4, 1), 3));
    ASSERT_FALSE(forgotten);
    EXPECT_EQ(forgotten.error().code, Code::kUnavailable);
    EXPECT_NE(forgotten.error().message.find(segment(7).string() + " and 2 more:"),
              std::string::npos)
        << forgotten.error().message;
    EXPECT_FALSE(fs::exists(segment(10)));
    for (uint32_t i = 0; i < kEach; ++i) {
      EXPECT_EQ(driver.ReadBack(Record(kTheirs, i, 1)), i < 4 ? Read::kRight : Read::kNotThere);
    }
    ASSERT_TRUE(driver.Write(Record(kMore, 0, 1))) << "nothing of it is tried again";
    ASSERT_TRUE(driver.Flush());
  }
  const auto root = Own(storage_, storage_.OpenRoot(options_.folder));
  auto unread = ListUnread(storage_, root->id(), options_.secret);
  ASSERT_TRUE(unread);
  std::ranges::sort(unread->names);
  const std::string name = ToHex(id) + "/";
  EXPECT_EQ(unread->names,
            (std::vector<std::string>{name + SegmentFileName(7), name + SegmentFileName(8)}));
  ASSERT_TRUE(RemoveUnread(storage_, root->id(), options_.secret, *unread));
  EXPECT_FALSE(fs::exists(segment(7)) || fs::is_symlink(segment(8)));
  EXPECT_TRUE(fs::remove(segment(9))) << "it stayed";
  const auto tier = OpenTier();
  const auto forgotten = TierDriver(*tier).Forget(TierDriver::ForgetOf(Record(kTheirs, 2, 1), 3));
  ASSERT_TRUE(forgotten) << forgotten.error().message;
  EXPECT_EQ(forgotten->blocks, 2u);
}

// The link or folder lies in the own store, or in another one. Without the key nothing opens that
// it leads to.
TEST_F(DiskTierUnread, AnErasePassesALinkOrAFolderInASegmentsPlace) {
  Fill();
  const fs::path store = KeyOf(0).parent_path().parent_path();
  fs::create_symlink(parent_ / "elsewhere", store / SegmentFileName(8));
  fs::create_directory(store / SegmentFileName(9));
  const auto erase = [&](uint32_t owner) {
    const auto tier = OpenTier();
    const auto erased = TierDriver(*tier).Erase(TestRecord::Owner(owner));
    EXPECT_TRUE(erased) << erased.error().message;
    return erased ? erased->blocks : 0;
  };
  EXPECT_EQ(erase(2), 0u) << "it has nothing";
  EXPECT_EQ(erase(0), kEach);
  options_.identity = Digest{8};
  EXPECT_EQ(erase(1), kEach);
  EXPECT_FALSE(fs::exists(KeyOf(1)));
}

// The forget was not answered, so that what the link leads to may come back until it is asked
// for again. Then it is named.
TEST_F(DiskTierUnread, AStartPassesALinkThatAForgetsIntentLists) {
  Fill();
  const fs::path segment = KeyOf(0).parent_path().parent_path() / SegmentFileName(0);
  fs::rename(segment, parent_ / "elsewhere");
  fs::create_symlink(parent_ / "elsewhere", segment);
  {
    const auto folder = Own(storage_, storage_.OpenRoot(segment.parent_path()));
    const ForgetIntent intent{{{.number = 0, .generation = 1, .slots = {true}}}};
    ASSERT_TRUE(WriteForgetIntent(storage_, folder->id(), options_.secret,
                                  StoreIdOf(options_.secret, options_.identity), intent));
  }
  const auto tier = OpenTier();
  EXPECT_EQ(tier->Stats().state, TierStats::State::kOn) << tier->Stats().reason;
  const auto forgotten = TierDriver(*tier).Forget(TierDriver::ForgetOf(Record(kTheirs, 4, 1), 3));
  ASSERT_FALSE(forgotten);
  EXPECT_NE(forgotten.error().message.find(segment.string() + ":"), std::string::npos)
      << forgotten.error().message;
}

// A kill between two removals leaves the second one without the first.
TEST_F(DiskTierUnread, AnEraseTakesEachKeyThatWasSetAside) {
  Fill();
  const fs::path aside = KeyOf(0).string() + ".aside-2", other = KeyOf(1).string() + ".aside-2";
  fs::copy_file(KeyOf(0), aside);
  fs::copy_file(KeyOf(1), other);
  const auto tier = OpenTier();
  ASSERT_TRUE(TierDriver(*tier).Erase(TestRecord::Owner(0)));
  EXPECT_FALSE(fs::exists(aside));
  EXPECT_TRUE(fs::exists(other));
}

// A folder in the place of an owner's key: it is set aside with what it holds, and an erase takes
// the new key.
TEST_F(DiskTierUnread, AFolderInAKeysPlaceIsSetAside) {
  Fill();
  const fs::path key = KeyOf(0), aside = key.string() + ".aside-1";
  fs::remove(key);
  fs::create_directory(key);
  std::ofstream(key / "note") << "mine";
  {
    const auto tier = OpenTier();
    EXPECT_EQ(tier->Stats().state, TierStats::State::kOn) << tier->Stats().reason;
    TierDriver driver(*tier);
    EXPECT_EQ(driver.ReadBack(Record(kOurs, 0, 0)), Read::kNotThere);
    EXPECT_EQ(driver.ReadBack(Record(kTheirs, 0, 1)), Read::kRight) << "its neighbour";
    ASSERT_TRUE(driver.Write(Record(kMore, 0, 0)));
    ASSERT_TRUE(driver.Flush());
    EXPECT_TRUE(fs::is_regular_file(key));
    EXPECT_TRUE(fs::is_regular_file(aside / "note"));
  }
  const auto tier = OpenTier();
  TierDriver driver(*tier);
  EXPECT_EQ(driver.ReadBack(Record(kMore, 0, 0)), Read::kRight);
  const auto erased = driver.Erase(TestRecord::Owner(0));
  ASSERT_TRUE(erased) << erased.error().message;
  EXPECT_FALSE(fs::exists(key));
  EXPECT_TRUE(fs::is_regular_file(aside / "note")) << "a folder has no key of this tier";
}

// At least half of the room is for what can be read.
TEST_F(DiskTierUnread, LeavesForRoomBeforeWhatCanBeRead) {
  constexpr uint32_t kMany = 400;  // of either owner: more than half of the room
  options_.cap_bytes = uint64_t{4} << 20;
  Fill();
  const auto write = [&](uint32_t owner) {
    const auto tier = OpenTier();
    TierDriver driver(*tier);
    for (uint32_t i = 0; i < kMany; ++i) {
      ASSERT_TRUE(driver.Write(Record(kMore + kMany * owner + i, 0, owner), true)) << i;
      const auto flushed = driver.Flush();
      ASSERT_TRUE(flushed) << i << ": " << flushed.error().message;
    }
    EXPECT_TRUE(tier->CheckInvariants());
  };
  const auto count = [&](uint32_t owner) {
    return NumRead(kMany, [&](uint32_t i) { return Record(kMore + kMany * owner + i, 0, owner); });
  };
  write(0);
  const uint32_t room = count(0);
  MakeForeign();
  ASSERT_EQ(count(0), 0u);
  write(1);
  const uint32_t hits = count(1);
  EXPECT_GE(hits, room / 2);
  MakeRight();
  EXPECT_LE(count(0), room - hits + 1) << "for room alone";
  EXPECT_EQ(count(1), hits);
}

}  // namespace
}  // namespace kvasir
