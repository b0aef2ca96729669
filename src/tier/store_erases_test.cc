#include "tier/store_erases.h"

#include <gtest/gtest.h>

#include "base/hex.h"
#include "base/log.h"
#include "tier/erase_files.h"
#include "tier/store_for_test.h"

namespace kvasir {
namespace {

// Erases, forgets, and the slots that they zero.
class StoreErasesTest : public OpenStoreTest {
 protected:
  StoreErasesTest() { SetLogLevel(LogLevel::kError); }

  void Erase(uint32_t owner) {
    erases_.Erase(TestRecord::Owner(owner), [this](auto erased) { Keep(std::move(erased)); });
  }
  void Forget(const TestRecord& from, size_t tokens) {
    erases_.Forget(TierDriver::ForgetOf(from, tokens),
                   [this](auto erased) { Keep(std::move(erased)); });
  }
  void Keep(Result<TierErased> erased) { answer_ = std::move(erased); }
  bool Run() {
    return erases_.Run([this] { ++num_leaves_; });
  }
  bool HasKeyOf(uint32_t owner) {
    return storage_.HasFile(KeyFileName(options_.secret, TestRecord::Owner(owner)));
  }
  bool HasIntent() {
    const auto names = storage_.List(store_->writing_files->root.id());
    return std::ranges::any_of(
        *names, [](const std::string& name) { return name.starts_with(kIntentPrefix); });
  }

