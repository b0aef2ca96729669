// What a store that answers wrongly, late or not at all may do to a remote tier.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "remote/redis_fake_for_test.h"
#include "remote/remote_tier.h"
#include "tier/tier_driver_for_test.h"

namespace kvasir {
namespace {

using FakeWords = RedisFake::Words;

RemoteTierOptions FaultOptions(const RedisFake& fake) {
  return {.address = fake.address(),
          .memory_bytes = 64 * 1024,
          .fleet = TestRecord::Filled(77),
          .identity = TestRecord::Filled(78),
          .shape = {.block_tokens = kSmallTokens, .payload_bytes = kSmallPayload},
          .stall_ns = 3'000'000'000,
          .num_names = 1024};
}

TestRecord FaultRecord(uint32_t chain, uint32_t number, uint32_t owner = 0) {
  return TestRecord(chain, number, owner, kSmallTokens, kSmallPayload);
}

class RemoteTierOnFake : public testing::Test {
 protected:
  void Open() { Open(FaultOptions(fake_)); }
  void Open(const RemoteTierOptions& options) {
    auto opened = RemoteTier::Open(options);
    ASSERT_TRUE(opened) << opened.error().message;
    tier_ = std::move(*opened);
    driver_ = std::make_unique<TierDriver>(*tier_);
    ASSERT_TRUE(WaitFor(RemoteStats::State::kOn)) << tier_->Remote().reason;
    ASSERT_TRUE(tier_->OpenOwner(TestRecord::Owner(0)));
    driver_->Look(FaultRecord(0, 0));
  }
  bool WaitFor(RemoteStats::State state) {
    return driver_->WaitUntil([&] { return tier_->Remote().state == state; });
  }
  // Has each command of this name answered by these bytes.
  void Answer(const std::string& command, const std::string& bytes) {
    fake_.Answer([=](const FakeWords& words) {
      return words[0] == command ? std::optional(bytes) : std::nullopt;
    });
  }

  RedisFake fake_;
  std::unique_ptr<RemoteTier> tier_;
  std::unique_ptr<TierDriver> driver_;
};

TEST_F(RemoteTierOnFake, WorksAsOnRedis) {
  Open();
  for (uint32_t i = 0; i < 5; ++i) ASSERT_TRUE(driver_->Write(FaultRecord(0, i)));
  ASSERT_TRUE(driver_->Flush());
  EXPECT_EQ(driver_->ReadBack(FaultRecord(0, 4)), TierDriver::Read::kOpened);
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
    EXPECT_EQ(erased.error().code, Code::kIoError) << reply;
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

// A page of SCAN has as many names as the store likes; they are removed in pieces.
TEST_F(RemoteTierOnFake, APageOfAnyLengthIsErasedInPieces) {
  Open();
  constexpr uint32_t kNames = 20'000;
  fake_.Answer([](const FakeWords& words) -> std::optional<std::string> {
    if (words[0] == "UNLINK") return ":1\r\n";
    if (words[0] != "SCAN") return std::nullopt;
    const std::string below = words[3].substr(0, words[3].size() - 1);
    std::string page = "*2\r\n$1\r\n0\r\n*" + std::to_string(kNames) + "\r\n";
    for (uint32_t i = 0; i < kNames; ++i) page += RedisFake::Bulk(below + std::to_string(i));
    return page;
  });
  const auto erased = driver_->Erase(TestRecord::Owner(0));
  ASSERT_TRUE(erased) << erased.error().message;
  EXPECT_EQ(erased->remote->records, kNames);
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

}  // namespace
}  // namespace kvasir
