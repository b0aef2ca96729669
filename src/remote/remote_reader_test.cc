#include "remote/remote_reader.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "remote/remote_parts_for_test.h"
#include "remote/remote_value.h"

namespace kvasir {
namespace {

class RemoteReaderTest : public RemoteParts {
 protected:
  explicit RemoteReaderTest(RemoteTierOptions options = SmallOptions())
      : RemoteParts(std::move(options)) {}
  ~RemoteReaderTest() override { Stop(); }

  // Has the store be known to have a record.
  void See(const TestRecord& record, OwnerId owner) {
    MutexLock lock(store_->mutex);
    store_->names.Put(record.facts.name, owner)->seen_s = store_->NowS();
  }
  // Puts a sealed value into the store.
  void Put(const TestRecord& record) {
    const std::string name = NameOf(record);
    const RemoteTierOptions& options = store_->options;
    const AesKey random = TestRecord::Filled(9);
    std::vector<std::byte> value(RawValueBytes(options.shape));
    WriteValueFacts(options.shape, options.identity, record.Facts(), {}, value);
    const auto bytes = SealValue(
        {.shape = options.shape, .identity = options.identity, .random = random, .name = name},
        record.payload, value, nullptr);
    ASSERT_TRUE(bytes);
    fake_.Put(name, {reinterpret_cast<const char*>(value.data()), *bytes});
  }
  ReadState EndOf(ReadId read) {
    EXPECT_TRUE(WaitUntil([&](RemoteStore& store) KV_REQUIRES(store.mutex) {
      const auto use = store.buffers[static_cast<uint32_t>(read)].use;
      return use != RemoteBuffer::Use::kReading;
    }));
    return reader_.StateOf(read);
  }
  RemoteStats Figures() {
    MutexLock lock(store_->mutex);
    return store_->figures.stats;
  }

