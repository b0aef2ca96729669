// Contract C4: what was asked before an erase is not found after it, though the request goes on and
// is matched again: it crosses the length of RoPE longrope, is preempted, or its load ends.
#include <gtest/gtest.h>

#include <map>
#include <string_view>

#include "base/clock.h"
#include "schedule/request_check.h"
#include "schedule/request_limits_for_test.h"
#include "schedule/scheduler.h"
#include "testing/fake_runner.h"
#include "testing/small_runner_for_test.h"
#include "tier/memory_tier_for_test.h"

namespace kvasir {
namespace {

struct EraseOptions {
  uint32_t max_blocks = 64, parallel = 4;
  uint32_t long_after = UINT32_MAX;
  std::vector<uint32_t> windows = {0};
  Tier* tier = nullptr;
};

// An engine without its thread.
class ErasingProcess {
 public:
  explicit ErasingProcess(const EraseOptions& options)
      : parallel_(options.parallel),
        runner_({.vocab_size = kSmallVocab,
                 .max_positions = kSmallContext,
                 .block_tokens = kSmallBlockTokens,
                 .max_rows = kSmallRows,
                 .windows = options.windows,
                 .long_after = options.long_after}),
        cache_(*KvCache::Create({.layout = runner_.layout(),
                                 .budget_bytes = 1 << 24,
                                 .hidden_size = FakeRunner::kHidden,
                                 .num_cursors = 4,
                                 .max_blocks = options.max_blocks,
                                 .secret = {},
                                 .step_tokens = kSmallRows,
                                 .tier = options.tier})),
        scheduler_(runner_, *cache_,
                   {.kv_headroom = 0,
                    .unknown_answer_tokens = 1,
                    .parallel = options.parallel,
                    .max_rows = kSmallRows,
                    .tier = options.tier,
                    .long_rope = options.long_after == UINT32_MAX
                                     ? std::nullopt
                                     : std::optional(LongRope{options.long_after, Identity{9}}),
                    .end_tokens = {}}) {}

  struct Asked {
    std::vector<TokenId> prompt;
    std::vector<std::vector<TokenId>> answers;
    Receipt receipt;
    bool is_done = false;
  };
  uint64_t Ask(const char* tenant, std::vector<TokenId> prompt, uint32_t max_tokens,
               uint32_t n = 1) {
    const uint64_t id = ++last_id_;
    Asked& asked = asked_[id];
    asked.prompt = prompt;
    asked.answers.resize(n);
    GenerateRequest spec;
    spec.tenant = tenant;
    spec.prompt = std::move(prompt);
    spec.max_tokens = max_tokens;
    spec.n = n;
    spec.sampling.temperature = 0;
    spec.ignore_eos = true;
    auto request = CheckRequest(
        std::move(spec),
        [&asked](const Event& event) {
          for (const auto& token : event.tokens) {
            asked.answers[event.choice].push_back(token.id);
          }
          if (event.last) asked.receipt = event.receipt;
          asked.is_done |= event.last;
        },
        LimitsFor(*cache_, kSmallContext, kSmallVocab, parallel_));
    EXPECT_TRUE(request);
    (*request)->id = RequestId{id};
    (*request)->times.submitted_ns = MonotonicNs();
    scheduler_.Enqueue(std::move(*request));
    return id;
  }
  const Asked& of(uint64_t id) const { return asked_.at(id); }

  void Step() {
    scheduler_.Step();
    scheduler_.CheckInvariants();
  }
  // Steps until a choice has this state.
  void StepUntil(std::string_view state) {
    for (uint32_t i = 0; i < 100'000; ++i) {
      for (const SequenceState& each : scheduler_.States(std::nullopt)) {
        if (each.state == state) return;
      }
      Step();
    }
    FAIL() << "no choice was ever '" << state << "'";
  }
  void Erase(
      std::string_view owner, ErasureSink done = [](const Erasure&) {}) {
    scheduler_.Erase(owner, std::move(done));
  }
  // Steps until all have their answers, which are those of their tokens.
  void Finish() {
    while (!scheduler_.idle()) Step();
    for (const auto& [id, asked] : asked_) {
      EXPECT_TRUE(asked.is_done);
      for (const auto& answer : asked.answers) {
        std::vector<TokenId> tokens = asked.prompt;
        for (const TokenId token : answer) {
          EXPECT_EQ(token, runner_.NextToken(tokens)) << "request " << id;
          tokens.push_back(token);
        }
      }
    }
  }
  // Hands all blocks over.
  void Store() {
    bool is_stored = false;
    scheduler_.Flush([&](const Result<TierFlushed>& flushed) { is_stored = flushed.has_value(); });
    while (!is_stored) Step();
  }
  // Tells whether a row of the last steps is left in the runner's scratch memory.
  bool has_rows() const {
    for (uint32_t row = 0; row < kSmallRows; ++row) {
      if (std::ranges::any_of(runner_.hidden(row), [](float x) { return x != 0; })) return true;
    }
    return false;
  }
  CacheUsage usage() const { return cache_->usage(); }
  void SetTenants(const TenantTable& tenants) { scheduler_.SetTenants(tenants); }

