// Requests with only_when_idle: they run while nothing else does, end as soon as something comes,
// and no figure of users counts them.
#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "base/clock.h"
#include "schedule/request_check.h"
#include "schedule/request_limits_for_test.h"
#include "schedule/scheduler.h"
#include "testing/fake_runner.h"
#include "testing/small_runner_for_test.h"

namespace kvasir {
namespace {

class SpareTest : public testing::Test {
 protected:
  SpareTest()
      : runner_(SmallRunnerOptions()),
        cache_(SmallCache(runner_)),
        scheduler_(runner_, *cache_,
                   {.kv_headroom = 0, .parallel = 4, .max_rows = kSmallRows, .end_tokens = {}}) {
    scheduler_.set_on_stats([this](const EngineStats& stats) { stats_ = stats; });
  }

  uint64_t Ask(std::vector<TokenId> prompt, uint32_t max_tokens, bool only_when_idle) {
    const uint64_t id = ++last_id_;
    GenerateRequest spec;
    spec.tenant = "anna";
    spec.prompt = std::move(prompt);
    spec.max_tokens = max_tokens;
    spec.ignore_eos = true;
    spec.only_when_idle = only_when_idle;
    auto request = CheckRequest(
        std::move(spec),
        [this, id](const Event& event) {
          if (event.last) ended_.insert_or_assign(id, event);
        },
        LimitsFor(*cache_, kSmallContext, kSmallVocab, 4));
    EXPECT_TRUE(request);
    (*request)->id = RequestId{id};
    (*request)->times.submitted_ns = MonotonicNs();
    scheduler_.Enqueue(std::move(*request));
    return id;
  }
  void Run() {
    while (!scheduler_.idle()) Step();
  }
  void Step() {
    scheduler_.Step();
    scheduler_.CheckInvariants();
  }
  FinishReason EndOf(uint64_t id) const {
    return ended_.contains(id) ? ended_.at(id).finish_reason : FinishReason::kNone;
  }

  FakeRunner runner_;
  std::unique_ptr<KvCache> cache_;
  Scheduler scheduler_;
  EngineStats stats_;
  std::map<uint64_t, Event> ended_;
  uint64_t last_id_ = 0;
};

TEST_F(SpareTest, FillsTheCacheAndNoFigureOfUsersCountsIt) {
  const uint64_t spare = Ask(SmallPrompt(96), 0, true);
  EXPECT_TRUE(scheduler_.States(std::nullopt).empty());
  while (!scheduler_.idle()) {
    Step();
    EXPECT_EQ(stats_.running + stats_.queued, 0u);
    EXPECT_TRUE(scheduler_.States(std::nullopt).empty());
  }
  EXPECT_EQ(EndOf(spare), FinishReason::kLength);
  EXPECT_EQ(stats_.prepared_tokens, 96u);
  EXPECT_EQ(stats_.prompt_tokens, 0u);
  EXPECT_EQ(stats_.requests_finished, 0u);
  EXPECT_EQ(stats_.misses[static_cast<size_t>(MissReason::kCold)], 0u);
  for (const TenantStats& tenant : stats_.tenants) {
    EXPECT_EQ(tenant.requests, 0u);
    EXPECT_EQ(tenant.service_ns, 0.0);
  }
  std::vector<TokenId> next = SmallPrompt(96);
  next.push_back(5);
  const uint64_t user = Ask(next, 1, false);
  Run();
  EXPECT_EQ(ended_.at(user).receipt.computed, 1u);
  EXPECT_EQ(stats_.requests_finished, 1u);
}

TEST_F(SpareTest, EndsBeforeTheNextStepWhenSomethingComes) {
  const uint64_t spare = Ask(SmallPrompt(160), 0, true);
  Step();
  Step();
  ASSERT_EQ(EndOf(spare), FinishReason::kNone);
  const uint64_t computed = stats_.prepared_tokens;
  ASSERT_EQ(computed, 2 * kSmallRows);
  const uint64_t user = Ask(SmallPrompt(32, 3), 1, false);
  Step();
  EXPECT_EQ(EndOf(spare), FinishReason::kCancelled);
  EXPECT_EQ(stats_.prepared_tokens, computed);
  EXPECT_EQ(stats_.requests_cancelled, 0u);
  Run();
  EXPECT_EQ(EndOf(user), FinishReason::kLength);
  // What was computed of it until then stays.
  const uint64_t next = Ask(SmallPrompt(160), 1, false);
  Run();
  EXPECT_EQ(ended_.at(next).receipt.computed, 160 - computed);
}

TEST_F(SpareTest, WaitsUntilNothingElseRuns) {
  const uint64_t user = Ask(SmallPrompt(32), 8, false);
  Step();
  const uint64_t spare = Ask(SmallPrompt(64, 3), 0, true);
  while (EndOf(user) == FinishReason::kNone) {
    Step();
    EXPECT_EQ(stats_.prepared_tokens, 0u);
  }
  Run();
  EXPECT_EQ(EndOf(spare), FinishReason::kLength);
  EXPECT_EQ(stats_.prepared_tokens, 64u);
}

TEST_F(SpareTest, PublishesNothingAfterAForget) {
  for (const uint32_t steps : {0u, 2u}) {
    const std::vector<TokenId> prompt = SmallPrompt(128, static_cast<TokenId>(9 + steps));
    const uint64_t spare = Ask(prompt, 0, true);
    for (uint32_t i = 0; i < steps; ++i) Step();
    scheduler_.Forget({.owner = "anna", .ids = prompt, .first = 0, .last = 127},
                      std::make_shared<const KeptPrompts>(), [](const Erasure&) {});
    Run();
    EXPECT_EQ(EndOf(spare), FinishReason::kLength);
    const uint64_t next = Ask(prompt, 1, false);
    Run();
    EXPECT_EQ(ended_.at(next).receipt.computed, 128u) << steps;
  }
}

TEST_F(SpareTest, CanBeCancelledWhereverItIs) {
  const uint64_t runs = Ask(SmallPrompt(128), 0, true);
  const uint64_t waits = Ask(SmallPrompt(128, 5), 0, true);
  Step();
  scheduler_.Cancel(RequestId{waits});
  scheduler_.Cancel(RequestId{runs});
  Run();
  EXPECT_EQ(EndOf(runs), FinishReason::kCancelled);
  EXPECT_EQ(EndOf(waits), FinishReason::kCancelled);
  const uint64_t all = Ask(SmallPrompt(128, 7), 0, true);
  scheduler_.CancelAll();
  Run();
  EXPECT_EQ(EndOf(all), FinishReason::kCancelled);
}

}  // namespace
}  // namespace kvasir
