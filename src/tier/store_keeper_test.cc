#include "tier/store_keeper.h"

#include <gtest/gtest.h>

#include <thread>

#include "base/log.h"
#include "tier/store_for_test.h"

namespace kvasir {
namespace {

// Opening a store, and leaving it.
class StoreKeeperTest : public OpenStoreTest {
 protected:
  StoreKeeperTest() {
    SetLogLevel(LogLevel::kError);
    AddSegment(0);
    PutRecord(Small(0));
    NewProcess();
  }
  void NewProcess() {
    keeper_.reset();
    MakeStore();
    reader_ = std::make_unique<RecordReader>(*store_);
    keeper_ = std::make_unique<StoreKeeper>(*store_, *reader_, progress_);
  }
  TierStats::State State() const {
    MutexLock lock(store_->mutex);
    return store_->state.now;
  }
  std::string Reason() const {
    MutexLock lock(store_->mutex);
    return store_->state.reason;
  }

  ProgressCall progress_;
  std::unique_ptr<RecordReader> reader_;
  std::unique_ptr<StoreKeeper> keeper_;
};

TEST_F(StoreKeeperTest, OpensTheStoreAndFindsItsRecords) {
  ASSERT_TRUE(keeper_->OpenFirst());
  EXPECT_EQ(State(), TierStats::State::kOn);
  EXPECT_EQ(num_stored(), 1u);
}

TEST_F(StoreKeeperTest, WaitsForAnotherProcessThatHasTheStore) {
  auto root = OpenTierFolder(storage_, options_.folder);
  auto other = OpenStoreFiles(storage_, std::move(*root), store_->id);
  ASSERT_TRUE(other && *other);
  ASSERT_TRUE(keeper_->OpenFirst());
  EXPECT_EQ(State(), TierStats::State::kWaiting);
  other->reset();
  (void)keeper_->Step();
  EXPECT_EQ(State(), TierStats::State::kWaiting) << "it is asked each second";
  storage_.PassTime(1);
  (void)keeper_->Step();
  EXPECT_EQ(State(), TierStats::State::kOn);
}

TEST_F(StoreKeeperTest, FailsWhereTheFolderCannotBeUsed) {
  storage_.faults.read_error = 65536;
  const Status failed = keeper_->OpenFirst();
  storage_.faults.read_error = 0;
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, Code::kIoError) << failed.error().message;
}

TEST_F(StoreKeeperTest, LeavesTheStoreForAMinuteAfterTooManyErrors) {
  ASSERT_TRUE(keeper_->OpenFirst());
  int calls = 0;
  progress_.Set([&] { ++calls; });
  for (int i = 0; i < 8; ++i) store_->CountError(&TierStats::fault_read, EIO);
  (void)keeper_->Step();
  EXPECT_EQ(State(), TierStats::State::kBroken);
  EXPECT_EQ(Reason(), "too many errors, last error: Input/output error");
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(num_stored(), 0u);
  EXPECT_EQ(store_->writing_files, nullptr);
  storage_.PassTime(59);
  (void)keeper_->Step();
  EXPECT_EQ(State(), TierStats::State::kBroken);
  storage_.PassTime(1);
  storage_.faults.read_error = 65536;
  (void)keeper_->Step();
  storage_.faults.read_error = 0;
  EXPECT_EQ(State(), TierStats::State::kBroken) << "it fails again";
  storage_.PassTime(60);
  (void)keeper_->Step();
  EXPECT_EQ(State(), TierStats::State::kOn);
  EXPECT_EQ(num_stored(), 1u);
}

TEST_F(StoreKeeperTest, WritesItsNotesWhenItIsClosed) {
  ASSERT_TRUE(keeper_->OpenFirst());
  EXPECT_FALSE(storage_.HasFile(std::string(kAboutFileName)));
  keeper_->Close(StoreKeeper::LastNotes::kWritten);
  EXPECT_TRUE(storage_.HasFile(std::string(kAboutFileName)));
  EXPECT_EQ(Reason(), "the tier is closed");
}

TEST(ProgressCall, CallsUntilItIsStopped) {
  ProgressCall progress;
  progress.Call();  // nothing is set
  int calls = 0;
  progress.Set([&] {
    ++calls;
    if (calls == 2) throw 1;
  });
  for (int i = 0; i < 3; ++i) progress.Call();
  EXPECT_EQ(calls, 3) << "a call that throws is not the last";
  progress.Stop();
  progress.Call();
  EXPECT_EQ(calls, 3);
}

TEST(ProgressCall, StopWaitsForACallUnderWay) {
  ProgressCall progress;
  Mutex mutex;
  std::condition_variable changed;
  bool is_in = false, may_end = false, has_stopped = false;
  progress.Set([&] {
    MutexLock lock(mutex);
    is_in = true;
    changed.notify_all();
    while (!may_end) lock.Wait(changed);
    EXPECT_FALSE(has_stopped);
  });
  std::thread caller([&] { progress.Call(); });
  {
    MutexLock lock(mutex);
    while (!is_in) lock.Wait(changed);
  }
  std::thread stopper([&] {
    progress.Stop();
    MutexLock lock(mutex);
    has_stopped = true;
  });
  {
    MutexLock lock(mutex);
    may_end = true;
    changed.notify_all();
  }
  caller.join();
  stopper.join();
  EXPECT_TRUE(has_stopped);
}

}  // namespace
}  // namespace kvasir
