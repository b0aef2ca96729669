#include "tier/store_room.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "base/log.h"
#include "tier/spare_file.h"
#include "tier/store_for_test.h"

namespace kvasir {
namespace {

class StoreRoomTest : public OpenStoreTest {
 protected:
  StoreRoomTest() { SetLogLevel(LogLevel::kError); }
  uint32_t FreeSlots() const {
    MutexLock lock(store_->mutex);
    return store_->segments.num_free();
  }

  SegmentFiles segments_{*store_};
  StoreRoom room_{*store_, segments_};
};

TEST_F(StoreRoomTest, GrowsToTheCapAndThenEvicts) {
  const uint32_t slots = slots_per_segment();
  EXPECT_TRUE(room_.MakeSlotsFree(8 * slots));
  EXPECT_EQ(num_segments(), 8u);
  EXPECT_EQ(FreeSlots(), 8 * slots);
  for (uint32_t i = 0; i < 8 * slots; ++i) PutRecord(Small(i));
  EXPECT_EQ(FreeSlots(), 0u);
  EXPECT_TRUE(room_.MakeSlotsFree(3));
  EXPECT_EQ(num_segments(), 8u) << "the cap holds no more";
  EXPECT_EQ(FreeSlots(), 3u);
  EXPECT_FALSE(SlotOf(Small(0)) || SlotOf(Small(1)) || SlotOf(Small(2))) << "the coldest";
  EXPECT_EQ(Stats().evicted_cap, 3u);
  EXPECT_EQ(room_.HasRoomFor(0), true);
  EXPECT_EQ(room_.HasRoomFor(kSegmentBytes), false);
}

TEST_F(StoreRoomTest, GivesASegmentAndDoesNotTakeItBackAtOnce) {
  EXPECT_TRUE(room_.MakeSlotsFree(3 * slots_per_segment()));
  EXPECT_TRUE(room_.GiveSegment());
  EXPECT_EQ(num_segments(), 2u);
  EXPECT_TRUE(room_.MakeSlotsFree(3 * slots_per_segment()));
  EXPECT_EQ(num_segments(), 2u);
  storage_.PassTime(2);
  EXPECT_TRUE(room_.MakeSlotsFree(3 * slots_per_segment()));
  EXPECT_EQ(num_segments(), 3u);
}

TEST_F(StoreRoomTest, LeavesToSessionsWhatIsReserved) {
  EXPECT_TRUE(room_.MakeSlotsFree(8 * slots_per_segment()));
  room_.Reserve(Store::kSessionBytes);
  room_.FitReserved();
  EXPECT_EQ(num_segments(), 8u) << "as much is left to them anyway";
  room_.Reserve(Store::kBesideBytes + Store::kSessionBytes + 2 * kSegmentBytes);
  room_.FitReserved();
  EXPECT_EQ(num_segments(), 0u) << "that is more than half of the cap";
}

TEST_F(StoreRoomTest, WaitsForTheFoldersLockForASecond) {
  const auto root = store_->writing_files->root.id();
  auto held = LockTierFolder(storage_, root);
  ASSERT_TRUE(held);
  EXPECT_FALSE(room_.MakeSlotsFree(1)) << "it is asked again soon";
  storage_.PassTime(2);
  EXPECT_TRUE(room_.MakeSlotsFree(1)) << "nothing can be made free";
  EXPECT_EQ(num_segments(), 0u);
  held->Close();
  EXPECT_TRUE(room_.MakeSlotsFree(1));
  EXPECT_EQ(num_segments(), 1u);
}

TEST_F(StoreRoomTest, EvictsWhatWasNotUsedForTheTimeToLive) {
  EXPECT_TRUE(room_.MakeSlotsFree(1));
  PutRecord(Small(0));
  storage_.PassTime(static_cast<int64_t>(options_.ttl_hours) * 3600);
  PutRecord(Small(1));
  room_.ExpireOld();
  EXPECT_TRUE(SlotOf(Small(0)));
  storage_.PassTime(3600);
  room_.ExpireOld();
  EXPECT_FALSE(SlotOf(Small(0)));
  EXPECT_TRUE(SlotOf(Small(1)));
  EXPECT_EQ(Stats().evicted_ttl, 1u);
}

TEST_F(StoreRoomTest, KeepsASpareFileForErases) {
  const auto root = store_->writing_files->root.id();
  EXPECT_EQ(SpareOf(storage_, root, kSpareName), 0u);
  room_.KeepRoomToErase(root);
  EXPECT_GT(SpareOf(storage_, root, kSpareName), kSpareBytes);
}

TEST_F(StoreRoomTest, SaysHowManyBytesTheDeviceLacks) {
  storage_.free_bytes = kSegmentBytes - 10;
  room_.NoteRoom();
  {
    MutexLock lock(store_->mutex);
    EXPECT_EQ(store_->state.missing_bytes, 10u);
    EXPECT_FALSE(store_->state.full_reason.empty());
  }
  storage_.free_bytes = kSegmentBytes;
  room_.NoteRoom();
  MutexLock lock(store_->mutex);
  EXPECT_TRUE(store_->state.full_reason.empty());
}

// As a quota does, or "ulimit -f": the device has room all the same.
TEST_F(StoreRoomTest, SaysThatTheSystemRefusesASegment) {
  const auto reason = [&] {
    MutexLock lock(store_->mutex);
    return store_->state.full_reason;
  };
  room_.KeepRoomToErase(
      store_->writing_files->root.id());  // the folder's lock is there from now on
  storage_.faults.no_space = 65536;
  for (const int error : {ENOSPC, EDQUOT, EFBIG}) {
    storage_.no_space_error = error;
    storage_.PassTime(10);
    EXPECT_TRUE(room_.MakeSlotsFree(1));
    EXPECT_NE(reason().find(std::strerror(error)), std::string::npos) << reason();
    EXPECT_EQ(Stats().fault_write, 0u);
  }
  storage_.faults.no_space = 0;
  storage_.PassTime(10);
  EXPECT_TRUE(room_.MakeSlotsFree(1));
  EXPECT_EQ(reason(), "");
}

}  // namespace
}  // namespace kvasir
