// RemoteTierOnFake: a remote tier of a test on a store that answers as the test wants.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "remote/redis_fake_for_test.h"
#include "remote/remote_tier.h"
#include "tier/tier_driver_for_test.h"

namespace kvasir {

using FakeWords = RedisFake::Words;

// Returns the options of a tier of small records.
inline RemoteTierOptions SmallOptions(RemoteAddress address = {}) {
  return {.address = std::move(address),
          .memory_bytes = 64 * 1024,
          .fleet = TestRecord::Filled(77),
          .identity = TestRecord::Filled(78),
          .shape = {.block_tokens = kSmallTokens, .payload_bytes = kSmallPayload},
          .stall_ns = 3'000'000'000,
          .num_names = 1024};
}

inline TestRecord FaultRecord(uint32_t chain, uint32_t number, uint32_t owner = 0) {
  return TestRecord(chain, number, owner, kSmallTokens, kSmallPayload);
}

class RemoteTierOnFake : public testing::Test {
 protected:
  void Open() { Open(SmallOptions(fake_.address())); }
  void Open(const RemoteTierOptions& options) {
    auto opened = RemoteTier::Open(options);
    ASSERT_TRUE(opened) << opened.error().message;
    tier_ = std::move(*opened);
    driver_ = std::make_unique<TierDriver>(*tier_);
    ASSERT_TRUE(WaitFor(RemoteStats::State::kOn)) << tier_->Remote().reason;
    ASSERT_TRUE(tier_->ReadyOwner(TestRecord::Owner(0)));
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

}  // namespace kvasir