  SegmentFiles segments_{*store_};
  StoreRoom room_{*store_, segments_};
  CondemnedSlots condemned_{*store_, segments_};
  ProgressCall progress_;
  StoreErases erases_{*store_, segments_, condemned_, room_, progress_};
  std::optional<Result<TierErased>> answer_;
  int num_leaves_ = 0;
};

TEST_F(StoreErasesTest, AnOwnersRecordsAreGoneAtOnceAndItsSlotsLater) {
  AddSegment(0);
  for (uint32_t i = 0; i < 3; ++i) PutRecord(Small(i, 0, 0));
  PutRecord(Small(9, 0, 1));
  const SlotRef slot = *SlotOf(Small(1));
  Erase(0);
  EXPECT_FALSE(SlotOf(Small(1)));
  EXPECT_FALSE(answer_);
  EXPECT_FALSE(IsZeroOnDisk(slot));
  EXPECT_EQ(StateOf(slot), SegmentTable::SlotState::kCondemned);
  EXPECT_TRUE(Run());
  ASSERT_TRUE(answer_ && *answer_);
  EXPECT_EQ((*answer_)->blocks, 3u);
  EXPECT_EQ((*answer_)->bytes, 3 * options_.shape.slot_bytes());
  EXPECT_TRUE(IsZeroOnDisk(slot));
  EXPECT_FALSE(HasKeyOf(0));
  EXPECT_FALSE(HasIntent());
  EXPECT_TRUE(SlotOf(Small(9)));
  EXPECT_TRUE(HasKeyOf(1));
  EXPECT_TRUE(IsSound());
  EXPECT_FALSE(Run()) << "nothing is due";
}

TEST_F(StoreErasesTest, AnEraseThatFailsIsTriedAgainEachMinute) {
  AddSegment(0);
  PutRecord(Small(0));
  Erase(0);
  storage_.faults.sync_error = 65536;
  EXPECT_TRUE(Run());
  storage_.faults.sync_error = 0;
  ASSERT_TRUE(answer_ && !*answer_);
  EXPECT_EQ(answer_->error().code, Code::kUnavailable);
  {
    MutexLock lock(store_->mutex);
    EXPECT_TRUE(store_->leaving.IsErasing(TestRecord::Owner(0)));
  }
  EXPECT_FALSE(Run());
  storage_.PassTime(60);
  (void)Run();
  EXPECT_FALSE(HasKeyOf(0));
  EXPECT_FALSE(HasIntent());
  MutexLock lock(store_->mutex);
  EXPECT_FALSE(store_->leaving.IsErasing(TestRecord::Owner(0)));
  EXPECT_FALSE(store_->records.Find(Small(0).facts.name));
}

// On a device that was full before the first start nothing stays, and there is no room to note it.
TEST_F(StoreErasesTest, AnEraseThatFindsNothingNeedsNoRoom) {
  storage_.faults.no_space = 65536;
  Erase(3);
  EXPECT_TRUE(Run());
  ASSERT_TRUE(answer_);
  ASSERT_TRUE(*answer_) << answer_->error().message;
  EXPECT_EQ((*answer_)->blocks, 0u);
  storage_.faults.no_space = 0;
  AddSegment(0);
  PutRecord(Small(0));
  storage_.faults.no_space = 65536;
  answer_.reset();
  Erase(0);
  EXPECT_TRUE(Run());
  ASSERT_TRUE(answer_);
  EXPECT_FALSE(*answer_) << "there is a key, and no intent can be written";
}

TEST_F(StoreErasesTest, ForgetsWhatBeginsWithATextAndAllThatFollows) {
  AddSegment(0);
  for (uint32_t i = 0; i < 4; ++i) PutRecord(Small(0, i));
  PutRecord(Small(1, 0));
  const SlotRef third = *SlotOf(Small(0, 2));
  Forget(Small(0, 2), 3);
  {
    MutexLock lock(store_->mutex);
    EXPECT_TRUE(store_->leaving.IsForgetting(TestRecord::Owner(0)));
  }
  EXPECT_TRUE(Run());
  ASSERT_TRUE(answer_ && *answer_) << answer_->error().message;
  EXPECT_EQ((*answer_)->blocks, 2u);
  EXPECT_TRUE(SlotOf(Small(0, 1)) && SlotOf(Small(1, 0)));
  EXPECT_FALSE(SlotOf(Small(0, 2)) || SlotOf(Small(0, 3)));
  EXPECT_TRUE(IsZeroOnDisk(third));
  EXPECT_FALSE(storage_.HasFile("forget")) << "the intent is gone";
  EXPECT_EQ(num_leaves_, 0);
}

TEST_F(StoreErasesTest, AForgetZerosCopiesInFreeSlots) {
  AddSegment(0);
  PutRecord(Small(0));
  PutRecord(Small(1));
  const SlotRef copy = *SlotOf(Small(1));
  {
    MutexLock lock(store_->mutex);
    store_->DropRecord(*store_->records.Find(Small(1).facts.name));
  }
  EXPECT_FALSE(IsZeroOnDisk(copy)) << "it was evicted: its bytes stay";
  Forget(Small(0), 1);
  EXPECT_TRUE(Run());
  EXPECT_TRUE(IsZeroOnDisk(copy));
}

TEST_F(StoreErasesTest, AForgetThatFailsLeavesTheStore) {
  AddSegment(0);
  PutRecord(Small(0));
  Forget(Small(0), 1);
  storage_.faults.sync_error = 65536;
  EXPECT_TRUE(Run());
  storage_.faults.sync_error = 0;
  EXPECT_EQ(num_leaves_, 1);
  ASSERT_TRUE(answer_ && !*answer_);
}

TEST_F(StoreErasesTest, AStartFinishesAForget) {
  AddSegment(0);
  PutRecord(Small(0));
  PutRecord(Small(1));
  const SlotRef slot = *SlotOf(Small(1));
  std::vector<bool> slots(slots_per_segment());
  slots[slot.slot] = true;
  ASSERT_TRUE(WriteForgetIntent(storage_, folder(), options_.secret, store_->id,
                                {.segments = {{0, 100, slots}}}));
  EXPECT_TRUE(erases_.FinishForget());
  EXPECT_TRUE(IsZeroOnDisk(slot));
  EXPECT_FALSE(IsZeroOnDisk(*SlotOf(Small(0))));
  EXPECT_FALSE(storage_.HasFile("forget"));
}

TEST_F(StoreErasesTest, AStartFinishesAnEraseThatNoProcessIsAt) {
  AddSegment(0);
  PutRecord(Small(0));
  const EraseIntent intent{ToHex(store_->id), KeyFileName(options_.secret, TestRecord::Owner(0))};
  const auto root = Own(storage_, storage_.OpenRoot(options_.folder));
  ASSERT_TRUE(WriteIntent(storage_, root->id(), options_.secret, intent));
  EXPECT_TRUE(erases_.FinishErases(root->id()));
  EXPECT_TRUE(HasKeyOf(0)) << "the store is locked: its process is at it";
  const SlotRef slot = *SlotOf(Small(0));
  {
    MutexLock lock(store_->mutex);
    store_->state.files.reset();
  }
  store_->writing_files.reset();
  EXPECT_TRUE(erases_.FinishErases(root->id()));
  EXPECT_FALSE(HasKeyOf(0));
  OpenFiles();
  EXPECT_TRUE(IsZeroOnDisk(slot));
}

TEST_F(StoreErasesTest, AnswersAllWhenItIsClosed) {
  Erase(0);
  erases_.Refuse();
  ASSERT_TRUE(answer_ && !*answer_);
  EXPECT_EQ(answer_->error().code, Code::kUnavailable);
  EXPECT_FALSE(Run());
  answer_.reset();
  {
    MutexLock lock(store_->mutex);
    store_->is_stopping = true;
  }
  Forget(Small(0), 1);
  EXPECT_TRUE(answer_ && !*answer_) << "and none is taken any more";
}

}  // namespace
}  // namespace kvasir
