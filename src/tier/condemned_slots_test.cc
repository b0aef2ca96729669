#include "tier/condemned_slots.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "base/log.h"
#include "tier/store_for_test.h"

namespace kvasir {
namespace {

class CondemnedSlotsTest : public OpenStoreTest {
 protected:
  using SlotState = SegmentTable::SlotState;

  CondemnedSlotsTest() { SetLogLevel(LogLevel::kError); }

  // Takes a record out of the index and condemns its slot.
  SlotRef Condemn(const TestRecord& record) {
    const SlotRef slot = *SlotOf(record);
    MutexLock lock(store_->mutex);
    store_->DropRecord(*store_->records.Find(record.facts.name));
    store_->segments.Condemn(slot);
    return slot;
  }
  void Abandon(uint32_t segment) {
    MutexLock lock(store_->mutex);
    store_->segments.Abandon(segment);
  }
  // Finds a slot of a segment without a record, as one of an owner whose key cannot be unsealed.
  SlotRef SetUnread(uint32_t segment) {
    MutexLock lock(store_->mutex);
    const SlotRef slot{segment, slots_per_segment() - 1};
    store_->segments.SetUnread(slot);
    store_->state.has_unread_keys = true;
    return slot;
  }
  bool IsKnownAsZero(const SlotRef& slot) const {
    MutexLock lock(store_->mutex);
    return store_->segments.is_zero(slot);
  }

  SegmentFiles segments_{*store_};
  CondemnedSlots condemned_{*store_, segments_};
};

TEST_F(CondemnedSlotsTest, AreZerosBeforeTheyAreFree) {
  AddSegment(0);
  AddSegment(1);
  for (uint32_t i = 0; i <= slots_per_segment(); ++i) PutRecord(Small(i));
  const SlotRef slots[] = {Condemn(Small(1)), Condemn(Small(2)),
                           Condemn(Small(slots_per_segment()))};
  EXPECT_NE(slots[0].segment, slots[2].segment);
  for (const SlotRef& slot : slots) EXPECT_FALSE(IsZeroOnDisk(slot));
  EXPECT_TRUE(condemned_.ZeroAll(AbandonedSegments::kLeft));
  for (const SlotRef& slot : slots) {
    EXPECT_TRUE(IsZeroOnDisk(slot));
    EXPECT_EQ(StateOf(slot), SlotState::kFree);
    EXPECT_TRUE(IsKnownAsZero(slot));
  }
  EXPECT_FALSE(IsZeroOnDisk(*SlotOf(Small(0)))) << "a record that is stored stays";
  EXPECT_EQ(num_stored(), slots_per_segment() - 2);
  EXPECT_TRUE(IsSound());
}

TEST_F(CondemnedSlotsTest, StayCondemnedWhereTheyCannotBeWritten) {
  AddSegment(0);
  PutRecord(Small(0));
  const SlotRef slot = Condemn(Small(0));
  storage_.faults.write_error = 65536;
  EXPECT_FALSE(condemned_.ZeroAll(AbandonedSegments::kLeft));
  storage_.faults.write_error = 0;
  EXPECT_EQ(StateOf(slot), SlotState::kCondemned);
  EXPECT_EQ(Stats().fault_write, 1u);
  EXPECT_TRUE(condemned_.ZeroAll(AbandonedSegments::kLeft));
  EXPECT_TRUE(IsZeroOnDisk(slot));
}

TEST_F(CondemnedSlotsTest, ASyncThatFailsAbandonsTheSegmentAndItsFileGoes) {
  AddSegment(0);
  PutRecord(Small(0));
  PutRecord(Small(1));
  const SlotRef slot = Condemn(Small(0));
  storage_.faults.sync_error = 65536;
  EXPECT_FALSE(condemned_.ZeroAll(AbandonedSegments::kLeft));
  storage_.faults.sync_error = 0;
  EXPECT_EQ(StateOf(slot), SlotState::kCondemned);
  EXPECT_EQ(Stats().fault_sync, 1u);
  EXPECT_TRUE(condemned_.ZeroAll(AbandonedSegments::kLeft)) << "no later sync proves anything";
  EXPECT_EQ(StateOf(slot), SlotState::kCondemned);
  EXPECT_TRUE(HasSegmentFile(0));
  EXPECT_TRUE(condemned_.ZeroAll(AbandonedSegments::kRemoved));
  EXPECT_FALSE(HasSegmentFile(0));
  EXPECT_FALSE(SlotOf(Small(1))) << "its other records go with it";
  EXPECT_TRUE(IsSound());
}

TEST_F(CondemnedSlotsTest, AnAbandonedSegmentWithRecordsThatNoKeyUnsealsStays) {
  AddSegment(0);
  PutRecord(Small(0));
  Condemn(Small(0));
  SetUnread(0);
  Abandon(0);
  const IoStatus done = condemned_.ZeroAll(AbandonedSegments::kRemoved);
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error(), EIO);
  EXPECT_TRUE(HasSegmentFile(0));
}

TEST_F(CondemnedSlotsTest, RecordsWithoutAKeyAreCondemnedOnceEveryKeyFileIsUnsealed) {
  AddSegment(0);
  const SlotRef slot = SetUnread(0);
  const Secret other{9};
  const OwnerKey key{.owner = TestRecord::Owner(5)};
  const FileId keys = store_->writing_files->keys.id();
  ASSERT_TRUE(WriteKeyFile(storage_, keys, other, store_->id, key));
  EXPECT_TRUE(condemned_.CondemnOrphans());
  EXPECT_EQ(StateOf(slot), SlotState::kUnread) << "its key may be the one that cannot be unsealed";
  EXPECT_TRUE(condemned_.HasUnreadKeys());
  EXPECT_TRUE(RemoveKeyFile(storage_, keys, KeyFileName(other, key.owner)).value_or(false));
  EXPECT_TRUE(condemned_.CondemnOrphans());
  EXPECT_EQ(StateOf(slot), SlotState::kCondemned);
  EXPECT_FALSE(condemned_.HasUnreadKeys());
}

}  // namespace
}  // namespace kvasir
