#include "schedule/step_cost.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/random.h"

namespace kvasir {
namespace {

// Returns the time of a machine: reading weights takes 40 ms, a row 1.3 ms of computing beside it,
// KV 30 GB/s.
double TrueNs(const StepWork& work) {
  const double weights = 40e6, compute = 1.3e6 * work.rows();
  return std::max(weights, compute) + 2e6 + work.decode_kv_bytes / 30 + work.prefill_kv_bytes / 300;
}

StepWork RandomWork(Random& random) {
  StepWork work;
  work.decode_rows = static_cast<uint32_t>(random.Below(9));
  work.decode_kv_bytes = work.decode_rows * 1e8 * static_cast<double>(random.Below(10)) / 10;
  if (work.decode_rows == 0 || random.Below(3) == 0) {
    work.prefill_rows = 1 + static_cast<uint32_t>(random.Below(512 - work.decode_rows));
    work.prefill_kv_bytes = work.prefill_rows * 1e6 * static_cast<double>(random.Below(30));
  }
  return work;
}

// Returns the share of the next steps whose prediction is within `ratio` of the truth, after
// `known` steps.
double ShareWithin(double ratio, uint32_t known, double noise) {
  uint32_t good = 0, all = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Random random(seed);
    StepCost cost;
    for (uint32_t i = 0; i < known + 200; ++i) {
      const StepWork work = RandomWork(random);
      const double wobble = 1 + noise * (static_cast<double>(random.Below(2001)) / 1000 - 1);
      const double real = TrueNs(work) * wobble;
      if (i >= known) {
        const double predicted = cost.PredictNs(work);
        good += predicted < real * ratio && predicted > real / ratio;
        ++all;
      }
      cost.Observe(work, static_cast<uint64_t>(real));
    }
  }
  return static_cast<double>(good) / all;
}

TEST(StepCost, PredictsNineOfTenStepsWithinAQuarter) {
  for (const double noise : {0.0, 0.1}) {
    const double share = ShareWithin(1.25, 60, noise);
    std::printf("noise %.1f: %.3f of steps within 25%%\n", noise, share);
    EXPECT_GE(share, 0.9) << noise;
  }
}

TEST(StepCost, KnowsNothingAtFirst) {
  StepCost cost;
  EXPECT_FALSE(cost.knows_anything());
  EXPECT_EQ(cost.PredictNs({.prefill_rows = 5}), 0);
  cost.Observe({.decode_rows = 1}, 50'000'000);
  EXPECT_TRUE(cost.knows_anything());
  EXPECT_NEAR(cost.PredictNs({.decode_rows = 1}), 50e6, 1e5);
}

TEST(StepCost, MoreRowsNeverCostLess) {
  Random random(7);
  StepCost cost;
  for (uint32_t i = 0; i < 300; ++i) {
    const StepWork work = RandomWork(random);
    cost.Observe(work, static_cast<uint64_t>(TrueNs(work)));
    double before = 0;
    for (uint32_t rows = 1; rows < 2000; rows += 7) {
      const double now = cost.PredictNs({.prefill_rows = rows});
      ASSERT_GE(now, before - 1) << "step " << i << ", " << rows << " rows";
      before = now;
    }
  }
}

TEST(StepCost, FollowsAMachineThatBecomesSlower) {
  Random random(9);
  StepCost cost;
  for (uint32_t i = 0; i < 1200; ++i) {
    const StepWork work = RandomWork(random);
    cost.Observe(work, static_cast<uint64_t>(TrueNs(work) * (i < 600 ? 1 : 3)));
  }
  const StepWork work{.prefill_rows = 256, .decode_rows = 4};
  EXPECT_NEAR(cost.PredictNs(work) / (3 * TrueNs(work)), 1, 0.25);
}

TEST(StepCost, FiguresAddUpToPredictions) {
  StepCost cost;
  EXPECT_EQ(cost.Figures().steps, 0u);
  Random random(5);
  for (int i = 0; i < 500; ++i) {
    const StepWork work = RandomWork(random);
    cost.Observe(work, static_cast<uint64_t>(TrueNs(work)));
  }
  const StepCostStats figures = cost.Figures();
  EXPECT_EQ(figures.steps, 500u);
  EXPECT_DOUBLE_EQ(figures.ns_of_rows[0], cost.PredictNs({.decode_rows = 1}));
  EXPECT_DOUBLE_EQ(figures.ns_of_rows[6], cost.PredictNs({.prefill_rows = 64}));
  const StepWork work{.prefill_rows = 8, .decode_kv_bytes = 1e8};
  EXPECT_NEAR(figures.ns_of_rows[3] + 1e8 * figures.decode_ns_per_kv_byte, cost.PredictNs(work),
              1e-6 * cost.PredictNs(work));
}

}  // namespace
}  // namespace kvasir