  RemoteReader reader_{*store_};
  const TestRecord record_ = FaultRecord(0, 0);
};

TEST_F(RemoteReaderTest, BeginsOnlyWhatTheStoreWasSeenToHave) {
  EXPECT_FALSE(reader_.Begin(record_.facts.name)) << "the store is not connected";
  const OwnerId owner = HaveOwner();
  EXPECT_FALSE(reader_.Begin(record_.facts.name)) << "it was not looked for";
  See(record_, owner);
  const auto set_erases = [&](uint32_t erases) {
    MutexLock lock(store_->mutex);
    store_->at(owner).num_erases = erases;
  };
  set_erases(1);
  EXPECT_FALSE(reader_.Begin(record_.facts.name)) << "its owner is being erased";
  set_erases(0);
  const auto read = reader_.Begin(record_.facts.name);
  ASSERT_TRUE(read);
  EXPECT_EQ(reader_.StateOf(*read), ReadState::kReading);
  {
    MutexLock lock(store_->mutex);
    store_->CancelOwner(owner);
  }
  EXPECT_EQ(reader_.StateOf(*read), ReadState::kErased);
  EXPECT_FALSE(reader_.Begin(record_.facts.name)) << "its name is forgotten";
}

TEST_F(RemoteReaderTest, ReadsOfARecordShareABufferAndOthersTakeOneEach) {
  const OwnerId owner = HaveOwner();
  const uint32_t num_buffers = store_->buffers.size();
  std::vector<ReadId> reads;
  for (uint32_t i = 0; i < num_buffers; ++i) {
    EXPECT_TRUE(reader_.HasRoom()) << i;
    See(FaultRecord(0, i), owner);
    const auto read = reader_.Begin(FaultRecord(0, i).facts.name);
    ASSERT_TRUE(read) << i;
    reads.push_back(*read);
  }
  EXPECT_FALSE(reader_.HasRoom());
  EXPECT_EQ(reader_.Begin(FaultRecord(0, 3).facts.name), reads[3]);
  See(FaultRecord(1, 0), owner);
  EXPECT_FALSE(reader_.Begin(FaultRecord(1, 0).facts.name)) << "no buffer is free";
}

TEST_F(RemoteReaderTest, BringsAValueAndUnsealsItForItsFactsAlone) {
  const OwnerId owner = HaveOwner();
  See(record_, owner);
  Put(record_);
  const auto read = reader_.Begin(record_.facts.name);
  ASSERT_TRUE(read);
  ASSERT_EQ(reader_.Begin(record_.facts.name), read);
  Run([this] { reader_.Loop(); });
  ASSERT_EQ(EndOf(*read), ReadState::kArrived);
  std::vector<std::byte> payload(record_.payload.size());
  RecordFacts other = record_.Facts();
  other.parent = TestRecord::Filled(99);
  EXPECT_FALSE(reader_.Unseal(*read, other, payload));
  ASSERT_TRUE(reader_.Unseal(*read, record_.Facts(), payload));
  EXPECT_EQ(payload, record_.payload);
  reader_.End(*read, ReadEnd::kUsed);
  EXPECT_EQ(reader_.StateOf(*read), ReadState::kArrived) << "the other read has it still";
  reader_.End(*read, ReadEnd::kNotUsed);
  EXPECT_EQ(Figures().read_blocks, 1u);
  EXPECT_EQ(Figures().read_bytes, RawValueBytes(store_->options.shape));
  MutexLock lock(store_->mutex);
  EXPECT_EQ(store_->queues.num_reads, 0u);
}

// A record's lifetime begins anew when it is read, at most once an hour.
TEST_F(RemoteReaderTest, ARecordsLifetimeBeginsAnewOnceAnHour) {
  const OwnerId owner = HaveOwner();
  See(record_, owner);
  Put(record_);
  Run([this] { reader_.Loop(); });
  const auto refreshed_s = [this](std::optional<uint32_t> set) {
    MutexLock lock(store_->mutex);
    RemoteNames::Entry& entry = *store_->names.Find(record_.facts.name);
    if (set) entry.refreshed_s = *set;
    return entry.refreshed_s;
  };
  const auto read_it = [this] {
    const auto read = reader_.Begin(record_.facts.name);
    ASSERT_TRUE(read);
    ASSERT_EQ(EndOf(*read), ReadState::kArrived);
    reader_.End(*read, ReadEnd::kUsed);
  };
  refreshed_s(1);  // in the store's first second
  read_it();
  EXPECT_EQ(fake_.Count("EXPIRE"), 0u) << "it was written less than an hour ago";
  refreshed_s(0);  // another machine wrote it
  read_it();
  EXPECT_TRUE(WaitUntil([this](RemoteStore&) { return fake_.Count("EXPIRE") == 1; }));
  EXPECT_NE(refreshed_s({}), 0u);
  read_it();
  EXPECT_EQ(fake_.Count("EXPIRE"), 1u);
  EXPECT_EQ(fake_.Count("GET"), 3u);

  RemoteNames::Entry entry;
  entry.refreshed_s = 5;
  EXPECT_FALSE(entry.IsDue(5 + 3599));
  EXPECT_TRUE(entry.IsDue(5 + 3600));
}

TEST_F(RemoteReaderTest, ARecordThatTheStoreLetGoIsForgotten) {
  const OwnerId owner = HaveOwner();
  See(record_, owner);
  const auto read = reader_.Begin(record_.facts.name);
  ASSERT_TRUE(read);
  Run([this] { reader_.Loop(); });
  EXPECT_EQ(EndOf(*read), ReadState::kGone);
  EXPECT_EQ(Figures().fault_missing, 1u);
  EXPECT_FALSE(reader_.Begin(record_.facts.name));
  reader_.End(*read, ReadEnd::kNotUsed);
}

TEST_F(RemoteReaderTest, WhatIsNoValueMakesTheOwnersRecordsDoubtful) {
  const OwnerId owner = HaveOwner();
  const TestRecord other = FaultRecord(0, 1);
  See(record_, owner);
  See(other, owner);
  fake_.Put(NameOf(record_), "no value");
  Put(other);
  const auto read = reader_.Begin(record_.facts.name);
  ASSERT_TRUE(read);
  Run([this] { reader_.Loop(); });
  EXPECT_EQ(EndOf(*read), ReadState::kFailed);
  EXPECT_EQ(Figures().fault_damaged, 1u);
  EXPECT_FALSE(reader_.Begin(other.facts.name)) << "it is looked for again";
  reader_.End(*read, ReadEnd::kNotUsed);
}

// Its place is written anew; the store is not at fault.
TEST_F(RemoteReaderTest, AKeyOfAnotherTypeIsADamagedValue) {
  const OwnerId owner = HaveOwner();
  See(record_, owner);
  fake_.Answer([](const RedisFake::Words& words) -> std::optional<std::string> {
    if (words[0] != "GET") return std::nullopt;
    return "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n";
  });
  const auto read = reader_.Begin(record_.facts.name);
  ASSERT_TRUE(read);
  Run([this] { reader_.Loop(); });
  EXPECT_EQ(EndOf(*read), ReadState::kFailed);
  EXPECT_EQ(Figures().fault_damaged, 1u);
  EXPECT_EQ(Figures().fault_io, 0u);
  reader_.End(*read, ReadEnd::kNotUsed);
  EXPECT_FALSE(reader_.Begin(record_.facts.name)) << "it is looked for, and written, again";
}

TEST_F(RemoteReaderTest, ADamagedValueIsCountedWhenItsReadEnds) {
  const OwnerId owner = HaveOwner();
  See(record_, owner);
  Put(record_);
  const auto read = reader_.Begin(record_.facts.name);
  ASSERT_TRUE(read);
  Run([this] { reader_.Loop(); });
  ASSERT_EQ(EndOf(*read), ReadState::kArrived);
  reader_.End(*read, ReadEnd::kDamaged);
  EXPECT_EQ(Figures().fault_damaged, 1u);
  EXPECT_EQ(Figures().read_blocks, 0u);
  EXPECT_FALSE(reader_.Begin(record_.facts.name));
}

class LateReaderTest : public RemoteReaderTest {
 protected:
  static RemoteTierOptions SoonLate() {
    RemoteTierOptions options = SmallOptions();
    options.stall_ns = 400'000'000;
    return options;
  }
  LateReaderTest() : RemoteReaderTest(SoonLate()) {}
};

// As on a busy machine. The second value has come when the reader runs again, the third one has
// not.
TEST_F(LateReaderTest, AReaderThatDoesNotRunIsNoStallOfTheStore) {
  using std::chrono::milliseconds;
  const OwnerId owner = HaveOwner();
  std::vector<ReadId> reads;
  for (uint32_t i = 0; i < 3; ++i) {
    See(FaultRecord(0, i), owner);
    Put(FaultRecord(0, i));
    reads.push_back(*reader_.Begin(FaultRecord(0, i).facts.name));
  }
  std::atomic<int> begun = 0, ended = 0, asked = 0;
  store_->progress.Set([&] {
    if (++begun < 3) std::this_thread::sleep_for(milliseconds(900));
    ++ended;
    changed_.notify_all();
  });
  fake_.Answer([&](const RedisFake::Words& words) -> std::optional<std::string> {
    if (words[0] != "GET") return std::nullopt;
    const int number = ++asked;
    while ((number == 2 && begun < 1) || (number == 3 && ended < 2)) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    return std::nullopt;
  });
  Run([this] { reader_.Loop(); });
  for (const ReadId read : reads) EXPECT_EQ(EndOf(read), ReadState::kArrived);
  Stop();
  fake_.Answer({});
  EXPECT_EQ(Figures().fault_stalled, 0u);
  for (const ReadId read : reads) reader_.End(read, ReadEnd::kNotUsed);
}

TEST_F(RemoteReaderTest, ReadsOfATierThatIsOffFail) {
  const OwnerId owner = HaveOwner();
  See(record_, owner);
  const auto read = reader_.Begin(record_.facts.name);
  ASSERT_TRUE(read);
  store_->TurnOff("it is tested");
  Run([this] { reader_.Loop(); });
  EXPECT_EQ(EndOf(*read), ReadState::kDown);
  EXPECT_EQ(fake_.Count("GET"), 0u);
  EXPECT_EQ(fake_.Count("CLUSTER"), 0u) << "the looker alone tries whether it answers";
  reader_.End(*read, ReadEnd::kNotUsed);
}

}  // namespace
}  // namespace kvasir
