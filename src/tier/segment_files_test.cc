#include "tier/segment_files.h"

#include <gtest/gtest.h>

#include "tier/store_for_test.h"

namespace kvasir {
namespace {

class SegmentFilesTest : public OpenStoreTest {
 protected:
  SegmentFiles segments_{*store_};
};

TEST_F(SegmentFilesTest, MakesSegmentsOfZerosWithRisingNumbers) {
  segments_.Begin(7, {});
  ASSERT_TRUE(segments_.Make());
  ASSERT_TRUE(segments_.Make());
  EXPECT_TRUE(HasSegmentFile(7));
  EXPECT_TRUE(HasSegmentFile(8));
  EXPECT_EQ(num_segments(), 2u);
  EXPECT_TRUE(IsZeroOnDisk({1, 0}));
  const OpenedFile file(storage_,
                        *storage_.OpenFile(folder(), SegmentFileName(8), OpenMode::kRead));
  const auto head = ReadHead(storage_, file.id(), HeadKeyOf(options_.secret), store_->id, 8);
  ASSERT_TRUE(head && *head);
  EXPECT_EQ((*head)->shape.segment_bytes, kSegmentBytes);
  MutexLock lock(store_->mutex);
  EXPECT_TRUE(store_->segments.is_zero({0, 0}));
}

TEST_F(SegmentFilesTest, CountsAnErrorOfTheDiskButNotAFullOne) {
  storage_.faults.no_space = 65536;
  EXPECT_FALSE(segments_.Make());
  EXPECT_EQ(Stats().fault_write, 0u);
  storage_.faults.no_space = 0;
  storage_.faults.write_error = 65536;
  EXPECT_FALSE(segments_.Make());
  EXPECT_EQ(Stats().fault_write, 1u);
  EXPECT_EQ(num_segments(), 0u);
}

TEST_F(SegmentFilesTest, RemovesRecordsWithThoseThatDependOnThem) {
  AddSegment(0);
  AddSegment(1);
  // The chain begins in one segment and ends in the other; one more record stands alone there.
  const uint32_t slots = slots_per_segment();
  for (uint32_t i = 0; i < slots + 2; ++i) PutRecord(Small(0, i));
  PutRecord(Small(1, 0));
  ASSERT_EQ(SlotOf(Small(0, 0))->segment, 0u);
  ASSERT_EQ(SlotOf(Small(1, 0))->segment, 1u);
  ASSERT_TRUE(segments_.Remove(0, EvictCause::kSpace));
  EXPECT_FALSE(HasSegmentFile(0));
  EXPECT_FALSE(SlotOf(Small(0, slots + 1))) << "it lies in the other segment, but depends on these";
  EXPECT_TRUE(SlotOf(Small(1, 0)));
  EXPECT_EQ(Stats().evicted_space, slots + 2);
  EXPECT_TRUE(IsSound());
}

TEST_F(SegmentFilesTest, RemovesTheSegmentThatWasUsedLongestAgo) {
  AddSegment(0);
  AddSegment(1);
  for (uint32_t i = 0; i < slots_per_segment() + 1; ++i) PutRecord(Small(i));
  {
    MutexLock lock(store_->mutex);
    store_->records.Touch(*store_->records.Find(Small(3).facts.name), store_->clock.NewOrder());
  }
  EXPECT_TRUE(segments_.RemoveColdest(EvictCause::kCap));
  EXPECT_TRUE(HasSegmentFile(0)) << "a record of it was used after those of the other";
  EXPECT_FALSE(HasSegmentFile(1));
}

TEST_F(SegmentFilesTest, KeepsASegmentThatIsBeingRead) {
  AddSegment(0);
  PutRecord(Small(0));
  {
    MutexLock lock(store_->mutex);
    store_->segments.AddReader({0, 0});
  }
  EXPECT_EQ(segments_.Remove(0, EvictCause::kCap).error(), EBUSY);
  EXPECT_FALSE(segments_.RemoveColdest(EvictCause::kCap));
  MutexLock lock(store_->mutex);
  store_->segments.EndReader({0, 0});
}

TEST_F(SegmentFilesTest, RemovesAbandonedSegmentsWithoutRecords) {
  AddSegment(0);
  AddSegment(1);
  PutRecord(Small(0));
  {
    MutexLock lock(store_->mutex);
    store_->segments.Abandon(0);
    store_->segments.Abandon(1);
  }
  segments_.RemoveAbandoned();
  EXPECT_TRUE(HasSegmentFile(0)) << "a record of it can be read";
  EXPECT_FALSE(HasSegmentFile(1));
}

TEST_F(SegmentFilesTest, RemovesFilesThatItCannotReadButThoseOfOthersNotForAForget) {
  for (const uint32_t number : {3u, 4u}) AddSegment(number);
  segments_.Begin(5, {{SegmentFileName(3), false}, {SegmentFileName(4), true}});
  EXPECT_TRUE(segments_.RemoveDamaged());
  EXPECT_FALSE(HasSegmentFile(3));
  EXPECT_TRUE(HasSegmentFile(4));
  EXPECT_EQ(segments_.unusable().size(), 1u);
  EXPECT_TRUE(segments_.RemoveUnusable()) << "room is needed";
  EXPECT_FALSE(HasSegmentFile(4));
  EXPECT_FALSE(segments_.RemoveUnusable());
}

}  // namespace
}  // namespace kvasir
