// Contract C6: a tier that is slow, stalls or fails costs at most a twentieth and 50 ms beside
// computing. In real time, with a runner whose steps sleep and a tier in memory.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "cache/tier_probe.h"
#include "schedule/scheduler_process_for_test.h"
#include "tier/blocking_storage_for_test.h"
#include "tier/disk_tier.h"
#include "tier/memory_tier_for_test.h"

namespace kvasir {
namespace {

using std::chrono::milliseconds;

constexpr uint32_t kLongTokens = 2048;
constexpr auto kStep = milliseconds(20);  // of kProcessRows rows: 2,048 tokens take 640 ms

// Returns the options of an engine whose steps take time.
ProcessOptions LoadingOptions(Tier* tier, const std::vector<uint32_t>& windows = {0},
                              milliseconds tier_answer = milliseconds(60'000)) {
  return {.tier = tier, .windows = windows, .tier_answer = tier_answer, .on_step = [] {
            std::this_thread::sleep_for(kStep);
          }};
}

struct Timed {
  double cold_ms = 0, loaded_ms = 0;
  Receipt receipt;
};

// Computes the prompts in one process, which stores them. Another one finds out how quick computing
// and loading are, by a short prompt of each, and then gets the long one.
Timed Measure(const MemoryTierOptions& options, const std::vector<uint32_t>& windows = {0}) {
  const auto longest = RandomPrompt(1, kLongTokens), shorter = RandomPrompt(2, 512),
             other = RandomPrompt(3, 512);
  MemoryTier tier(options);
  Timed timed;
  {
    SchedulerProcess first(LoadingOptions(&tier, windows));
    timed.cold_ms = first.Ask(longest).receipt.ttft_ms;
    first.Ask(shorter);
    EXPECT_TRUE(first.Store());
  }
  SchedulerProcess second(LoadingOptions(&tier, windows));
  second.Ask(other);
  second.Ask(shorter);
  const auto answer = second.Ask(longest);
  timed.loaded_ms = answer.receipt.ttft_ms;
  timed.receipt = answer.receipt;
  std::printf("computed in %.0f ms, with the tier %.0f ms: %u tokens from it, miss %s\n",
              timed.cold_ms, timed.loaded_ms, timed.receipt.reused_disk,
              timed.receipt.miss ? ToString(timed.receipt.miss->reason) : "none");
  return timed;
}

MemoryTierOptions TierOptions() {
  MemoryTierOptions options;
  options.payload_bytes =
      FakeRunner({.block_tokens = kProcessBlock, .max_rows = kProcessRows}).layout().block_bytes();
  options.num_buffers = 256;
  return options;
}

// Returns the bytes that computing makes in a second.
double ComputedBytesPerSecond() {
  return TierOptions().payload_bytes / double{kProcessBlock} * kProcessRows /
         (std::chrono::duration<double>(kStep).count());
}

// Checks the time where the test runs alone: other processes delay steps of 20 ms.
void ExpectAtMost(double limit_ms, const Timed& timed) {
  if (std::getenv("KVASIR_SLOW") != nullptr) {
    EXPECT_LE(timed.loaded_ms, limit_ms);
  }
}
void ExpectNoSlower(const Timed& timed) { ExpectAtMost(1.05 * timed.cold_ms + 50, timed); }

TEST(SchedulerLoad, AQuickTierIsMuchQuickerThanComputing) {
  const Timed timed = Measure(TierOptions());
  EXPECT_EQ(timed.receipt.reused_disk, kLongTokens - kProcessBlock);
  ExpectAtMost(0.2 * timed.cold_ms, timed);
  EXPECT_FALSE(timed.receipt.miss);
}

TEST(SchedulerLoad, WhatATierHasOfAPromptIsKnownBeforeItIsAsked) {
  MemoryTier tier(TierOptions());
  const auto prompt = RandomPrompt(1, 320);
  const KvLayout layout =
      FakeRunner({.block_tokens = kProcessBlock, .max_rows = kProcessRows}).layout();
  const auto tokens = [&](std::string_view owner, const std::optional<Digest>& salt,
                          const Identity& identity, std::span<const TokenId> ids) {
    return TokensInTier(tier, layout, RootKeyOf(Secret{}, owner, salt, identity), ids);
  };
  EXPECT_EQ(tokens("default", std::nullopt, Identity{}, prompt), 0u);
  SchedulerProcess process(LoadingOptions(&tier));
  process.Ask(prompt);
  ASSERT_TRUE(process.Store());
  EXPECT_EQ(tokens("default", std::nullopt, Identity{}, prompt), 304u);  // not the last token
  EXPECT_EQ(tokens("default", std::nullopt, Identity{}, std::span(prompt).first(100)), 96u);
  std::vector<TokenId> other = prompt;
  other[50] ^= 1;
  EXPECT_EQ(tokens("default", std::nullopt, Identity{}, other), 48u);
  EXPECT_EQ(tokens("b", std::nullopt, Identity{}, prompt), 0u);
  EXPECT_EQ(tokens("default", Sha256Of(std::string_view("salt")), Identity{}, prompt), 0u);
  EXPECT_EQ(tokens("default", std::nullopt, Identity{1}, prompt), 0u);
}

TEST(SchedulerLoad, AWindowIsLoadedWithTheBlocksThatItsLastTokenSees) {
  for (const std::vector<uint32_t>& windows : {std::vector<uint32_t>{0, 40}, {33}}) {
    const Timed timed = Measure(TierOptions(), windows);
    EXPECT_EQ(timed.receipt.reused_disk, kLongTokens - kProcessBlock);
    ExpectAtMost(0.2 * timed.cold_ms, timed);
  }
}

TEST(SchedulerLoad, ATierOfATenthOfTheSpeedCostsNothing) {
  MemoryTierOptions options = TierOptions();
  options.bytes_per_s = static_cast<uint64_t>(0.1 * ComputedBytesPerSecond());
  ExpectNoSlower(Measure(options));
}

TEST(SchedulerLoad, ATierOfHalfTheSpeedSavesAFifth) {
  MemoryTierOptions options = TierOptions();
  options.bytes_per_s = static_cast<uint64_t>(0.5 * ComputedBytesPerSecond());
  const Timed timed = Measure(options);
  ExpectAtMost(0.8 * timed.cold_ms, timed);
}

TEST(SchedulerLoad, ALatencyOfEveryReadCostsNothing) {
  MemoryTierOptions options = TierOptions();
  options.read_latency = milliseconds(5);
  ExpectNoSlower(Measure(options));
}

TEST(SchedulerLoad, ATierThatStallsIsOvertaken) {
  MemoryTierOptions options = TierOptions();
  options.stalls_at = 31 + 40;  // the short prompt has 31 reads
  options.stall = milliseconds(2000);
  const Timed timed = Measure(options);
  ExpectNoSlower(timed);
  ASSERT_TRUE(timed.receipt.miss);
  EXPECT_STREQ(ToString(timed.receipt.miss->reason), "overtaken");
  EXPECT_GE(timed.receipt.reused_disk, 30 * kProcessBlock);
}

TEST(SchedulerLoad, ABlockThatFailsIsComputedAlone) {
  for (const bool fails : {true, false}) {
    MemoryTierOptions options = TierOptions();
    (fails ? options.fails_at : options.damaged_at) = 31 + 2;
    const Timed timed = Measure(options);
    ExpectNoSlower(timed);
    EXPECT_EQ(timed.receipt.reused_disk, kLongTokens - 2 * kProcessBlock);
    ASSERT_TRUE(timed.receipt.miss);
    EXPECT_STREQ(ToString(timed.receipt.miss->reason), "unreadable");
    EXPECT_EQ(timed.receipt.miss->at_token, 2 * kProcessBlock);
  }
}

TEST(SchedulerLoad, AWindowThatFailsIsComputed) {
  for (const bool fails : {true, false}) {
    MemoryTierOptions options = TierOptions();
    (fails ? options.fails_at : options.damaged_at) = 31 + 3 + 2;
    const Timed timed = Measure(options, {0, 40});
    ExpectNoSlower(timed);
    EXPECT_EQ(timed.receipt.computed, kLongTokens);
    ASSERT_TRUE(timed.receipt.miss);
    EXPECT_STREQ(ToString(timed.receipt.miss->reason), "unreadable");
    EXPECT_EQ(timed.receipt.miss->at_token, 0u);
  }
}

TEST(SchedulerLoad, AWindowThatStallsIsOvertaken) {
  MemoryTierOptions options = TierOptions();
  options.stalls_at = 31 + 3 + 40;
  options.stall = milliseconds(2000);
  const Timed timed = Measure(options, {0, 40});
  EXPECT_EQ(timed.receipt.computed, kLongTokens);
  ASSERT_TRUE(timed.receipt.miss);
  EXPECT_STREQ(ToString(timed.receipt.miss->reason), "overtaken");
}

class DiskThatHangs : public testing::Test {
 protected:
  DiskThatHangs() {
    std::string pattern = testing::TempDir() + "/kvasir-load-XXXXXX";
    folder_ = mkdtemp(pattern.data());
    storage_ = std::make_unique<BlockingStorage>(gate_);
    auto tier = DiskTier::Open(
        {.folder = folder_ / "kv",
         .cap_bytes = uint64_t{16} << 20,
         .shape = {.block_tokens = kProcessBlock, .payload_bytes = TierOptions().payload_bytes},
         .num_buffers = 64},
        *storage_);
    EXPECT_TRUE(tier) << tier.error().message;
    tier_ = std::move(*tier);
  }
  ~DiskThatHangs() override {
    gate_->Block(Blocked::kNothing);
    EXPECT_TRUE(DiskTier::Close(std::move(tier_), std::move(storage_), milliseconds(20'000)));
    std::filesystem::remove_all(folder_);
  }

  std::filesystem::path folder_;
  std::shared_ptr<BlockingStorage::Gate> gate_ = std::make_shared<BlockingStorage::Gate>();
  std::unique_ptr<BlockingStorage> storage_;
  std::unique_ptr<DiskTier> tier_;
};

TEST_F(DiskThatHangs, EndsNeitherAnAnswerNorAFlushNorAnErase) {
  const milliseconds patience(500);
  SchedulerProcess process(LoadingOptions(tier_.get(), {0}, patience));
  const auto within = [&](auto&& call) {
    const uint64_t start_ns = MonotonicNs();
    auto answer = call();
    const uint64_t took_ms = (MonotonicNs() - start_ns) / 1'000'000;
    EXPECT_GE(took_ms, 499u);
    EXPECT_LT(took_ms, 10'000u);
    return answer;
  };
  for (const Blocked blocked : {Blocked::kWrite, Blocked::kSync}) {
    process.Ask(RandomPrompt(10 + static_cast<uint64_t>(blocked), 256));
    ASSERT_TRUE(process.Store());
    gate_->Block(blocked);
    const auto prompt = RandomPrompt(20 + static_cast<uint64_t>(blocked), 256);
    process.Ask(prompt);
    EXPECT_EQ(within([&] { return process.Store(); }).error().code, Code::kUnavailable);
    const Erasure erasure = within([&] { return process.Erase(); });
    ASSERT_TRUE(erasure.error);
    EXPECT_EQ(erasure.error->code, Code::kUnavailable);
    EXPECT_EQ(process.Ask(prompt).receipt.computed, prompt.size());
    // When the disk answers again, the erase is done, and what is new is stored.
    gate_->Block(Blocked::kNothing);
    Erasure done = process.Erase();
    // On a busy machine it may take longer than the patience.
    for (int i = 0; i < 20 && done.error; ++i) done = process.Erase();
    EXPECT_FALSE(done.error);
    EXPECT_EQ(tier_->Stats().blocks, 0u);
    ASSERT_TRUE(process.Store());
    process.Ask(prompt);
    ASSERT_TRUE(process.Store());
    EXPECT_GE(tier_->Stats().blocks, 15u);
  }
}

TEST_F(DiskThatHangs, EndsAForgetThatGoesOnLater) {
  SchedulerProcess process(LoadingOptions(tier_.get(), {0}, milliseconds(500)));
  const auto prompt = RandomPrompt(1, 256), other = RandomPrompt(2, 256);
  process.Ask(prompt);
  process.Ask(other);
  ASSERT_TRUE(process.Store());
  gate_->Block(Blocked::kSync);
  const Erasure erasure = process.Forget(prompt, 100);
  ASSERT_TRUE(erasure.error);
  EXPECT_EQ(erasure.error->code, Code::kUnavailable);
  EXPECT_EQ(process.Ask(prompt).receipt.cached_tokens(), 96u);  // the pool has forgotten the rest
  gate_->Block(Blocked::kNothing);
  EXPECT_FALSE(process.Forget(prompt, 200).error);  // after the first one
  EXPECT_EQ(tier_->Stats().blocks, 6u + 16u);
  SchedulerProcess restarted(LoadingOptions(tier_.get()));
  EXPECT_LE(restarted.Ask(prompt).receipt.cached_tokens(), 96u);
}

}  // namespace
}  // namespace kvasir
