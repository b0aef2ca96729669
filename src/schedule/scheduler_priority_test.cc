// Priorities of requests that wait for each other.
#include <gtest/gtest.h>

#include <vector>

#include "base/own_clock.h"
#include "schedule/request_check.h"
#include "schedule/scheduler.h"
#include "testing/fake_runner.h"

namespace kvasir {
namespace {

TEST(Scheduler, ALeaderHasThePriorityOfWhoWaitsForIt) {
  OwnClock clock;
  FakeRunner runner({.vocab_size = 64, .max_positions = 96, .max_rows = 16});
  auto cache = KvCache::Create({.layout = runner.layout(),
                                .budget_bytes = 1 << 20,
                                .hidden_size = FakeRunner::kHidden,
                                .num_cursors = 4,
                                .max_blocks = 24,
                                .secret = {7},
                                .step_tokens = 16});
  ASSERT_TRUE(cache);
  std::vector<int32_t> priorities;  // of the first running request, by step
  Scheduler scheduler(
      runner, **cache,
      {.parallel = 2, .max_rows = 16, .on_plan = [&](const View& view, const StepPlan& plan) {
         if (!plan.preempt && !plan.admit) priorities.push_back(view.requests[0].priority);
       }});
  const auto ask = [&](uint64_t id, const char* tenant, int32_t priority) {
    GenerateRequest spec;
    spec.tenant = tenant;
    spec.cache_owner = "shared";
    spec.prompt = std::vector<TokenId>(80, 1);
    spec.max_tokens = 1;
    spec.priority = priority;
    auto request = CheckRequest(spec, [](const Event&) {},
                                {.ctx_size = 96,
                                 .max_positions = 96,
                                 .vocab_size = 64,
                                 .parallel = 2,
                                 .num_blocks = (*cache)->plan().num_blocks,
                                 .pool_blocks = (*cache)->plan().num_blocks,
                                 .layout = &runner.layout(),
                                 .step_tokens = 16});
    ASSERT_TRUE(request);
    (*request)->id = RequestId{id};
    (*request)->times.submitted_ns = MonotonicNs();
    scheduler.Enqueue(std::move(*request));
  };
  ask(1, "a", 5);
  scheduler.Step();
  ask(2, "b", -9);
  scheduler.Step();
  ask(3, "a", -2);
  scheduler.Step();
  EXPECT_EQ(priorities, (std::vector<int32_t>{5, 5, -2})) << "only its own tenant's count";
  while (!scheduler.idle()) scheduler.Step();
}

}  // namespace
}  // namespace kvasir
