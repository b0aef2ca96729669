#include "session/rows_copy.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "session/sealed_rows_for_test.h"
#include "tier/store_files.h"

namespace kvasir {
namespace {

using Old = SealedRows::Old;

// Time passes by pauses alone.
class PausedStorage : public RealStorage {
 public:
  uint64_t MonotonicNs() override { return paused_ms_ * 1'000'000; }
  void Pause(uint64_t milliseconds) override { paused_ms_ += milliseconds; }

 private:
  uint64_t paused_ms_ = 0;
};

// Calls a function when the end of the n-th file was read.
class WatchedStorage : public RealStorage {
 public:
  WatchedStorage(int ends, std::function<void()> then) : ends_(ends), then_(std::move(then)) {}
  IoResult<uint64_t> ReadSome(FileId file, std::span<const std::span<std::byte>> pieces,
                              uint64_t offset) override {
    auto read = RealStorage::ReadSome(file, pieces, offset);
    if (read && *read == 0 && --ends_ == 0) then_();
    return read;
  }
  int ends() const { return ends_; }

 private:
  int ends_;
  std::function<void()> then_;
};

class RowsCopyTest : public SealedRowsTest {
 protected:
  Result<RowsCopy> Copy() { return RowsCopy::Make(rows_.folder, parent_ / "copy", storage_); }
  // Opens the copy as `kvasir backup` does: its files go at once.
  std::unique_ptr<SealedRows> OpenCopy() {
    const auto copy = Copy();
    EXPECT_TRUE(copy) << copy.error().message;
    if (!copy) return nullptr;
    SealedRowsOptions options = rows_;
    options.folder = copy->folder();
    auto opened = SealedRows::Open(options, storage_);
    EXPECT_TRUE(opened) << opened.error().message;
    return opened ? std::move(*opened) : nullptr;
  }
  bool HasLeftovers() const {
    for (const auto& entry : std::filesystem::directory_iterator(parent_)) {
      if (entry.path().filename().string().starts_with("copy")) return true;
    }
    return false;
  }
};

TEST_F(RowsCopyTest, HasTheRowsOfAFileThatIsOpenAndOfItsLog) {
  const auto rows = Open();
  const std::string longer(300'000, 'x');
  ASSERT_TRUE(rows->Put(kMira, "sess_1", 1, 100, Bytes("one"), Old::kScrubbed));
  ASSERT_TRUE(rows->Put(kMira, "sess_1", 2, 101, Bytes("two"), Old::kStays));
  ASSERT_TRUE(rows->Put(kOther, "sess_2", 1, 102, Bytes(longer), Old::kStays));
  ASSERT_GT(std::filesystem::file_size(PathOf("sessions.db-wal")), 300'000u);
  {
    const auto copy = OpenCopy();
    ASSERT_TRUE(copy);
    EXPECT_FALSE(HasLeftovers());
    EXPECT_EQ(copy->List()->size(), 2u);
    EXPECT_EQ(TextOf(copy->Get(kMira, "sess_1")), "two");
    EXPECT_EQ(TextOf(copy->Get(kOther, "sess_2")), longer);
  }
  // The file of before goes on, and has what it had.
  ASSERT_TRUE(rows->Put(kMira, "sess_1", 3, 103, Bytes("three"), Old::kStays));
  EXPECT_EQ(TextOf(rows->Get(kMira, "sess_1")), "three");
}

TEST_F(RowsCopyTest, WaitsForWhoeverHasTheFolderAndSaysSoInTheEnd) {
  ASSERT_TRUE(Open()->Put(kMira, "sess_1", 1, 100, Bytes("one"), Old::kStays));
  const auto root = Own(storage_, storage_.OpenRoot(rows_.folder));
  const auto lock = LockTierFolder(storage_, root->id());
  ASSERT_TRUE(lock);
  PausedStorage storage;
  const auto copy = RowsCopy::Make(rows_.folder, parent_ / "copy", storage);
  ASSERT_FALSE(copy);
  EXPECT_EQ(copy.error().code, Code::kUnavailable);
  EXPECT_NE(copy.error().message.find("change too often"), std::string::npos);
  EXPECT_FALSE(HasLeftovers());
}

// Both rows are in the log alone; the erase moves it into the file and empties it.
TEST_F(RowsCopyTest, IsMadeAgainWhereAnEraseWritesMeanwhile) {
  for (int ends = 1; ends <= 4; ++ends) {  // two keys, the file, its log
    const auto rows = Open();
    ASSERT_TRUE(rows->Put(kMira, "sess_1", 1, 100, Bytes("stays"), Old::kStays));
    ASSERT_TRUE(rows->Put(kOther, "sess_2", 1, 100, Bytes("goes"), Old::kStays));
    WatchedStorage storage(ends, [&] { ASSERT_TRUE(rows->RemoveOwner(kOther)); });
    const auto copy = RowsCopy::Make(rows_.folder, parent_ / "copy", storage);
    ASSERT_TRUE(copy) << copy.error().message;
    EXPECT_LE(storage.ends(), 0);
    SealedRowsOptions options = rows_;
    options.folder = copy->folder();
    const auto opened = SealedRows::Open(options, storage_);
    ASSERT_TRUE(opened) << opened.error().message;
    EXPECT_EQ((*opened)->List()->size(), 1u) << ends;
    EXPECT_EQ(TextOf((*opened)->Get(kMira, "sess_1")), "stays") << ends;
    ASSERT_TRUE(rows->Remove(kMira, "sess_1"));
  }
}

// Rows of each number have one text: a copy that mixes two times has a row that does not open, or
// lacks one that was there all the time.
TEST_F(RowsCopyTest, IsOfOneInstantWhileRowsAreWrittenAndErased) {
  constexpr int kRows = 8, kCopies = 12;
  const auto rows = Open();
  const auto text = [](int row, uint64_t number) {
    return std::to_string(row) + ":" + std::to_string(number) + std::string(3000 * row, 'x');
  };
  std::vector<std::atomic<uint64_t>> begun(kRows), done(kRows);
  for (int row = 0; row < kRows; ++row) {
    ASSERT_TRUE(rows->Put(row % 2 ? kMira : kOther, "sess_" + std::to_string(row), 1, 100,
                          Bytes(text(row, 1)), Old::kStays));
    begun[row] = done[row] = 1;
  }
  std::atomic<bool> stops = false;
  std::thread writer([&] {
    std::minstd_rand random(7);
    const Digest third{3};
    for (uint64_t turn = 1; !stops; ++turn) {
      const int row = static_cast<int>(random() % kRows);
      const uint64_t number = ++begun[row];
      ASSERT_TRUE(rows->Put(row % 2 ? kMira : kOther, "sess_" + std::to_string(row), number, 100,
                            Bytes(text(row, number)), random() % 2 ? Old::kStays : Old::kScrubbed));
      done[row] = number;
      if (turn % 8 != 0) continue;
      ASSERT_TRUE(rows->Put(third, "sess_third", 1, 100, Bytes("third"), Old::kStays));
      ASSERT_TRUE(rows->RemoveOwner(third));
    }
  });
  for (int i = 0; i < kCopies; ++i) {
    std::vector<uint64_t> least;
    for (const auto& number : done) least.push_back(number);
    const auto copy = OpenCopy();
    ASSERT_TRUE(copy);
    std::map<std::string, RowFacts> listed;
    const auto facts = copy->List();
    ASSERT_TRUE(facts) << facts.error().message;
    for (const RowFacts& row : *facts) listed[row.id] = row;
    for (int row = 0; row < kRows; ++row) {
      const std::string id = "sess_" + std::to_string(row);
      const uint64_t number = listed[id].number;
      EXPECT_GE(number, least[row]) << id;
      EXPECT_LE(number, begun[row]) << id;
      EXPECT_EQ(TextOf(copy->Get(row % 2 ? kMira : kOther, id)), text(row, number));
    }
    if (listed.contains("sess_third")) {
      EXPECT_EQ(TextOf(copy->Get(Digest{3}, "sess_third")), "third");
    }
  }
  stops = true;
  writer.join();
  EXPECT_FALSE(HasLeftovers());
}

}  // namespace
}  // namespace kvasir
