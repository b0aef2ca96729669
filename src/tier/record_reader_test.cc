#include "tier/record_reader.h"

#include <gtest/gtest.h>

#include <vector>

#include "tier/store_for_test.h"

namespace kvasir {
namespace {

class RecordReaderTest : public OpenStoreTest {
 protected:
  // Reads the bytes of the record. Empty: they could not be read or opened.
  std::vector<std::byte> Read(const TestRecord& record, ReadId read) {
    std::vector<std::byte> payload(kSmallPayload);
    const bool is_unsealed = reader_.Unseal(read, record.Facts(), payload);
    reader_.End(read, is_unsealed ? ReadEnd::kUsed : ReadEnd::kDamaged);
    return is_unsealed ? payload : std::vector<std::byte>();
  }
  void Damage(const SlotRef& slot) {
    const OpenedFile file(storage_,
                          *storage_.OpenFile(folder(), SegmentFileName(0), OpenMode::kWrite));
    const SegmentShape shape = ShapeOfSegment(options_.shape, kSegmentBytes);
    const std::array<std::byte, 4> other = {std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}};
    ASSERT_TRUE(WriteAll(storage_, file.id(), other, shape.payload_at(slot.slot) + 9));
  }
  uint32_t BuffersInUse() const {
    MutexLock lock(store_->mutex);
    return store_->queues.num_reads;
  }

  RecordReader reader_{*store_};
};

TEST_F(RecordReaderTest, ReadsRecordsSideBySideAtOnce) {
  AddSegment(0);
  std::vector<TestRecord> records;
  for (uint32_t i = 0; i < 5; ++i) records.push_back(Small(i));
  for (const TestRecord& record : records) PutRecord(record);
  std::vector<ReadId> reads;
  for (const TestRecord& record : records) {
    const auto read = reader_.Begin(record.facts.name);
    ASSERT_TRUE(read);
    EXPECT_EQ(reader_.StateOf(*read), ReadState::kReading);
    reads.push_back(*read);
  }
  const uint64_t calls = storage_.num_calls();
  EXPECT_TRUE(reader_.Step());
  EXPECT_LE(storage_.num_calls() - calls, 3u) << "it opens a file, reads headers, reads payloads";
  EXPECT_FALSE(reader_.Step());
  for (size_t i = 0; i < reads.size(); ++i) {
    EXPECT_EQ(reader_.StateOf(reads[i]), ReadState::kArrived);
    EXPECT_EQ(Read(records[i], reads[i]), records[i].payload) << i;
  }
  EXPECT_EQ(BuffersInUse(), 0u);
  EXPECT_EQ(Stats().read_bytes, 5 * options_.shape.slot_bytes());
}

TEST_F(RecordReaderTest, SharesAReadAndKnowsWhenItsBuffersAreUsed) {
  AddSegment(0);
  PutRecord(Small(0));
  EXPECT_FALSE(reader_.Begin(Small(1).facts.name)) << "it is not stored";
  const auto first = reader_.Begin(Small(0).facts.name);
  const auto second = reader_.Begin(Small(0).facts.name);
  ASSERT_TRUE(first && second);
  EXPECT_EQ(*first, *second);
  EXPECT_TRUE(reader_.HasRoom());
  std::vector<ReadId> more;
  for (uint32_t i = 1; i < 8; ++i) {
    PutRecord(Small(i));
    more.push_back(*reader_.Begin(Small(i).facts.name));
  }
  EXPECT_FALSE(reader_.HasRoom());
  PutRecord(Small(8));
  EXPECT_FALSE(reader_.Begin(Small(8).facts.name));
  reader_.End(*first, ReadEnd::kNotUsed);
  for (const ReadId read : more) reader_.End(read, ReadEnd::kNotUsed);
  while (reader_.Step()) {
  }
  EXPECT_EQ(Read(Small(0), *second), Small(0).payload) << "who still wants it has it";
  EXPECT_EQ(BuffersInUse(), 0u);
}

TEST_F(RecordReaderTest, ADamagedRecordLeaves) {
  AddSegment(0);
  PutRecord(Small(0));
  PutRecord(Small(1));
  Damage(*SlotOf(Small(0)));
  const auto bad = reader_.Begin(Small(0).facts.name), good = reader_.Begin(Small(1).facts.name);
  while (reader_.Step()) {
  }
  EXPECT_TRUE(Read(Small(0), *bad).empty());
  EXPECT_EQ(Read(Small(1), *good), Small(1).payload);
  EXPECT_FALSE(SlotOf(Small(0)));
  EXPECT_EQ(Stats().fault_damaged, 1u);
  EXPECT_TRUE(IsSound());
}

// A call for several records that fails is done again for each of them.
TEST_F(RecordReaderTest, WhatDoesNotReadLeaves) {
  AddSegment(0);
  for (uint32_t i = 0; i < 3; ++i) PutRecord(Small(i));
  std::vector<ReadId> reads;
  for (uint32_t i = 0; i < 3; ++i) reads.push_back(*reader_.Begin(Small(i).facts.name));
  storage_.faults.read_error = 65536;
  EXPECT_TRUE(reader_.Step());
  storage_.faults.read_error = 0;
  for (const ReadId read : reads) {
    EXPECT_EQ(reader_.StateOf(read), ReadState::kFailed);
    reader_.End(read, ReadEnd::kNotUsed);
  }
  EXPECT_FALSE(SlotOf(Small(0)));
  EXPECT_EQ(Stats().fault_read, 1u);
  EXPECT_EQ(BuffersInUse(), 0u);
  EXPECT_TRUE(IsSound());
}

TEST_F(RecordReaderTest, UnsealsNothingForAnotherOwnerOrText) {
  AddSegment(0);
  PutRecord(Small(0));
  const auto read = reader_.Begin(Small(0).facts.name);
  while (reader_.Step()) {
  }
  std::vector<std::byte> payload(kSmallPayload);
  const TestRecord record = Small(0), other = Small(1);
  RecordFacts facts = record.Facts();
  facts.owner = TestRecord::Owner(1);
  EXPECT_FALSE(reader_.Unseal(*read, facts, payload));
  facts = record.Facts();
  facts.tokens = other.tokens;
  EXPECT_FALSE(reader_.Unseal(*read, facts, payload));
  facts = record.Facts();
  EXPECT_TRUE(reader_.Unseal(*read, facts, payload));
  EXPECT_EQ(payload, record.payload);
  reader_.End(*read, ReadEnd::kUsed);
}

}  // namespace
}  // namespace kvasir
