// What a store that answers wrongly, late or not at all may do to a remote tier.
#include <gtest/gtest.h>
#include <time.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "remote/remote_on_fake_for_test.h"

namespace kvasir {
namespace {

TEST_F(RemoteTierOnFake, WorksAsOnRedis) {
  Open();
  for (uint32_t i = 0; i < 5; ++i) ASSERT_TRUE(driver_->Write(FaultRecord(0, i)));
  ASSERT_TRUE(driver_->Flush());
  EXPECT_EQ(driver_->ReadBack(FaultRecord(0, 4)), TierDriver::Read::kRight);
  const auto erased = driver_->Erase(TestRecord::Owner(0));
  ASSERT_TRUE(erased) << erased.error().message;
  EXPECT_EQ(erased->remote->records, 5u);
  EXPECT_EQ(fake_.values().size(), 1u) << "the owner's object";
}

TEST_F(RemoteTierOnFake, AnEraseUnlinksOnlyWhatAReplyToScanNames) {
  const std::string head = "*2\r\n$1\r\n0\r\n", long_name(300, 'x');
  for (const std::string& reply :
       {head + "*1\r\n:5000\r\n", head + "*1\r\n$-1\r\n", head + "*1\r\n*-1\r\n",
        head + "*1\r\n+text\r\n", head + "*-1\r\n", head + ":3\r\n",
        "*2\r\n:5000\r\n*0\r\n" + std::string(), std::string("*2\r\n$-1\r\n*0\r\n"),
        std::string("*2\r\n*-1\r\n*0\r\n"), std::string("*3\r\n$1\r\n0\r\n*0\r\n"),
        std::string(":2\r\n"), std::string("$-1\r\n"), std::string("*-1\r\n"),
        head + "*1\r\n" + RedisFake::Bulk(long_name), head + "*1\r\n" + RedisFake::Bulk("foreign"),
        head + "*9223372036854775807\r\n:1\r\n"}) {
    Open();
    const uint32_t unlinked = fake_.Count("UNLINK");
    Answer("SCAN", reply);
    const auto erased = driver_->Erase(TestRecord::Owner(0));
    ASSERT_FALSE(erased) << reply;
    EXPECT_EQ(erased.error().code, Code::kUnavailable) << reply;
    EXPECT_EQ(fake_.Count("UNLINK"), unlinked) << reply;
    fake_.Answer({});
  }
}

TEST_F(RemoteTierOnFake, AnEraseBelievesOnlyNumbersOfNames) {
  for (const char* reply : {"+OK\r\n", "$-1\r\n", ":-5\r\n", "-ERR no\r\n", "*0\r\n"}) {
    Open();
    ASSERT_TRUE(driver_->Write(FaultRecord(0, 0)));
    ASSERT_TRUE(driver_->Flush());
    Answer("UNLINK", reply);
    EXPECT_FALSE(driver_->Erase(TestRecord::Owner(0))) << reply;
    fake_.Answer({});
  }
}

// A page of SCAN has as many names as the store likes.
TEST_F(RemoteTierOnFake, APageOfAnyLengthIsErasedInPieces) {
  Open();
  constexpr uint32_t kNames = 20'000;
  const std::string below = FleetKeys(TestRecord::Filled(77)).OwnerName(TestRecord::Owner(0)) + "/";
  for (uint32_t i = 0; i < kNames; ++i) fake_.Put(below + std::to_string(i), "v");
  const auto erased = driver_->Erase(TestRecord::Owner(0));
  ASSERT_TRUE(erased) << erased.error().message;
  EXPECT_EQ(erased->remote->records, kNames);
  EXPECT_EQ(fake_.values().size(), 1u) << "the owner's object";
}

TEST_F(RemoteTierOnFake, ACursorWithoutAnEndEndsWithTheProcess) {
  Open();
  Answer("SCAN", "*2\r\n$1\r\n7\r\n*0\r\n");
  std::atomic<bool> told = false;
  tier_->Erase(TestRecord::Owner(0), [&](Result<TierErased> erased) {
    EXPECT_FALSE(erased);
    told = true;
  });
  ASSERT_TRUE(driver_->WaitUntil([&] { return fake_.Count("SCAN") > 100; }));
  tier_.reset();
  EXPECT_TRUE(told);
}

// Holds answers until the test lets them go.
class AnswerGate {
 public:
  void Wait() {
    MutexLock lock(mutex_);
    while (!is_open_) lock.Wait(opened_);
  }
  void Open() {
    MutexLock lock(mutex_);
    is_open_ = true;
    opened_.notify_all();
  }

