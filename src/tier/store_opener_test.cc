#include "tier/store_opener.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "base/log.h"
#include "tier/store_for_test.h"

namespace kvasir {
namespace {

class StoreOpenerTest : public OpenStoreTest {
 protected:
  // The parts of a store that open it.
  struct Parts {
    explicit Parts(Store& store)
        : segments(store),
          room(store, segments),
          notes(store),
          condemned(store, segments),
          erases(store, segments, condemned, room, progress),
          scan(store, segments, notes),
          opener(store, segments, room, scan, erases) {}

    ProgressCall progress;
    SegmentFiles segments;
    StoreRoom room;
    StoreNotes notes;
    CondemnedSlots condemned;
    StoreErases erases;
    StoreScan scan;
    StoreOpener opener;
  };

  StoreOpenerTest() { SetLogLevel(LogLevel::kError); }

  // Opens the store as a new process does.
  Status Reopen() {
    parts_.reset();
    MakeStore();
    parts_ = std::make_unique<Parts>(*store_);
    return parts_->opener.Open();
  }
  TierStats::State State() const {
    MutexLock lock(store_->mutex);
    return store_->state.now;
  }
  uint64_t CapBytes() const {
    MutexLock lock(store_->mutex);
    return store_->state.cap_bytes;
  }

  std::unique_ptr<Parts> parts_;
};

TEST_F(StoreOpenerTest, FindsWhatWasStored) {
  AddSegment(0);
  PutRecord(Small(0));
  PutRecord(Small(1));
  const SlotRef slot = *SlotOf(Small(1));
  ASSERT_TRUE(Reopen());
  EXPECT_EQ(State(), TierStats::State::kOn);
  EXPECT_EQ(num_stored(), 2u);
  EXPECT_EQ(SlotOf(Small(1)), slot);
  EXPECT_EQ(CapBytes(), *options_.cap_bytes);
  EXPECT_TRUE(parts_->opener.has_folder());
  EXPECT_TRUE(IsSound());
}

TEST_F(StoreOpenerTest, WaitsWhereAnotherProcessHasTheStore) {
  AddSegment(0);
  PutRecord(Small(0));
  std::unique_ptr<Store> other = std::move(store_);
  ASSERT_TRUE(Reopen()) << "that is not an error";
  EXPECT_EQ(State(), TierStats::State::kWaiting);
  EXPECT_EQ(num_stored(), 0u);
  EXPECT_TRUE(parts_->opener.has_folder());
  other.reset();
  ASSERT_TRUE(parts_->opener.Open());
  EXPECT_EQ(State(), TierStats::State::kOn);
  EXPECT_EQ(num_stored(), 1u);
}

TEST_F(StoreOpenerTest, WithoutACapTakesATenthOfWhatIsFreeOrItsOwn) {
  options_.cap_bytes.reset();
  storage_.free_bytes = 100 << 20;
  ASSERT_TRUE(Reopen());
  EXPECT_GE(CapBytes(), uint64_t{10} << 20);
  EXPECT_LT(CapBytes(), uint64_t{11} << 20) << "its own files are small";
}

TEST_F(StoreOpenerTest, RemovesKeysOfOwnersWithoutARecord) {
  AddSegment(0);
  PutRecord(Small(0, 0, 1));
  OwnerKey key{.owner = TestRecord::Owner(2)};
  ASSERT_TRUE(storage_.FillRandom(key.key) && storage_.FillRandom(key.namespace_id));
  ASSERT_TRUE(
      WriteKeyFile(storage_, store_->writing_files->keys.id(), options_.secret, store_->id, key));
  const auto has_key = [&](uint32_t owner) {
    const std::string name = KeyFileName(options_.secret, TestRecord::Owner(owner));
    return storage_.FactsOf(store_->writing_files->keys.id(), name).has_value();
  };
  ASSERT_TRUE(has_key(2));
  ASSERT_TRUE(Reopen());
  EXPECT_FALSE(has_key(2));
  EXPECT_TRUE(has_key(1));
}

TEST_F(StoreOpenerTest, GivesBackWhatIsMoreThanASmallerCap) {
  for (uint32_t i = 0; i < 6; ++i) AddSegment(i);
  for (uint32_t i = 0; i < 6 * slots_per_segment(); ++i) PutRecord(Small(i));
  options_.cap_bytes = Store::kBesideBytes + 3 * kSegmentBytes;
  ASSERT_TRUE(Reopen());
  EXPECT_LE(num_segments(), 3u);
  EXPECT_LE(num_stored(), 3 * slots_per_segment());
  EXPECT_TRUE(IsSound());
}

TEST_F(StoreOpenerTest, SaysThatTheFolderCannotBeRead) {
  parts_.reset();
  MakeStore();
  parts_ = std::make_unique<Parts>(*store_);
  storage_.stops_at = storage_.num_calls();
  const Status opened = parts_->opener.Open();
  EXPECT_FALSE(opened);
  EXPECT_FALSE(parts_->opener.has_folder());
  EXPECT_NE(State(), TierStats::State::kOn);
}

}  // namespace
}  // namespace kvasir
