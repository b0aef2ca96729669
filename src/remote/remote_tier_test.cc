#include "remote/remote_tier.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/fault.h"
#include "remote/redis_server_for_test.h"
#include "remote/remote_on_fake_for_test.h"
#include "tier/tier_driver_for_test.h"

namespace kvasir {
namespace {

using Read = TierDriver::Read;

// One machine of a fleet.
struct Member {
  explicit Member(const RemoteTierOptions& options) {
    auto opened = RemoteTier::Open(options);
    EXPECT_TRUE(opened) << opened.error().message;
    tier = std::move(*opened);
    driver = std::make_unique<TierDriver>(*tier);
  }
  // Opens owner 0, and waits until the store has said what it knows of it.
  void ReadyOwner(uint32_t owner = 0) {
    ASSERT_TRUE(WaitFor(RemoteStats::State::kOn)) << tier->Remote().reason;
    ASSERT_TRUE(tier->ReadyOwner(TestRecord::Owner(owner)));
    driver->Look(TestRecord(0, 0, owner, kSmallTokens, kSmallPayload));
  }
  bool WaitFor(RemoteStats::State state) {
    return driver->WaitUntil([&] { return tier->Remote().state == state; });
  }
  std::unique_ptr<RemoteTier> tier;
  std::unique_ptr<TierDriver> driver;
};

class RemoteTierOnRedis : public testing::Test {
 protected:
  void SetUp() override {
    redis_ = RedisServer::Start();
    if (redis_ == nullptr) KV_NEEDS("/usr/bin/redis-server");
    options_.address = redis_->address();
  }
  void TearDown() override { InjectFault(Fault::kNone); }
  static TestRecord Record(uint32_t chain, uint32_t number, uint32_t owner = 0) {
    return TestRecord(chain, number, owner, kSmallTokens, kSmallPayload);
  }
  Member Start() const { return Member(options_); }
  // Writes the first records of a chain as one machine, and returns it.
  Member Wrote(uint32_t records, uint32_t chain = 0, uint32_t owner = 0) const {
    Member member = Start();
    member.ReadyOwner(owner);
    for (uint32_t i = 0; i < records; ++i) {
      EXPECT_TRUE(member.driver->Write(Record(chain, i, owner))) << i;
    }
    EXPECT_TRUE(member.driver->Flush());
    return member;
  }
  uint64_t NumKeys() {
    const auto reply = redis_->Ask({"DBSIZE"});
    return reply ? static_cast<uint64_t>(reply->number) : ~uint64_t{0};
  }
  // Returns the names of all values in the store: those of records are longer than an owner's.
  std::vector<std::string> Names(size_t bytes) {
    std::vector<std::string> names;
    std::array<std::byte, 256> bulk;
    const auto list = redis_->Ask({"KEYS", "*"});
    for (int64_t i = 0; list && i < list->number; ++i) {
      const auto name = redis_->connection().Read(bulk, [] { return true; });
      if (!name) break;
      names.emplace_back(reinterpret_cast<const char*>(bulk.data()),
                         static_cast<size_t>(name->number));
    }
    std::erase_if(names, [&](const std::string& name) { return name.size() != bytes; });
    return names;
  }
  static constexpr size_t kOwnerName = 74, kRecordName = 74 + 65;