 private:
  Mutex mutex_;
  std::condition_variable opened_;
  bool is_open_ KV_GUARDED_BY(mutex_) = false;
};

TEST_F(RemoteTierOnFake, AFlushSaysThatBlocksWereLost) {
  Open();
  AnswerGate gate;
  std::atomic<bool> hangs_up = true;
  fake_.Answer([&](const FakeWords& words) -> std::optional<std::string> {
    if (words[0] != "SET" || !hangs_up.exchange(false)) return std::nullopt;
    gate.Wait();
    return RedisFake::kHangUp;
  });
  ASSERT_TRUE(driver_->Write(FaultRecord(0, 0)));
  std::atomic<bool> told = false;
  std::optional<Code> code;
  tier_->Flush([&](const Result<TierFlushed>& flushed) {
    if (!flushed) code = flushed.error().code;
    told = true;
  });
  gate.Open();
  ASSERT_TRUE(driver_->WaitUntil([&] { return told.load(); }));
  EXPECT_EQ(code, Code::kUnavailable);
  EXPECT_EQ(tier_->Remote().state, RemoteStats::State::kOn) << "one error turns nothing off";
  ASSERT_TRUE(driver_->Write(FaultRecord(0, 0)));
  EXPECT_TRUE(driver_->Flush()) << "what is lost counts once";
  fake_.Answer({});
}

TEST_F(RemoteTierOnFake, AFlushSaysThatBlocksWereLostBeforeIt) {
  Open();
  std::atomic<bool> hangs_up = true;
  fake_.Answer([&](const FakeWords& words) {
    return words[0] == "SET" && hangs_up.exchange(false) ? std::optional(RedisFake::kHangUp)
                                                         : std::nullopt;
  });
  ASSERT_TRUE(driver_->Write(FaultRecord(0, 0)));
  ASSERT_TRUE(driver_->WaitUntil([&] { return tier_->Remote().dropped_failed > 0; }));
  EXPECT_FALSE(driver_->Flush());
  EXPECT_TRUE(driver_->Flush()) << "once";
  fake_.Answer({});
}

TEST_F(RemoteTierOnFake, AnOperationThatIsLateOnceIsOneStall) {
  RemoteTierOptions options = SmallOptions(fake_.address());
  options.stall_ns = 400'000'000;
  Open(options);
  std::atomic<int> lookups = 0;
  fake_.Answer([&](const FakeWords& words) -> std::optional<std::string> {
    if (words[0] != "EXISTS") return std::nullopt;
    // Late with the first, and slow with the others, each of which waits by itself.
    const auto ms = std::chrono::milliseconds(++lookups == 1 ? 450 : 25);
    std::this_thread::sleep_for(ms);
    return ":0\r\n";
  });
  LookFor what{.owner = TestRecord::Owner(0), .names = {}};
  for (uint32_t i = 0; i < 6; ++i) what.names.push_back(TestRecord::Name(3, i));
  std::atomic<bool> told = false;
  ASSERT_TRUE(tier_->Look(what, [&] { told = true; }));
  ASSERT_TRUE(driver_->WaitUntil([&] { return told.load(); }));
  EXPECT_EQ(tier_->Remote().fault_stalled, 1u);
  EXPECT_EQ(tier_->Remote().state, RemoteStats::State::kOn);
  fake_.Answer({});
}

// Values that are sent together: the socket does not hold all of them.
TEST_F(RemoteTierOnFake, AValueIsLateByItselfAndNotForThoseBeforeIt) {
  constexpr uint32_t kBytes = 256 * 1024, kValues = 16;
  RemoteTierOptions options = SmallOptions(fake_.address());
  options.shape.payload_bytes = kBytes;
  options.memory_bytes = 16 << 20;
  options.stall_ns = 400'000'000;
  Open(options);
  fake_.Answer([](const FakeWords& words) -> std::optional<std::string> {
    if (words[0] == "SET") std::this_thread::sleep_for(std::chrono::milliseconds(100));
    return std::nullopt;
  });
  for (uint32_t i = 0; i < kValues; ++i) {
    ASSERT_TRUE(driver_->Write(TestRecord(0, i, 0, kSmallTokens, kBytes)));
  }
  EXPECT_TRUE(driver_->Flush());
  EXPECT_EQ(tier_->Remote().fault_stalled, 0u);
  fake_.Answer({});
}

TEST_F(RemoteTierOnFake, WaitsForAnEraseWithoutTurningRound) {
  Open();
  AnswerGate gate;
  const std::string name = FleetKeys(TestRecord::Filled(77)).OwnerName(TestRecord::Owner(3));
  fake_.Answer([&](const FakeWords& words) -> std::optional<std::string> {
    if (words[0] == "GETRANGE" && words[1] == name) gate.Wait();
    return std::nullopt;
  });
  std::atomic<bool> told = false;
  tier_->Erase(TestRecord::Owner(3), [&](Result<TierErased>) { told = true; });
  const auto cpu_ns = [] {
    timespec used{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return static_cast<uint64_t>(used.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(used.tv_nsec);
  };
  ASSERT_TRUE(driver_->WaitUntil([&] { return fake_.Count("GETRANGE") > 1; }));
  const uint64_t before = cpu_ns();
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  EXPECT_LT(cpu_ns() - before, 150'000'000u);
  gate.Open();
  EXPECT_TRUE(driver_->WaitUntil([&] { return told.load(); }));
}

// A lookup is under way while an erase completes: the epoch that it brings is an older one.
TEST_F(RemoteTierOnFake, AnOlderEpochThatComesLateChangesNothing) {
  Open();
  AnswerGate gate;
  const std::string name = FleetKeys(TestRecord::Filled(77)).OwnerName(TestRecord::Owner(5));
  std::atomic<int> gets = 0;
  fake_.Answer([&](const FakeWords& words) -> std::optional<std::string> {
    if (words[0] != "GETRANGE" || words[1] != name || ++gets != 2) return std::nullopt;
    const std::string old = fake_.values().at(name);
    gate.Wait();
    return RedisFake::Bulk(old);
  });
  ASSERT_TRUE(tier_->ReadyOwner(TestRecord::Owner(5)));
  ASSERT_TRUE(driver_->WaitUntil([&] { return gets >= 2; }));
  const auto erased = driver_->Erase(TestRecord::Owner(5));
  ASSERT_TRUE(erased) << erased.error().message;
  EXPECT_GT(erased->remote->epoch, 1u);
  gate.Open();
  driver_->Look(FaultRecord(9, 0, 5));
  EXPECT_TRUE(tier_->TakeErased().empty()) << "this machine erased it, no other";
  ASSERT_TRUE(driver_->Write(FaultRecord(9, 0, 5)));
  ASSERT_TRUE(driver_->Flush());
  EXPECT_EQ(driver_->ReadBack(FaultRecord(9, 0, 5)), TierDriver::Read::kRight);
}

// Another machine erases between this one's look at a missing object and its making one.
TEST_F(RemoteTierOnFake, AnEpochThatComesWhileAnObjectIsMadeErasesHere) {
  Open();
  const FleetKeys keys(TestRecord::Filled(77));
  const std::string name = keys.OwnerName(TestRecord::Owner(0));
  const auto higher = keys.SealOwner(name, {.epoch = 3, .random = TestRecord::Filled(5)}, {});
  const std::string bytes(reinterpret_cast<const char*>(higher->data()), higher->size());
  std::atomic<bool> is_made = false;
  fake_.Answer([&](const FakeWords& words) -> std::optional<std::string> {
    if (words.size() > 1 && words[1] != name) return std::nullopt;
    if (words[0] == "SET") {
      is_made = true;
      return "$-1\r\n";
    }
    if (words[0] == "GETRANGE") return RedisFake::Bulk(is_made ? bytes : "");
    return std::nullopt;
  });
  driver_->Look(FaultRecord(0, 0));
  const ErasedOwner erased{TestRecord::Owner(0), 3, true};
  EXPECT_EQ(tier_->TakeErased(), std::vector<ErasedOwner>{erased});
  fake_.Answer({});
}

// Many owners are due at a store that is slow.
TEST_F(RemoteTierOnFake, ALookDoesNotWaitForTheObjectsOfAllOwners) {
  Open();
  constexpr size_t kOwners = 100;
  fake_.Answer([](const FakeWords& words) -> std::optional<std::string> {
    if (words[0] == "GETRANGE") std::this_thread::sleep_for(std::chrono::milliseconds(3));
    return std::nullopt;
  });
  const auto num_read = [&] {
    const FakeWords names = fake_.Names("GETRANGE");
    return std::set<std::string>(names.begin(), names.end()).size();
  };
  for (uint32_t i = 1; i <= kOwners; ++i) ASSERT_TRUE(tier_->ReadyOwner(TestRecord::Owner(i)));
  ASSERT_TRUE(driver_->WaitUntil([&] { return num_read() > 5; }));
  driver_->Look(FaultRecord(0, 0));
  EXPECT_LT(num_read(), kOwners);
  EXPECT_TRUE(driver_->WaitUntil([&] { return num_read() > kOwners; })) << "the rest stays due";
}

TEST_F(RemoteTierOnFake, ALookDuringAnEraseAnswersAndFindsNothing) {
  Open();
  ASSERT_TRUE(driver_->Write(FaultRecord(0, 0)));
  ASSERT_TRUE(driver_->Flush());
  AnswerGate gate;
  fake_.Answer([&](const FakeWords& words) -> std::optional<std::string> {
    if (words[0] == "SCAN") gate.Wait();
    return std::nullopt;
  });
  std::atomic<bool> told = false;
  tier_->Erase(TestRecord::Owner(0), [&](Result<TierErased> erased) {
    EXPECT_TRUE(erased);
    told = true;
  });
  ASSERT_TRUE(driver_->WaitUntil([&] { return fake_.Count("SCAN") > 0; }));
  driver_->Look(FaultRecord(0, 0));
  EXPECT_FALSE(tier_->Has(FaultRecord(0, 0).facts.name));
  EXPECT_FALSE(driver_->Write(FaultRecord(0, 0)));
  EXPECT_FALSE(told);
  gate.Open();
  ASSERT_TRUE(driver_->WaitUntil([&] { return told.load(); }));
  ASSERT_TRUE(driver_->Write(FaultRecord(0, 0)));
}

TEST_F(RemoteTierOnFake, RemovalsThatWaitJoin) {
  Open();
  ASSERT_TRUE(driver_->Write(FaultRecord(0, 0)));
  ASSERT_TRUE(driver_->Flush());
  AnswerGate gate;
  fake_.Answer([&](const FakeWords& words) -> std::optional<std::string> {
    if (words[0] == "SCAN") gate.Wait();
    return std::nullopt;
  });
  std::atomic<int> told = 0;
  const auto count = [&](Result<TierErased> erased) {
    EXPECT_TRUE(erased);
    ++told;
  };
  tier_->Erase(TestRecord::Owner(0), count);
  ASSERT_TRUE(driver_->WaitUntil([&] { return fake_.Count("SCAN") > 0; }));
  ForgetFacts facts = TierDriver::ForgetOf(FaultRecord(0, 0), 3);
  facts.keys = {TestRecord::Name(0, 0).key};
  for (int i = 0; i < 5; ++i) tier_->Forget(facts, count);
  for (int i = 0; i < 5; ++i) tier_->Erase(TestRecord::Owner(0), count);
  for (int i = 0; i < 5; ++i) tier_->Forget(facts, count);
  gate.Open();
  ASSERT_TRUE(driver_->WaitUntil([&] { return told == 16; }));
  EXPECT_EQ(fake_.Count("SCAN"), 2u) << "one erase stands for all that waited";
  ASSERT_TRUE(driver_->Write(FaultRecord(0, 0))) << "nothing waits any more";
}

TEST_F(RemoteTierOnFake, AForgetOfManyBlocksIsAnErase) {
  Open();
  ForgetFacts facts = TierDriver::ForgetOf(FaultRecord(0, 0), 3);
  facts.keys.resize(70'000);
  const auto erased = driver_->Forget(facts);
  ASSERT_TRUE(erased) << erased.error().message;
  EXPECT_GT(erased->remote->epoch, 1u);
  EXPECT_EQ(fake_.Count("UNLINK"), 1u) << "of the probe";
}

TEST_F(RemoteTierOnFake, AReadThatAnotherReaderFoundDamagedHasFailed) {
  Open();
  ASSERT_TRUE(driver_->Write(FaultRecord(0, 0)));
  ASSERT_TRUE(driver_->Flush());
  const auto one = tier_->BeginRead(FaultRecord(0, 0).facts.name);
  const auto two = tier_->BeginRead(FaultRecord(0, 0).facts.name);
  ASSERT_TRUE(one && two);
  ASSERT_TRUE(driver_->WaitUntil([&] { return tier_->StateOf(*two) == ReadState::kArrived; }));
  tier_->EndRead(*one, ReadEnd::kDamaged);
  EXPECT_EQ(tier_->StateOf(*two), ReadState::kFailed);
  tier_->EndRead(*two, ReadEnd::kNotUsed);
}

TEST_F(RemoteTierOnFake, AnOwnerIsReadAfterTheConnectionWasClosed) {
  Open();
  fake_.Answer([hangs_up = std::make_shared<std::atomic<bool>>(true)](const FakeWords& words) {
    const bool ends = words[0] == "GETRANGE" && hangs_up->exchange(false);
    return ends ? std::optional(RedisFake::kHangUp) : std::nullopt;
  });
  driver_->Look(FaultRecord(0, 0));  // it closes the looker's connection
  ASSERT_TRUE(tier_->ReadyOwner(TestRecord::Owner(4)));
  const std::string name = FleetKeys(TestRecord::Filled(77)).OwnerName(TestRecord::Owner(4));
  EXPECT_TRUE(driver_->WaitUntil([&] { return fake_.values().contains(name); }))
      << "the first owner that is due is read too";
}

TEST_F(RemoteTierOnFake, AProbeThatDoesNotComeBackWholeTurnsItOff) {
  for (const std::string& reply : {std::string("$-1\r\n"), RedisFake::Bulk("short")}) {
    Answer("GET", reply);
    auto opened = RemoteTier::Open(SmallOptions(fake_.address()));
    ASSERT_TRUE(opened);
    TierDriver driver(**opened);
    EXPECT_TRUE(
        driver.WaitUntil([&] { return (*opened)->Remote().state == RemoteStats::State::kOff; }));
    EXPECT_EQ((*opened)->Remote().reason, "it does not keep a value of 1 MiB");
  }
  fake_.Answer({});
}

TEST_F(RemoteTierOnFake, OnlyAnErrorsTextIsAReason) {
  const std::string no_reply = "what the store sent is not a reply of Redis";
  struct Case {
    std::string command, reply, reason;
  };
  std::vector<Case> cases = {
      {"SET", ":1\r\n", "what the store sent is not a reply to this command"},
  };
  for (const char* command : {"AUTH", "PING"}) {
    for (const char* reply : {":1\r\n", "$-1\r\n", "*1\r\n$1\r\nx\r\n", "HTTP/1.1 400 Bad\r\n"}) {
      cases.push_back({command, reply, no_reply});
    }
    cases.push_back({command, "-ERR no\r\n", "ERR no"});
  }
  for (const Case& one : cases) {
    Answer(one.command, one.reply);
    RemoteTierOptions options = SmallOptions(fake_.address());
    if (one.command == "AUTH") options.password = "secret";
    auto opened = RemoteTier::Open(options);
    ASSERT_TRUE(opened);
    TierDriver driver(**opened);
    EXPECT_TRUE(driver.WaitUntil(
        [&] { return (*opened)->Remote().state != RemoteStats::State::kConnecting; }));
    EXPECT_EQ((*opened)->Remote().reason, one.reason) << one.command << one.reply;
  }
  fake_.Answer({});
}

TEST_F(RemoteTierOnFake, WhatAStoreSaysIsClippedAndPrintable) {
  const std::string rest(900, 'x'), said = "ERR \x1b[2J a\n2026 FAKE\x07\xc2\x9b " + rest;
  Answer("PING", "-" + said + "\r\n");
  auto opened = RemoteTier::Open(SmallOptions(fake_.address()));
  ASSERT_TRUE(opened);
  TierDriver driver(**opened);
  EXPECT_TRUE(
      driver.WaitUntil([&] { return (*opened)->Remote().state == RemoteStats::State::kOff; }));
  const std::string shown = "ERR ?[2J a?2026 FAKE??? ";
  EXPECT_EQ((*opened)->Remote().reason, shown + rest.substr(0, 200 - shown.size()));
  fake_.Answer({});
  Open();
  Answer("SCAN", "-" + said + "\r\n");
  const auto erased = driver_->Erase(TestRecord::Owner(0));
  ASSERT_FALSE(erased);
  EXPECT_NE(erased.error().message.find(shown), std::string::npos);
  EXPECT_LT(erased.error().message.size(), 320u);
  fake_.Answer({});
}

// A store ends its words as it likes, and ours go on after them.
TEST_F(RemoteTierOnFake, NoReasonHasTwoMarksOfPunctuation) {
  EXPECT_EQ(StoreWords("OOM used memory > 'maxmemory'."), "OOM used memory > 'maxmemory'");
  EXPECT_EQ(StoreWords("AccessDenied: "), "AccessDenied");
  EXPECT_EQ(StoreWords("What is wrong?; .. "), "What is wrong?");
  EXPECT_EQ(StoreWords("..."), "it does not say why");
  for (const char* said : {"-READONLY You can't write against a read only replica.\r\n",
                           "-NOPERM this user:\r\n", "-OOM command not allowed ...\r\n", "-\r\n"}) {
    Open();
    Answer("EXEC", said);
    const auto erased = driver_->Erase(TestRecord::Owner(0));
    ASSERT_FALSE(erased) << said;
    const std::string words = erased.error().message;
    for (const char* twice : {"..", ".;", ":;", ": ;", ".:", "::", ",;"}) {
      EXPECT_EQ(words.find(twice), std::string::npos) << words;
    }
    EXPECT_NE(words.find("; it is tried again each minute"), std::string::npos) << words;
    fake_.Answer({});
  }
}

// A store that sends a little each millisecond is late all the same.
TEST_F(RemoteTierOnFake, AReplyThatDripsIsAStall) {
  RemoteTierOptions options = SmallOptions(fake_.address());
  options.stall_ns = 50'000'000;
  Open(options);
  fake_.Answer([](const FakeWords& words) -> std::optional<std::string> {
    return words[0] == "EXISTS" ? std::optional(std::string(RedisFake::kDrips)) : std::nullopt;
  });
  std::atomic<bool> told = false;
  LookFor what{.owner = TestRecord::Owner(0), .names = {TestRecord::Name(3, 0)}};
  ASSERT_TRUE(tier_->Look(what, [&] { told = true; }));
  ASSERT_TRUE(driver_->WaitUntil([&] { return told.load(); }));
  EXPECT_EQ(tier_->Remote().state, RemoteStats::State::kOff);
  EXPECT_FALSE(fake_.has_dripped()) << "the tier waited for all of it";
  fake_.Answer({});
}

TEST_F(RemoteTierOnFake, WhatIsNoObjectOfAnOwnerIsReplaced) {
  const std::string name = FleetKeys(TestRecord::Filled(77)).OwnerName(TestRecord::Owner(0));
  for (const std::string& other :
       {std::string(97, 'x'), std::string(5000, 'x'), std::string("x"), std::string()}) {
    fake_.Put(name, other);
    Open();
    ASSERT_TRUE(driver_->WaitUntil([&] { return fake_.values().at(name).size() == 96; }))
        << other.size();
    fake_.Put(name, other);
    const auto erased = driver_->Erase(TestRecord::Owner(0));
    ASSERT_TRUE(erased) << erased.error().message;
    EXPECT_EQ(fake_.values().at(name).size(), 96u);
  }
}

TEST_F(RemoteTierOnFake, AConnectionThatWasClosedMeanwhileIsOpenedAgain) {
  Open();
  ASSERT_TRUE(driver_->Write(FaultRecord(0, 0)));
  ASSERT_TRUE(driver_->Flush());
  ASSERT_EQ(driver_->ReadBack(FaultRecord(0, 0)), TierDriver::Read::kRight);
  fake_.HangUp();
  EXPECT_EQ(driver_->ReadBack(FaultRecord(0, 0)), TierDriver::Read::kRight);
  ASSERT_TRUE(driver_->Write(FaultRecord(0, 1)));
  EXPECT_TRUE(driver_->Flush());
  driver_->Look(FaultRecord(0, 0));
  EXPECT_EQ(tier_->Remote().fault_io, 0u);
}

}  // namespace
}  // namespace kvasir
