#include "tier/record_sealer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tier/store_for_test.h"

namespace kvasir {
namespace {

class RecordSealerTest : public OpenStoreTest {
 protected:
  tl::expected<WriteId, WriteRefusal> Begin(const TestRecord& record, bool used_again = false) {
    RecordFacts facts = record.Facts();
    facts.used_again = used_again;
    return sealer_.Begin(facts);
  }
  uint32_t num_writes() const {
    MutexLock lock(store_->mutex);
    return store_->queues.num_writes;
  }

  RecordSealer sealer_{*store_};
};

TEST_F(RecordSealerTest, HandsOverBytesThatDoNotShowThePayload) {
  const TestRecord record = Small(0);
  const auto write = Begin(record);
  ASSERT_TRUE(write);
  sealer_.Seal(*write, record.payload);
  const auto index = static_cast<uint32_t>(*write);
  const std::span<const std::byte> sealed = store_->buffers.PayloadOf(index);
  EXPECT_FALSE(std::equal(record.payload.begin(), record.payload.end(), sealed.begin()));
  sealer_.End(*write);
  MutexLock lock(store_->mutex);
  EXPECT_EQ(store_->buffers.at(index).use, RecordBuffer::Use::kQueued);
  EXPECT_EQ(store_->queues.writes.size(), 1u);
  EXPECT_EQ(store_->queues.queued_bytes, options_.shape.slot_bytes());
  EXPECT_TRUE(store_->writer_has_news) << "the writer is woken";
}

TEST_F(RecordSealerTest, KeepsHalfOfADaysBudgetForWhatWasUsedAgain) {
  const uint64_t budget = 2 * *options_.cap_bytes;
  {
    MutexLock lock(store_->mutex);
    store_->figures.stats.written_today_bytes = budget / 2;
  }
  EXPECT_EQ(Begin(Small(0)).error(), WriteRefusal::kBudget);
  EXPECT_TRUE(Begin(Small(0), true));
  {
    MutexLock lock(store_->mutex);
    store_->figures.stats.written_today_bytes = budget;
  }
  EXPECT_EQ(Begin(Small(1), true).error(), WriteRefusal::kBudget);
}

TEST_F(RecordSealerTest, AWriteThatIsCancelledMeanwhileFreesItsBuffer) {
  const TestRecord record = Small(0);
  const auto write = Begin(record);
  ASSERT_TRUE(write);
  EXPECT_EQ(num_writes(), 1u);
  {
    MutexLock lock(store_->mutex);
    store_->Leave("the folder is gone");
  }
  sealer_.Seal(*write, record.payload);
  sealer_.End(*write);
  EXPECT_EQ(num_writes(), 0u);
  EXPECT_EQ(Begin(record).error(), WriteRefusal::kOff) << "the store is not open";
}

TEST_F(RecordSealerTest, WritesOfAChainFollowTheirParents) {
  EXPECT_EQ(Begin(Small(0, 1)).error(), WriteRefusal::kOff) << "nothing would find it";
  ASSERT_TRUE(Begin(Small(0, 0)));
  EXPECT_TRUE(Begin(Small(0, 1))) << "its parent is on its way";
  EXPECT_EQ(Begin(Small(0, 0)).error(), WriteRefusal::kKnown);
  EXPECT_TRUE(IsSound());
}

}  // namespace
}  // namespace kvasir