  std::unique_ptr<RedisServer> redis_;
  RemoteTierOptions options_ = SmallOptions();
};

TEST_F(RemoteTierOnRedis, AnotherMachineFindsWhatOneHasWritten) {
  const Member writer = Wrote(20);
  Member reader = Start();
  reader.ReadyOwner();
  EXPECT_FALSE(reader.tier->Has(Record(0, 0).facts.name) &&
               reader.tier->Has(Record(0, 1).facts.name))
      << "only what was looked for is known";
  LookFor what{.owner = TestRecord::Owner(0), .names = {}};
  for (uint32_t i = 0; i < 40; ++i) what.names.push_back(TestRecord::Name(0, i));
  std::atomic<bool> told = false;
  ASSERT_TRUE(reader.tier->Look(what, [&] { told = true; }));
  ASSERT_TRUE(reader.driver->WaitUntil([&] { return told.load(); }));
  for (uint32_t i = 0; i < 40; ++i) {
    EXPECT_EQ(reader.tier->Has(TestRecord::Name(0, i)), i < 20) << i;
  }
  for (uint32_t i = 0; i < 20; ++i) {
    EXPECT_EQ(reader.driver->ReadBack(Record(0, i)), Read::kRight) << i;
  }
  EXPECT_EQ(reader.tier->Remote().read_blocks, 20u);
}

TEST_F(RemoteTierOnRedis, ALookFindsTheEndOfAnyChain) {
  Member writer = Start();
  writer.ReadyOwner();
  constexpr uint32_t kLongest = 900;
  uint32_t written = 0;
  for (const uint32_t length : {0u, 1u, 2u, 31u, 32u, 33u, 500u, kLongest}) {
    for (; written < length; ++written) {
      while (true) {
        const auto done = writer.driver->Write(Record(0, written));
        if (done) break;
        ASSERT_EQ(done.error(), WriteRefusal::kNoBuffer);
        ASSERT_TRUE(writer.driver->Flush());
      }
    }
    ASSERT_TRUE(writer.driver->Flush());
    options_.num_names = 4096;
    Member reader = Start();
    reader.ReadyOwner();
    LookFor what{.owner = TestRecord::Owner(0), .names = {}};
    for (uint32_t i = 0; i < kLongest; ++i) what.names.push_back(TestRecord::Name(0, i));
    std::atomic<bool> told = false;
    ASSERT_TRUE(reader.tier->Look(what, [&] { told = true; }));
    ASSERT_TRUE(reader.driver->WaitUntil([&] { return told.load(); }));
    uint32_t found = 0;
    while (found < kLongest && reader.tier->Has(TestRecord::Name(0, found))) ++found;
    EXPECT_EQ(found, length);
  }
}

TEST_F(RemoteTierOnRedis, AnotherFleetFindsNothingAndDisturbsNothing) {
  const Member writer = Wrote(5);
  const uint64_t keys = NumKeys();
  RemoteTierOptions others = options_;
  others.fleet = TestRecord::Filled(79);
  Member stranger(others);
  stranger.ReadyOwner();
  for (uint32_t i = 0; i < 5; ++i) {
    EXPECT_EQ(stranger.driver->ReadBack(Record(0, i)), Read::kNotThere) << i;
  }
  EXPECT_TRUE(stranger.driver->Erase(TestRecord::Owner(0)));
  EXPECT_EQ(NumKeys(), keys + 1) << "its own owner object";
  Member reader = Start();
  reader.ReadyOwner();
  EXPECT_EQ(reader.driver->ReadBack(Record(0, 4)), Read::kRight);
}

TEST_F(RemoteTierOnRedis, AnotherModelUnsealsNothing) {
  const Member writer = Wrote(3);
  options_.identity = TestRecord::Filled(80);
  Member reader = Start();
  reader.ReadyOwner();
  EXPECT_EQ(reader.driver->ReadBack(Record(0, 1)), Read::kDamaged);
}

TEST_F(RemoteTierOnRedis, NothingSwappedTruncatedOrForeignIsUnsealed) {
  const Member writer = Wrote(12);
  const std::vector<std::string> names = Names(kRecordName);
  ASSERT_EQ(names.size(), 12u);
  // All values change places.
  for (size_t i = 0; i + 1 < names.size(); ++i) {
    ASSERT_TRUE(redis_->Ask({"COPY", names[i + 1], names[i], "REPLACE"}));
  }
  std::string half(RawValueBytes(options_.shape) / 2, 'x');
  ASSERT_TRUE(redis_->Ask({"SET", names.back(), half}));
  Member reader = Start();
  reader.ReadyOwner();
  uint32_t failed = 0, opened = 0;
  for (uint32_t i = 0; i < 12; ++i) {
    const Read read = reader.driver->ReadBack(Record(0, i));
    opened += read == Read::kRight || read == Read::kWrong;
    failed += read == Read::kDamaged || read == Read::kFailed;
  }
  EXPECT_EQ(opened, 0u);
  EXPECT_EQ(failed, 12u);
  EXPECT_EQ(reader.tier->Remote().fault_damaged, 12u);
  // Damage heals: what is computed replaces it.
  for (uint32_t i = 0; i < 12; ++i) ASSERT_TRUE(reader.driver->Write(Record(0, i))) << i;
  ASSERT_TRUE(reader.driver->Flush());
  for (uint32_t i = 0; i < 12; ++i) {
    EXPECT_EQ(reader.driver->ReadBack(Record(0, i)), Read::kRight) << i;
  }
}

TEST_F(RemoteTierOnRedis, AValueLongerThanARecordEndsTheConnectionAlone) {
  const Member writer = Wrote(3);
  const std::vector<std::string> names = Names(kRecordName);
  for (const std::string& name : names) {
    ASSERT_TRUE(redis_->Ask({"SETRANGE", name, "30000000", "x"}));
  }
  Member reader = Start();
  reader.ReadyOwner();
  EXPECT_EQ(reader.driver->ReadBack(Record(0, 1)), Read::kFailed);
  EXPECT_EQ(reader.tier->Remote().state, RemoteStats::State::kOn);
  for (uint32_t i = 0; i < 3; ++i) ASSERT_TRUE(reader.driver->Write(Record(0, i)));
  ASSERT_TRUE(reader.driver->Flush());
  EXPECT_EQ(reader.driver->ReadBack(Record(0, 1)), Read::kRight);
}

TEST_F(RemoteTierOnRedis, WhatTheStoreLetGoIsGone) {
  Member writer = Wrote(4);
  for (const std::string& name : Names(kRecordName)) ASSERT_TRUE(redis_->Ask({"DEL", name}));
  const auto read = writer.tier->BeginRead(Record(0, 2).facts.name);
  ASSERT_TRUE(read);
  ASSERT_TRUE(
      writer.driver->WaitUntil([&] { return writer.tier->StateOf(*read) != ReadState::kReading; }));
  EXPECT_EQ(writer.tier->StateOf(*read), ReadState::kGone);
  writer.tier->EndRead(*read, ReadEnd::kNotUsed);
  EXPECT_FALSE(writer.tier->Has(Record(0, 2).facts.name));
  EXPECT_EQ(writer.tier->Remote().fault_missing, 1u);
}

TEST_F(RemoteTierOnRedis, RecordsHaveALifetimeAndOwnersHaveNone) {
  const Member writer = Wrote(2);
  for (const std::string& name : Names(kRecordName)) {
    const auto ttl = redis_->Ask({"TTL", name});
    EXPECT_GT(ttl->number, 86000);
    EXPECT_LE(ttl->number, 86400);
    ASSERT_TRUE(redis_->Ask({"EXPIRE", name, "5000"}));
  }
  EXPECT_EQ(redis_->Ask({"TTL", Names(kOwnerName).at(0)})->number, -1);
  Member reader = Start();
  reader.ReadyOwner();
  EXPECT_EQ(reader.driver->ReadBack(Record(0, 0)), Read::kRight);
  uint32_t renewed = 0;
  for (const std::string& name : Names(kRecordName)) {
    renewed += redis_->Ask({"TTL", name})->number > 86000;
  }
  EXPECT_EQ(renewed, 1u) << "a read begins its lifetime anew";
}

TEST_F(RemoteTierOnRedis, ReadModeWritesNothing) {
  const Member writer = Wrote(3);
  const uint64_t keys = NumKeys();
  options_.mode = RemoteMode::kRead;
  Member reader = Start();
  reader.ReadyOwner();
  ASSERT_TRUE(redis_->Ask({"CONFIG", "RESETSTAT"}));
  EXPECT_EQ(reader.driver->ReadBack(Record(0, 2)), Read::kRight);
  EXPECT_EQ(reader.driver->Write(Record(1, 0)).error(), WriteRefusal::kOff);
  EXPECT_EQ(reader.driver->Erase(TestRecord::Owner(0)).error().cause, Cause::kReadOnly);
  EXPECT_TRUE(reader.tier->ReadyOwner(TestRecord::Owner(9)));
  reader.driver->Look(Record(0, 0, 9));
  EXPECT_EQ(NumKeys(), keys);
  EXPECT_GT(reader.tier->LoadBytesPerS(TierKind::kRemote), 0) << "a speed is always known";
}

TEST_F(RemoteTierOnRedis, AnEraseRaisesTheEpochAndRemovesTheNames) {
  Member writer = Wrote(30);
  ASSERT_TRUE(writer.tier->ReadyOwner(TestRecord::Owner(1)));
  writer.driver->Look(Record(5, 0, 1));
  ASSERT_TRUE(writer.driver->Write(Record(5, 0, 1)));
  ASSERT_TRUE(writer.driver->Flush());
  Member other = Start();
  other.ReadyOwner();
  EXPECT_EQ(other.driver->ReadBack(Record(0, 7)), Read::kRight);
  const std::vector<std::string> before = Names(kRecordName);
  const auto erased = writer.driver->Erase(TestRecord::Owner(0));
  ASSERT_TRUE(erased) << erased.error().message;
  ASSERT_TRUE(erased->remote);
  EXPECT_GT(erased->remote->epoch, 1u);
  EXPECT_EQ(erased->remote->records, 30u);
  EXPECT_TRUE(erased->remote->complete);
  const std::vector<std::string> of_another = Names(kRecordName);
  ASSERT_EQ(of_another.size(), 1u);
  EXPECT_EQ(writer.driver->ReadBack(Record(5, 0, 1)), Read::kRight) << "of another owner";
  // The other machine hears of it by its next lookup.
  other.driver->Look(Record(0, 7));
  EXPECT_FALSE(other.tier->Has(Record(0, 7).facts.name));
  const ErasedOwner elsewhere{TestRecord::Owner(0), erased->remote->epoch, true};
  EXPECT_EQ(other.tier->TakeErased(), std::vector<ErasedOwner>{elsewhere});
  other.tier->EraseHere(TestRecord::Owner(0), [](const Result<TierErased>&) {});
  // What comes after it has other names.
  ASSERT_TRUE(other.driver->Write(Record(0, 0)));
  ASSERT_TRUE(other.driver->Flush());
  EXPECT_EQ(writer.driver->ReadBack(Record(0, 0)), Read::kRight);
  for (const std::string& name : Names(kRecordName)) {
    EXPECT_EQ(std::ranges::count(before, name), name == of_another[0] ? 1 : 0);
  }
}

// UNLINK is allowed where SET is not.
TEST_F(RemoteTierOnRedis, AFullStoreIsErased) {
  for (const bool is_off : {false, true}) {
    Member member = Wrote(3);
    constexpr uint64_t kRecords = 3000;  // a page of SCAN has some thousand
    const std::string below = FleetKeys(options_.fleet).OwnerName(TestRecord::Owner(0)) + "/";
    const char* const fill =
        "for i = 1, 3000 do redis.call('SET', KEYS[1] .. i, string.rep('x', 4000)) end";
    ASSERT_TRUE(redis_->Ask({"EVAL", fill, "1", below}));
    std::vector<std::byte> info(65536);
    const auto memory = redis_->Ask({"INFO", "memory"}, info);
    ASSERT_TRUE(memory);
    const std::string text(reinterpret_cast<const char*>(info.data()),
                           static_cast<size_t>(memory->number));
    const std::string key = "used_memory:";
    const long long used = std::atoll(text.c_str() + text.find(key) + key.size());
    ASSERT_TRUE(
        redis_->Ask({"CONFIG", "SET", "maxmemory", std::to_string(used - 2'000'000)})->is_ok());
    ASSERT_TRUE(redis_->Ask({"SET", "other", "v"})->text.starts_with("OOM"));
    if (is_off) {
      ASSERT_TRUE(member.driver->Write(Record(7, 0)));
      ASSERT_TRUE(member.WaitFor(RemoteStats::State::kOff));
      ASSERT_NE(member.tier->Remote().reason.find("OOM"), std::string::npos);
    }
    const auto erased = member.driver->Erase(TestRecord::Owner(0));
    ASSERT_TRUE(erased) << erased.error().message;
    EXPECT_GT(erased->remote->epoch, 1u);
    EXPECT_EQ(erased->remote->records, kRecords + 3);
    EXPECT_TRUE(erased->remote->complete);
    EXPECT_EQ(NumKeys(), 1u) << "the owner's object";
    ASSERT_TRUE(redis_->Ask({"CONFIG", "SET", "maxmemory", "0"})->is_ok());
  }
}

TEST_F(RemoteTierOnRedis, TwoMachinesMayEraseAtOnce) {
  Member one = Wrote(5);
  Member two = Start();
  two.ReadyOwner();
  std::atomic<int> told = 0;
  for (Member* member : {&one, &two}) {
    member->tier->Erase(TestRecord::Owner(0), [&](Result<TierErased> erased) {
      EXPECT_TRUE(erased);
      EXPECT_GE(erased ? erased->remote->epoch : 0, 2u);
      ++told;
    });
  }
  ASSERT_TRUE(one.driver->WaitUntil([&] { return told == 2; }));
  EXPECT_EQ(NumKeys(), 1u) << "the owner's object";
  // They agree again: what one writes the other reads.
  for (Member* member : {&one, &two, &one}) {
    member->driver->Look(Record(0, 0));
    member->tier->EraseHere(TestRecord::Owner(0), [](const Result<TierErased>&) {});
  }
  ASSERT_TRUE(one.driver->Write(Record(0, 0)));
  ASSERT_TRUE(one.driver->Flush());
  EXPECT_EQ(two.driver->ReadBack(Record(0, 0)), Read::kRight);
}

// An old snapshot of the store that is played back opens no more.
TEST_F(RemoteTierOnRedis, WhatWasErasedIsNotUnsealedWhenItComesBack) {
  for (const bool keeps_epoch : {false, true}) {
    Member writer = Wrote(3, keeps_epoch ? 8 : 7);
    std::vector<std::byte> value(RawValueBytes(options_.shape));
    std::vector<std::pair<std::string, std::string>> kept;
    for (const std::string& name : Names(kRecordName)) {
      ASSERT_TRUE(redis_->Ask({"GET", name}, value));
      kept.emplace_back(name,
                        std::string(reinterpret_cast<const char*>(value.data()), value.size()));
    }
    if (keeps_epoch) InjectFault(Fault::kKeptEpoch);
    ASSERT_TRUE(writer.driver->Erase(TestRecord::Owner(0)));
    for (const auto& [name, bytes] : kept) ASSERT_TRUE(redis_->Ask({"SET", name, bytes}));
    const Read read = writer.driver->ReadBack(Record(keeps_epoch ? 8 : 7, 1));
    EXPECT_EQ(read, keeps_epoch ? Read::kRight : Read::kNotThere) << "the test can fail";
  }
}

TEST_F(RemoteTierOnRedis, WhoKnowsAHigherEpochWritesItBack) {
  Member one = Wrote(3);
  const auto erased = one.driver->Erase(TestRecord::Owner(0));
  ASSERT_TRUE(erased);
  ASSERT_TRUE(one.driver->Write(Record(0, 0)));
  ASSERT_TRUE(one.driver->Flush());
  const std::string name = Names(kOwnerName).at(0);
  // The store lost the object: a new one has the known epoch, and other random bytes.
  ASSERT_TRUE(redis_->Ask({"DEL", name}));
  one.driver->Look(Record(0, 0));
  EXPECT_EQ(Names(kOwnerName).size(), 1u);
  EXPECT_FALSE(one.tier->Has(Record(0, 0).facts.name));
  // An object of an older epoch.
  const FleetKeys keys(options_.fleet);
  const auto old = keys.SealOwner(name, {.epoch = 1, .random = TestRecord::Filled(5)}, {});
  ASSERT_TRUE(
      redis_->Ask({"SET", name, {reinterpret_cast<const char*>(old->data()), old->size()}}));
  one.driver->Look(Record(0, 0));
  OwnerObject now;
  ASSERT_TRUE(redis_->Ask({"GET", name}, now));
  EXPECT_EQ(keys.UnsealOwner(name, now)->epoch, erased->remote->epoch);
}

// A whole copy of the store, with the owner's object, is put back before a machine starts again.
TEST_F(RemoteTierOnRedis, AMachineThatStartsAgainRemembersTheEpoch) {
  std::string pattern = testing::TempDir() + "/kvasir-epochs-XXXXXX";
  const std::string folder = mkdtemp(pattern.data());
  for (const bool keeps : {true, false}) {
    const uint32_t chain = keeps ? 20 : 21;
    options_.epochs = keeps ? folder : "";
    std::vector<std::pair<std::string, std::string>> copy;
    {
      Member one = Wrote(3, chain);
      std::vector<std::byte> value(RawValueBytes(options_.shape));
      for (const size_t length : {kOwnerName, kRecordName}) {
        for (const std::string& name : Names(length)) {
          const auto got = redis_->Ask({"GET", name}, value);
          copy.emplace_back(name, std::string(reinterpret_cast<const char*>(value.data()),
                                              static_cast<size_t>(got->number)));
        }
      }
      ASSERT_TRUE(one.driver->Erase(TestRecord::Owner(0)));
    }
    for (const auto& [name, bytes] : copy) ASSERT_TRUE(redis_->Ask({"SET", name, bytes}));
    Member again = Start();
    again.ReadyOwner();
    EXPECT_EQ(again.driver->ReadBack(Record(chain, 1)), keeps ? Read::kNotThere : Read::kRight)
        << "the test can fail";
  }
  std::filesystem::remove_all(folder);
}

TEST_F(RemoteTierOnRedis, AForgetRemovesByName) {
  Member writer = Wrote(10);
  ForgetFacts facts = TierDriver::ForgetOf(Record(0, 4), 3);
  for (uint32_t i = 4; i < 10; ++i) facts.keys.push_back(TestRecord::Name(0, i).key);
  facts.kept = TierDriver::Keys({TestRecord::Name(0, 6).key});
  const auto forgotten = writer.driver->Forget(facts);
  ASSERT_TRUE(forgotten) << forgotten.error().message;
  EXPECT_EQ(forgotten->remote->records, 5u);
  for (uint32_t i = 0; i < 10; ++i) {
    const bool stays = i < 4 || i == 6;
    EXPECT_EQ(writer.driver->ReadBack(Record(0, i)), stays ? Read::kRight : Read::kNotThere) << i;
  }
}

TEST_F(RemoteTierOnRedis, AStoreThatIsKilledIsOffAndComesBack) {
  Member member = Wrote(3);
  redis_->Stop();
  const auto read = member.tier->BeginRead(Record(0, 1).facts.name);
  if (read) {
    ASSERT_TRUE(member.driver->WaitUntil(
        [&] { return member.tier->StateOf(*read) != ReadState::kReading; }));
    EXPECT_EQ(member.tier->StateOf(*read), ReadState::kDown);
    member.tier->EndRead(*read, ReadEnd::kNotUsed);
  }
  std::ignore = member.driver->Write(Record(1, 0));
  ASSERT_TRUE(member.WaitFor(RemoteStats::State::kOff));
  EXPECT_FALSE(member.tier->Has(Record(0, 1).facts.name));
  EXPECT_FALSE(member.tier->Look(
      {.owner = TestRecord::Owner(0), .names = {Record(0, 1).facts.name}}, [] {}));
  EXPECT_EQ(member.driver->Write(Record(2, 0)).error(), WriteRefusal::kOff);
  EXPECT_FALSE(member.driver->Flush());
  EXPECT_NE(member.tier->Remote().reason, "");
  ASSERT_TRUE(redis_->Restart());
  ASSERT_TRUE(member.WaitFor(RemoteStats::State::kOn)) << member.tier->Remote().reason;
  member.ReadyOwner();
  ASSERT_TRUE(member.driver->Write(Record(3, 0)));
  ASSERT_TRUE(member.driver->Flush());
  EXPECT_EQ(member.driver->ReadBack(Record(3, 0)), Read::kRight);
}

TEST_F(RemoteTierOnRedis, AStoreThatStallsIsTurnedOff) {
  options_.stall_ns = 20'000'000;
  for (const bool is_deaf : {false, true}) {
    const uint32_t chain = is_deaf ? 41 : 40;
    Member member = Wrote(3, chain);
    if (is_deaf) InjectFault(Fault::kDeafBreaker);
    redis_->Signal(SIGSTOP);
    const auto read = member.tier->BeginRead(Record(chain, 1).facts.name);
    const uint64_t start_ns = MonotonicNs();
    const bool ended = member.driver->WaitUntil([&] {
      return !read || member.tier->StateOf(*read) != ReadState::kReading ||
             MonotonicNs() > start_ns + 3'000'000'000;
    });
    EXPECT_TRUE(ended);
    const bool is_off = member.tier->Remote().state == RemoteStats::State::kOff;
    EXPECT_EQ(is_off, !is_deaf) << "the test can fail";
    redis_->Signal(SIGCONT);
    if (read) member.tier->EndRead(*read, ReadEnd::kNotUsed);
  }
}

TEST_F(RemoteTierOnRedis, AWrongPasswordAndAFullStoreAreReasons) {
  ASSERT_TRUE(redis_->Ask({"CONFIG", "SET", "requirepass", "right"})->is_ok());
  options_.password = "wrong";
  EXPECT_TRUE(Start().WaitFor(RemoteStats::State::kOff));
  options_.password.clear();
  Member silent = Start();
  ASSERT_TRUE(silent.WaitFor(RemoteStats::State::kOff));
  EXPECT_NE(silent.tier->Remote().reason.find("NOAUTH"), std::string::npos);
  const auto erased = silent.driver->Erase(TestRecord::Owner(0));
  ASSERT_FALSE(erased);
  EXPECT_NE(erased.error().message.find("is off: NOAUTH"), std::string::npos)
      << erased.error().message;
  options_.password = "right";
  ASSERT_TRUE(Start().WaitFor(RemoteStats::State::kOn));
  Member member = Start();
  member.ReadyOwner();
  ASSERT_TRUE(redis_->Ask({"CONFIG", "SET", "maxmemory", "1"})->is_ok());
  ASSERT_TRUE(member.driver->Write(Record(0, 0)));
  ASSERT_TRUE(member.WaitFor(RemoteStats::State::kOff));
  EXPECT_NE(member.tier->Remote().reason.find("OOM"), std::string::npos);
}

TEST(RemoteTier, AStoreThatIsNotThereIsNoErrorOfTheStart) {
  RemoteTierOptions options{.address = {.host = "127.0.0.1", .port = 1, .user = {}},
                            .memory_bytes = 64 * 1024,
                            .shape = {.block_tokens = 16, .payload_bytes = 600},
                            .num_names = 64};
  Member member(options);
  EXPECT_TRUE(member.WaitFor(RemoteStats::State::kOff));
  EXPECT_FALSE(member.driver->Write(TestRecord(0, 0, 0, 16, 600)));
  EXPECT_EQ(member.driver->Erase(TestRecord::Owner(0)).error().code, Code::kUnavailable);
  options.memory_bytes = 5000;
  EXPECT_EQ(RemoteTier::Open(options).error().field, "remote_memory");
}

}  // namespace
}  // namespace kvasir
