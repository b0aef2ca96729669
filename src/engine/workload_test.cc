#include "engine/workload.h"

#include <gtest/gtest.h>

namespace kvasir {
namespace {

Workload Busy() {
  Workload workload;
  workload.tenants = {{.name = ""},
                      {.name = "a", .weight = 1, .waiting_ns = 100, .expected_answer = 10},
                      {.name = "b", .weight = 3, .waiting_ns = 1000, .expected_answer = 10}};
  workload.row_ns = 1;
  workload.step_ns = 8;
  workload.parallel = workload.running = 4;
  workload.running_ns = 400;
  workload.waiting = 5;
  return workload;
}

TEST(Workload, AnIdleEngineStartsAtOnce) {
  Workload idle = Busy();
  idle.running = idle.waiting = 0;
  const WaitEstimate estimate = EstimateWait(idle, "a", 50, 1000);
  EXPECT_EQ(estimate.start_ns, 0);
  EXPECT_EQ(estimate.first_token_ns, 50);
  EXPECT_EQ(estimate.end_ns, 50 + 10 * 8);
  EXPECT_FALSE(estimate.knows_end);
  EXPECT_TRUE(EstimateWait(idle, "a", 50, 1).knows_end);
}

TEST(Workload, OthersCountAsFarAsTheirSharesGo) {
  Workload busy = Busy();
  // A place is free after 400 / 4; then its own 100; b takes three times what a takes.
  EXPECT_EQ(EstimateWait(busy, "a", 60, 10).start_ns, 100 + 100 + 3 * (100 + 60 + 20));
  // a takes a third of what b takes, but has only 100.
  EXPECT_EQ(EstimateWait(busy, "b", 60, 10).start_ns, 100 + 1000 + 100);
  // A tenant that has no requests yet.
  EXPECT_EQ(EstimateWait(busy, "c", 0, 0).start_ns, 100);
}

TEST(Workload, NothingKnownIsNoWait) {
  Workload unknown;
  unknown.running = unknown.parallel = 1;
  unknown.waiting = 3;
  EXPECT_EQ(EstimateWait(unknown, "a", 1000, 1000).end_ns, 0);
}

}  // namespace
}  // namespace kvasir
