#include "base/percentile.h"

#include <gtest/gtest.h>

#include <numeric>

namespace kvasir {
namespace {

TEST(Percentile, IsTheSmallestValueThatEnoughOthersDoNotExceed) {
  const std::vector<double> sorted = {1, 2, 3, 4};
  EXPECT_EQ(NearestRank(sorted, 0), 1);
  EXPECT_EQ(NearestRank(sorted, 0.25), 1);
  EXPECT_EQ(NearestRank(sorted, 0.26), 2);
  EXPECT_EQ(NearestRank(sorted, 0.5), 2);
  EXPECT_EQ(NearestRank(sorted, 0.99), 4);
  EXPECT_EQ(NearestRank(sorted, 1), 4);
  EXPECT_EQ(NearestRank({}, 0.5), 0);
}

TEST(Percentile, SortsAndSumsUp) {
  std::vector<double> values(200);
  std::iota(values.rbegin(), values.rend(), 1);  // 200 .. 1
  const Percentiles all = PercentilesOf(values);
  EXPECT_EQ(all.count, 200u);
  EXPECT_NEAR(all.mean, 100.5, 1e-9);
  EXPECT_EQ(all.p50, 100);
  EXPECT_EQ(all.p90, 180);
  EXPECT_EQ(all.p95, 190);
  EXPECT_EQ(all.p99, 198);
  EXPECT_EQ(all.max, 200);
  EXPECT_EQ(PercentilesOf({}).max, 0);
}

}  // namespace
}  // namespace kvasir
