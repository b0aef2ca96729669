#include "tier/record_writer.h"

#include <gtest/gtest.h>

#include <new>
#include <vector>

#include "base/log.h"
#include "tier/record_reader.h"
#include "tier/record_sealer.h"
#include "tier/store_flushes.h"
#include "tier/store_for_test.h"

namespace kvasir {
namespace {

// What goes to the disk: sealed by one thread, written by another.
class RecordWriterTest : public OpenStoreTest {
 protected:
  RecordWriterTest() { SetLogLevel(LogLevel::kError); }

  std::optional<WriteRefusal> Hand(const TestRecord& record, bool used_again = false) {
    RecordFacts facts = record.Facts();
    facts.used_again = used_again;
    const auto write = sealer_.Begin(facts);
    if (!write) return write.error();
    sealer_.Seal(*write, record.payload);
    sealer_.End(*write);
    return std::nullopt;
  }
  bool Has(const TestRecord& record) const {
    MutexLock lock(store_->mutex);
    const auto entry = store_->records.Find(record.facts.name);
    return entry && store_->records.at(*entry).state == RecordIndex::State::kStored;
  }
  std::vector<std::byte> ReadBack(const TestRecord& record) {
    RecordReader reader(*store_);
    const auto read = reader.Begin(record.facts.name);
    if (!read) return {};
    while (reader.Step()) {
    }
    std::vector<std::byte> payload(kSmallPayload);
    const bool is_unsealed = reader.Unseal(*read, record.Facts(), payload);
    reader.End(*read, ReadEnd::kUsed);
    return is_unsealed ? payload : std::vector<std::byte>();
  }

