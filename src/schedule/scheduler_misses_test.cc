// How the scheduler counts misses that a caller explains.
#include <gtest/gtest.h>

#include "base/clock.h"
#include "schedule/request_check.h"
#include "schedule/request_limits_for_test.h"
#include "schedule/scheduler.h"
#include "testing/small_runner_for_test.h"

namespace kvasir {
namespace {

class MissesTest : public testing::Test {
 protected:
  static constexpr uint32_t kParallel = 2;

  MissesTest()
      : runner_(SmallRunnerOptions()),
        cache_(SmallCache(runner_)),
        scheduler_(runner_, *cache_,
                   {.parallel = kParallel, .max_rows = kSmallRows, .end_tokens = {}}) {
    scheduler_.set_on_stats([this](const EngineStats& stats) { stats_ = stats; });
  }

  Receipt Ask(std::vector<TokenId> prompt, GenerateRequest spec = {}) {
    Receipt receipt;
    spec.prompt = std::move(prompt);
    spec.max_tokens = 1;
    spec.ignore_eos = true;
    auto request = CheckRequest(
        std::move(spec), [&](const Event& event) { receipt = event.receipt; },
        LimitsFor(*cache_, kSmallContext, kSmallVocab, kParallel));
    EXPECT_TRUE(request);
    (*request)->id = RequestId{++last_id_};
    (*request)->times.submitted_ns = MonotonicNs();
    scheduler_.Enqueue(std::move(*request));
    while (!scheduler_.idle()) scheduler_.Step();
    return receipt;
  }
  uint64_t diverged() const { return stats_.misses[static_cast<size_t>(MissReason::kDiverged)]; }
  static std::vector<TokenId> PromptThatEndsIn(TokenId last) {
    std::vector<TokenId> prompt = SmallPrompt(40);
    prompt[30] = last;
    return prompt;
  }

  FakeRunner runner_;
  const std::unique_ptr<KvCache> cache_;
  Scheduler scheduler_;
  EngineStats stats_;
  uint64_t last_id_ = 0;
};

TEST_F(MissesTest, AMissThatTheCallerExplainsIsNotCounted) {
  Ask(PromptThatEndsIn(7));
  const Receipt counted = Ask(PromptThatEndsIn(8));
  ASSERT_TRUE(counted.miss);
  EXPECT_EQ(counted.miss->reason, MissReason::kDiverged);
  EXPECT_EQ(diverged(), 1u);
  GenerateRequest spec;
  spec.caller_explains = true;
  const Receipt explained = Ask(PromptThatEndsIn(9), spec);
  ASSERT_TRUE(explained.miss);
  EXPECT_EQ(explained.miss->reason, MissReason::kDiverged) << "the receipt has it";
  EXPECT_EQ(explained.computed, counted.computed);
  EXPECT_EQ(diverged(), 1u);
}

}  // namespace
}  // namespace kvasir
