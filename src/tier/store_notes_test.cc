#include "tier/store_notes.h"

#include <gtest/gtest.h>

#include "tier/store_for_test.h"

namespace kvasir {
namespace {

class StoreNotesTest : public OpenStoreTest {
 protected:
  StoreAbout OnDisk() {
    const auto text =
        ReadSmallFile(storage_, folder(), std::string(kAboutFileName), kMaxAboutBytes);
    return text ? ParseAbout(*text) : StoreAbout();
  }
  uint32_t HourOnDisk(uint32_t slot) {
    const SegmentShape shape = ShapeOfSegment(options_.shape, kSegmentBytes);
    const OpenedFile file(storage_,
                          *storage_.OpenFile(folder(), SegmentFileName(0), OpenMode::kRead));
    uint32_t hour = 0;
    EXPECT_TRUE(ReadAll(storage_, file.id(), std::as_writable_bytes(std::span(&hour, 1)),
                        shape.hour_at(slot)));
    return hour;
  }

  StoreNotes notes_{*store_};
};

TEST_F(StoreNotesTest, FindsItsFiguresAgain) {
  {
    MutexLock lock(store_->mutex);
    store_->figures.hits = 12;
    store_->figures.written_day = store_->clock.NowHour() / 24;
    store_->figures.stats.written_today_bytes = 345;
    store_->figures.read_bytes_per_s = store_->figures.open_bytes_per_s = 2000;
  }
  notes_.WriteAbout();
  EXPECT_EQ(OnDisk().model, "test");
  EXPECT_EQ(OnDisk().load_bytes_per_s, 1000);
  MakeStore();
  OpenFiles();
  StoreNotes(*store_).ReadAbout();
  MutexLock lock(store_->mutex);
  EXPECT_EQ(store_->figures.hits, 12u);
  EXPECT_EQ(store_->figures.stats.written_today_bytes, 345u);
  EXPECT_EQ(store_->figures.load_bytes_per_s(), 1000);
}

TEST_F(StoreNotesTest, BelievesNoFigureOfALaterDay) {
  const auto day = static_cast<uint64_t>(storage_.UnixS() / 86400);
  ASSERT_TRUE(PublishFile(storage_, folder(), std::string(kAboutFileName),
                          AboutText({.written_day = day + 2, .written_bytes = 1u << 30}),
                          FileSync::kUnsynced));
  notes_.ReadAbout();
  EXPECT_EQ(Stats().written_today_bytes, 0u);
}

TEST_F(StoreNotesTest, WritesAboutOnlyWhenItSaysSomethingNew) {
  notes_.WriteAbout();
  const uint64_t calls = storage_.num_calls();
  notes_.WriteAbout();
  EXPECT_EQ(storage_.num_calls(), calls);
}

TEST_F(StoreNotesTest, WritesTheHoursOfSegmentsThatWereUsed) {
  AddSegment(0);
  PutRecord(Small(0));
  notes_.WriteHours();
  EXPECT_EQ(HourOnDisk(0), 0u) << "nothing of it was used";
  {
    MutexLock lock(store_->mutex);
    store_->segments.at(0).has_new_hours = true;
  }
  notes_.WriteHours();
  EXPECT_EQ(HourOnDisk(0), static_cast<uint32_t>(storage_.UnixS() / 3600));
  EXPECT_EQ(HourOnDisk(1), 0u);
}

TEST_F(StoreNotesTest, LeavesHoursOfRecordsThatItCannotRead) {
  AddSegment(0);
  PutRecord(Small(0));
  {
    MutexLock lock(store_->mutex);
    store_->segments.SetUnread({0, 1});
    store_->segments.at(0).has_new_hours = true;
  }
  notes_.WriteHours();
  EXPECT_EQ(HourOnDisk(0), 0u);
}

}  // namespace
}  // namespace kvasir