 private:
  const uint32_t parallel_;
  FakeRunner runner_;
  std::unique_ptr<KvCache> cache_;
  Scheduler scheduler_;
  uint64_t last_id_ = 0;
  std::map<uint64_t, Asked> asked_;
};

void ExpectNothingCached(const ErasingProcess& process) {
  EXPECT_EQ(process.usage().cached_tokens, 0u);
  EXPECT_EQ(process.usage().num_cursors, 0u);
}

TEST(SchedulerErase, AnAnswerThatCrossesTheLengthOfLongRopePublishesNothing) {
  for (const uint32_t n : {1u, 3u}) {
    ErasingProcess process({.long_after = 60});
    const uint64_t id = process.Ask("a", SmallPrompt(40, 1), 90, n);
    process.StepUntil("decode");
    process.Erase("a");
    process.Finish();
    EXPECT_GT(process.of(id).receipt.recomputed, 0u) << "it must have crossed";
    ExpectNothingCached(process);
  }
}

TEST(SchedulerErase, APreemptedRequestPublishesNothingWhenItGoesOn) {
  for (const bool is_erased_before : {true, false}) {
    ErasingProcess process({.max_blocks = 12});
    for (TokenId first = 1; first <= 3; ++first) process.Ask("a", SmallPrompt(32, first), 100);
    process.StepUntil(is_erased_before ? "decode" : "preempted");
    process.Erase("a");
    process.StepUntil("preempted");
    process.Finish();
    ExpectNothingCached(process);
  }
}

TEST(SchedulerErase, WhatWaitsPublishesNothingAndWhatComesLaterDoes) {
  ErasingProcess process({.parallel = 1});
  process.Ask("a", SmallPrompt(64, 1), 8);
  const uint64_t waits = process.Ask("a", SmallPrompt(64, 1), 8);
  process.Ask("b", SmallPrompt(64, 1), 8);
  process.Step();
  process.Erase("a");
  process.Finish();
  EXPECT_EQ(process.of(waits).receipt.computed, 64u);
  ASSERT_TRUE(process.of(waits).receipt.miss);
  EXPECT_EQ(process.of(waits).receipt.miss->reason, MissReason::kDisabled);
  const uint64_t of_b = process.usage().cached_tokens;
  EXPECT_GE(of_b, 64u);
  EXPECT_LT(of_b, 80u);
  process.Ask("a", SmallPrompt(64, 1), 8);
  const uint64_t again = process.Ask("a", SmallPrompt(64, 1), 8);
  process.Finish();
  EXPECT_GE(process.usage().cached_tokens, 2 * of_b);
  EXPECT_GE(process.of(again).receipt.cached_tokens(), 63u);
}

TEST(SchedulerErase, NoRowIsLeftWhenItIsToldNorWhenTheLastRequestEndsThatCameBefore) {
  ErasingProcess process({});
  const uint64_t shorter = process.Ask("a", SmallPrompt(64, 1), 8);
  const uint64_t longer = process.Ask("a", SmallPrompt(64, 2), 30);
  process.StepUntil("decode");
  EXPECT_TRUE(process.has_rows());
  bool is_told = false;
  process.Erase("a", [&](const Erasure&) {
    is_told = true;
    EXPECT_FALSE(process.has_rows());
  });
  while (!is_told) process.Step();
  while (!process.of(shorter).is_done) process.Step();
  EXPECT_FALSE(process.of(longer).is_done);
  process.Step();
  EXPECT_TRUE(process.has_rows()) << "it would find them";
  process.Finish();
  EXPECT_FALSE(process.has_rows());
  process.Ask("a", SmallPrompt(64, 3), 8);
  process.Finish();
  EXPECT_TRUE(process.has_rows()) << "no erase is at work";
}

TEST(SchedulerErase, ALoadThatItCancelsPublishesNothingAndWasNotUnreadable) {
  for (const std::vector<uint32_t>& windows : {std::vector<uint32_t>{0, 40}, {33}, {0}}) {
    MemoryTierOptions options;
    options.payload_bytes =
        FakeRunner({.block_tokens = kSmallBlockTokens, .max_rows = kSmallRows, .windows = windows})
            .layout()
            .block_bytes();
    options.stalls_at = 0;
    options.stall = std::chrono::milliseconds(200);
    MemoryTier tier(options);
    {
      ErasingProcess first({.windows = windows, .tier = &tier});
      first.Ask("a", SmallPrompt(200, 1), 1);
      first.Finish();
      first.Store();
    }
    ASSERT_GT(tier.Stats().blocks, 0u);
    ErasingProcess process({.windows = windows, .tier = &tier});
    const uint64_t id = process.Ask("a", SmallPrompt(200, 1), 8);
    process.StepUntil("loading");
    process.Erase("a");
    process.Finish();
    ExpectNothingCached(process);
    EXPECT_EQ(tier.Stats().blocks + tier.Stats().pending_blocks, 0u);
    const Receipt& receipt = process.of(id).receipt;
    EXPECT_EQ(receipt.computed, 200u);
    ASSERT_TRUE(receipt.miss);
    EXPECT_STREQ(ToString(receipt.miss->reason), "evicted");
  }
}

// A reload lowers `max_running` below the choices of requests that were accepted before.
TEST(SchedulerReload, ARequestOfMoreChoicesThanItsTenantMayRunRunsAlone) {
  for (const bool is_preempted : {false, true}) {
    // 19 blocks and 23 of which the choices, whose answers are equal, come to share 12.
    ErasingProcess process({.max_blocks = is_preempted ? 26u : 64u, .parallel = 6});
    const uint64_t before = process.Ask("a", SmallPrompt(200, 1), 100, is_preempted ? 1 : 4);
    const uint64_t wide = process.Ask("a", SmallPrompt(32, 2), 100, 3);
    process.StepUntil(is_preempted ? "preempted" : "decode");
    TenantTable tenants;
    tenants["a"].max_running = 2;
    process.SetTenants(tenants);
    const uint64_t after = process.Ask("a", SmallPrompt(32, 3), 60);
    for (uint32_t i = 0; i < 2000; ++i) process.Step();
    for (const uint64_t id : {before, wide, after}) EXPECT_TRUE(process.of(id).is_done) << id;
    process.Finish();
  }
}

}  // namespace
}  // namespace kvasir