  SegmentFiles segments_{*store_};
  StoreRoom room_{*store_, segments_};
  RecordSealer sealer_{*store_};
  RecordWriter writer_{*store_, room_};
  StoreFlushes flushes_{*store_};
};

TEST_F(RecordWriterTest, StoresWhatItIsHanded) {
  EXPECT_FALSE(writer_.WriteIfDue()) << "nothing waits";
  for (uint32_t i = 0; i < 4; ++i) EXPECT_FALSE(Hand(Small(0, i)));
  EXPECT_EQ(Hand(Small(0, 0)), WriteRefusal::kKnown);
  EXPECT_EQ(Hand(Small(1, 0)), WriteRefusal::kNoBuffer) << "half of the buffers are for reads";
  EXPECT_FALSE(Has(Small(0, 0)));
  EXPECT_TRUE(writer_.WriteIfDue());
  for (uint32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(ReadBack(Small(0, i)), Small(0, i).payload) << i;
  }
  EXPECT_EQ(Stats().blocks, 4u);
  EXPECT_EQ(Stats().written_bytes, 4 * options_.shape.slot_bytes());
  EXPECT_FALSE(Hand(Small(1, 0))) << "the buffers are free";
  EXPECT_TRUE(IsSound());
}

TEST_F(RecordWriterTest, RefusesWhatHasNoParentAndWhatIsBeingErased) {
  EXPECT_EQ(Hand(Small(0, 1)), WriteRefusal::kOff);
  {
    MutexLock lock(store_->mutex);
    store_->leaving.erasing.push_back(TestRecord::Owner(0));
  }
  EXPECT_EQ(Hand(Small(0, 0)), WriteRefusal::kOff);
  EXPECT_FALSE(Hand(Small(1, 0, 1))) << "another owner";
}

TEST_F(RecordWriterTest, WritesPastHalfOfTheDaysBudgetOnlyWhatIsUsedAgain) {
  {
    MutexLock lock(store_->mutex);
    store_->figures.stats.written_today_bytes = store_->state.cap_bytes;
  }
  EXPECT_EQ(Hand(Small(0)), WriteRefusal::kBudget);
  EXPECT_FALSE(Hand(Small(0), true));
}

// A sync that fails says that nothing of the group is durable: it goes to another segment.
TEST_F(RecordWriterTest, WritesElsewhereWhatASyncRefused) {
  ASSERT_FALSE(Hand(Small(1)));
  EXPECT_TRUE(writer_.WriteIfDue()) << "and the key's file";
  ASSERT_FALSE(Hand(Small(0)));
  storage_.faults.sync_error = 65536;
  EXPECT_TRUE(writer_.WriteIfDue());
  storage_.faults.sync_error = 0;
  EXPECT_FALSE(Has(Small(0)));
  EXPECT_GE(Stats().fault_sync, 1u);
  EXPECT_TRUE(writer_.WriteIfDue());
  EXPECT_EQ(ReadBack(Small(0)), Small(0).payload);
  EXPECT_NE(SlotOf(Small(0))->segment, 0u);
  EXPECT_TRUE(IsSound());
}

TEST_F(RecordWriterTest, GivesUpAfterFourPlaces) {
  ASSERT_FALSE(Hand(Small(0)));
  ASSERT_TRUE(room_.MakeSlotsFree(1));
  storage_.faults.write_error = 65536;
  for (int i = 0; i < 8 && writer_.WriteIfDue(); ++i) {
    storage_.faults.write_error = 0;
    (void)room_.MakeSlotsFree(slots_per_segment());
    storage_.faults.write_error = 65536;
  }
  storage_.faults.write_error = 0;
  EXPECT_FALSE(Has(Small(0)));
  EXPECT_EQ(Stats().dropped_failed, 1u);
  MutexLock lock(store_->mutex);
  EXPECT_EQ(store_->queues.num_writes, 0u);
}

TEST_F(RecordWriterTest, AFlushIsAnsweredWhenWhatCameBeforeItIsStored) {
  std::optional<Result<TierFlushed>> answer;
  ASSERT_FALSE(Hand(Small(0)));
  flushes_.Add([&](Result<TierFlushed> flushed) { answer = std::move(flushed); });
  ASSERT_FALSE(Hand(Small(1)));
  flushes_.FindAnswers();
  EXPECT_FALSE(flushes_.Answer());
  EXPECT_TRUE(flushes_.is_waiting());
  EXPECT_TRUE(writer_.WriteIfDue());
  flushes_.FindAnswers();
  EXPECT_TRUE(flushes_.Answer());
  ASSERT_TRUE(answer && *answer);
  EXPECT_EQ((*answer)->blocks, 2u);
  EXPECT_FALSE(flushes_.is_waiting());
}

TEST_F(RecordWriterTest, AFlushSaysWhatCouldNotBeStored) {
  std::optional<Result<TierFlushed>> answer;
  int calls = 0;
  const auto done = [&](Result<TierFlushed> flushed) {
    if (++calls == 1) throw std::bad_alloc();
    answer = std::move(flushed);
  };
  flushes_.Add(done);
  {
    MutexLock lock(store_->mutex);
    ++store_->figures.stats.dropped_failed;
  }
  flushes_.FindAnswers();
  EXPECT_FALSE(flushes_.Answer()) << "the callback threw";
  EXPECT_TRUE(flushes_.Answer()) << "and is called again";
  ASSERT_TRUE(answer && !*answer);
  EXPECT_EQ(answer->error().code, Code::kUnavailable);
  EXPECT_NE(answer->error().message.find("1 block "), std::string::npos) << answer->error().message;
  calls = 1;
  answer.reset();
  flushes_.Add(done);
  flushes_.Refuse();
  ASSERT_TRUE(answer && !*answer);
}

TEST_F(RecordWriterTest, WhatFailedBeforeAFlushIsToldOnceToAllThatWait) {
  {
    MutexLock lock(store_->mutex);
    store_->figures.stats.dropped_failed = 2;
  }
  std::vector<bool> is_stored;
  const auto done = [&](const Result<TierFlushed>& flushed) {
    is_stored.push_back(flushed.has_value());
  };
  const auto answer = [&] {
    flushes_.FindAnswers();
    EXPECT_TRUE(flushes_.Answer());
  };
  flushes_.Add(done);
  flushes_.Add(done);
  answer();
  flushes_.Add(done);
  answer();
  EXPECT_EQ(is_stored, (std::vector<bool>{false, false, true}));
}

TEST_F(RecordWriterTest, DropsItsGroupWithTheStore) {
  ASSERT_FALSE(Hand(Small(0)));
  {
    MutexLock lock(store_->mutex);
    store_->Leave("a test");
  }
  writer_.DropGroup();
  EXPECT_FALSE(writer_.WriteIfDue());
  EXPECT_EQ(Hand(Small(1)), WriteRefusal::kOff);
  EXPECT_EQ(Stats().dropped_failed, 1u);
}

}  // namespace
}  // namespace kvasir
