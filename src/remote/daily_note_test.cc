#include "remote/daily_note.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "remote/remote_on_fake_for_test.h"

namespace kvasir {
namespace {

constexpr uint64_t kAhead = 1000;

class DailyNoteTest : public RemoteTierOnFake {
 protected:
  ~DailyNoteTest() override {
    std::filesystem::remove_all(std::filesystem::path(folder_).parent_path());
  }
  static std::string MadeFolder() {
    std::string pattern = testing::TempDir() + "/kvasir-daily-XXXXXX";
    return mkdtemp(pattern.data());
  }
  uint64_t NotedOf(uint64_t day) const { return DailyNote(folder_, kAhead).BytesOf(day); }

  const std::string folder_ = MadeFolder() + "/epochs";
};

TEST_F(DailyNoteTest, AProcessThatIsKilledHasCountedAllItWroteAndLittleMore) {
  std::optional<DailyNote> note(std::in_place, folder_, kAhead);
  EXPECT_EQ(note->BytesOf(5), 0u);
  note->Cover(5, 100);
  note->Cover(5, 900);
  note.reset();
  EXPECT_EQ(NotedOf(5), 100 + kAhead);
  note.emplace(folder_, kAhead);
  note->Cover(5, 100 + kAhead + 1);
  note.reset();
  EXPECT_EQ(NotedOf(5), 100 + kAhead + 1 + kAhead);
  EXPECT_EQ(NotedOf(6), 0u) << "another day";
}

TEST_F(DailyNoteTest, AnEndLeavesTheCountItself) {
  {
    DailyNote note(folder_, kAhead);
    note.Cover(5, 123'456'789'012);
    note.Settle(5, 123'456'789'012);
  }
  EXPECT_EQ(NotedOf(5), 123'456'789'012u);
  {
    DailyNote note(folder_, kAhead);
    note.Cover(12345, 7);  // a shorter count of a later day
    note.Settle(12345, 7);
  }
  EXPECT_EQ(NotedOf(12345), 7u);
  EXPECT_EQ(NotedOf(5), 0u);
}

TEST_F(DailyNoteTest, AProcessBesideItCountsAlone) {
  DailyNote first(folder_, kAhead);
  first.Cover(5, 100);
  DailyNote second(folder_, kAhead);
  EXPECT_EQ(second.BytesOf(5), 0u);
  second.Cover(5, 1'000'000);
  EXPECT_EQ(second.BytesOf(5), 0u);
}

TEST_F(DailyNoteTest, AFileThatIsNotOneHasNoBytes) {
  std::filesystem::create_directories(folder_);
  for (const char* text : {"", "5", "5 ", "5 6", "a 6\n", "5 b\n", "5 -6\n", "-5 6\n",
                           "99999999999999999999999 1\n", "5 99999999999999999999999\n"}) {
    std::ofstream(folder_ + "/written") << text;
    EXPECT_EQ(NotedOf(5), 0u) << text;
  }
  std::ofstream(folder_ + "/written") << "5 6\n";
  EXPECT_EQ(NotedOf(5), 6u);
}

TEST_F(DailyNoteTest, ATierGoesOnWithTheDaysBytesAfterARestart) {
  RemoteTierOptions options = SmallOptions(fake_.address());
  options.epochs = folder_;
  options.daily_bytes = 20 * options.value_bytes();
  Open(options);
  for (uint32_t i = 0; i < 10; ++i) {
    ASSERT_TRUE(driver_->Write(FaultRecord(0, i))) << i;
    ASSERT_TRUE(driver_->Flush());
  }
  const auto refused = driver_->Write(FaultRecord(0, 10));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error(), WriteRefusal::kBudget);
  EXPECT_EQ(tier_->Remote().written_today_bytes, 10 * options.value_bytes());
  driver_.reset();
  tier_.reset();
  Open(options);
  EXPECT_EQ(tier_->Remote().written_today_bytes, 10 * options.value_bytes());
  const auto again = driver_->Write(FaultRecord(1, 0));
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error(), WriteRefusal::kBudget);
}

}  // namespace
}  // namespace kvasir
