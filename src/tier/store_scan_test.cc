#include "tier/store_scan.h"

#include <gtest/gtest.h>

#include "base/log.h"
#include "tier/store_for_test.h"

namespace kvasir {
namespace {

class StoreScanTest : public OpenStoreTest {
 protected:
  StoreScanTest() { SetLogLevel(LogLevel::kError); }

  // Scans, in a new process's store, what it finds on the disk.
  Status Rescan() {
    MakeStore();
    OpenFiles();
    segments_ = std::make_unique<SegmentFiles>(*store_);
    notes_ = std::make_unique<StoreNotes>(*store_);
    return StoreScan(*store_, *segments_, *notes_).Run();
  }
  void Overwrite(uint32_t number, uint64_t at, std::span<const std::byte> bytes) {
    const OpenedFile file(storage_,
                          *storage_.OpenFile(folder(), SegmentFileName(number), OpenMode::kWrite));
    ASSERT_TRUE(WriteAll(storage_, file.id(), bytes, at));
  }
  SegmentShape shape() const { return ShapeOfSegment(options_.shape, kSegmentBytes); }

  std::unique_ptr<SegmentFiles> segments_;
  std::unique_ptr<StoreNotes> notes_;
};

TEST_F(StoreScanTest, FindsEachRecordWhereItLies) {
  AddSegment(0);
  AddSegment(5);
  const uint32_t count = slots_per_segment() + 3;
  std::vector<SlotRef> slots;
  for (uint32_t i = 0; i < count; ++i) {
    PutRecord(Small(i, 0, i % 3));
    slots.push_back(*SlotOf(Small(i)));
  }
  ASSERT_TRUE(Rescan());
  EXPECT_EQ(num_stored(), count);
  for (uint32_t i = 0; i < count; ++i) EXPECT_EQ(SlotOf(Small(i)), slots[i]) << i;
  EXPECT_TRUE(IsSound());
  ASSERT_TRUE(segments_->Make());
  EXPECT_TRUE(HasSegmentFile(6)) << "new segments have higher numbers";
}

TEST_F(StoreScanTest, DropsRecordsWhoseChainIsBroken) {
  AddSegment(0);
  for (uint32_t i = 0; i < 4; ++i) PutRecord(Small(0, i));
  const SlotRef second = *SlotOf(Small(0, 1));
  const std::vector<std::byte> zeros(shape().record.header_bytes());
  Overwrite(0, shape().header_at(second.slot), zeros);
  ASSERT_TRUE(Rescan());
  EXPECT_TRUE(SlotOf(Small(0, 0)));
  EXPECT_FALSE(SlotOf(Small(0, 2)) || SlotOf(Small(0, 3)));
  EXPECT_EQ(num_stored(), 1u);
}

// A record that was moved or copied on the disk is not believed: its header names its place.
TEST_F(StoreScanTest, BelievesNoHeaderInAnotherSlot) {
  AddSegment(0);
  PutRecord(Small(0));
  std::vector<std::byte> header(shape().record.header_bytes());
  {
    const OpenedFile file(storage_,
                          *storage_.OpenFile(folder(), SegmentFileName(0), OpenMode::kRead));
    ASSERT_TRUE(ReadAll(storage_, file.id(), header, shape().header_at(0)));
  }
  Overwrite(0, shape().header_at(4), header);
  ASSERT_TRUE(Rescan());
  EXPECT_EQ(num_stored(), 1u);
  EXPECT_EQ(StateOf({0, 4}), SegmentTable::SlotState::kFree);
}

TEST_F(StoreScanTest, LeavesWhatAnUnreadKeyMaySeal) {
  AddSegment(0);
  PutRecord(Small(0, 0, 0));
  PutRecord(Small(1, 0, 1));
  const SlotRef slot = *SlotOf(Small(1));
  const std::string name = KeyFileName(options_.secret, TestRecord::Owner(1));
  {
    const OpenedFile file(
        storage_, *storage_.OpenFile(store_->writing_files->keys.id(), name, OpenMode::kWrite));
    const std::byte other{0x5a};
    ASSERT_TRUE(WriteAll(storage_, file.id(), {&other, 1}, 40));
  }
  ASSERT_TRUE(Rescan());
  EXPECT_TRUE(SlotOf(Small(0)));
  EXPECT_FALSE(SlotOf(Small(1)));
  EXPECT_EQ(StateOf(slot), SegmentTable::SlotState::kUnread);
  ASSERT_TRUE(storage_.Unlink(store_->writing_files->keys.id(), name));
  ASSERT_TRUE(Rescan());
  EXPECT_EQ(StateOf(slot), SegmentTable::SlotState::kFree) << "no key can claim it any more";
}

TEST_F(StoreScanTest, ListsFilesThatItCannotUse) {
  AddSegment(0);
  AddSegment(1);
  PutRecord(Small(0));
  const std::byte other{0x5a};
  Overwrite(1, 20, {&other, 1});
  ASSERT_TRUE(Rescan());
  ASSERT_EQ(segments_->unusable().size(), 1u);
  EXPECT_EQ(segments_->unusable()[0].name, SegmentFileName(1));
  EXPECT_FALSE(segments_->unusable()[0].opens_elsewhere);
  EXPECT_TRUE(SlotOf(Small(0)));
}

TEST_F(StoreScanTest, FailsWhereTheDiskDoesNotRead) {
  AddSegment(0);
  PutRecord(Small(0));
  MakeStore();
  OpenFiles();
  segments_ = std::make_unique<SegmentFiles>(*store_);
  notes_ = std::make_unique<StoreNotes>(*store_);
  StoreScan scan(*store_, *segments_, *notes_);
  storage_.faults.read_error = 65536;
  const Status failed = scan.Run();
  storage_.faults.read_error = 0;
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, Code::kIoError) << failed.error().message;
  EXPECT_FALSE(scan.Help()) << "nothing is left to read";
  EXPECT_TRUE(scan.Run());
  EXPECT_EQ(num_stored(), 1u);
}

}  // namespace
}  // namespace kvasir
