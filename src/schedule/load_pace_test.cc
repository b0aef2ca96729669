#include "schedule/load_pace.h"

#include <gtest/gtest.h>

namespace kvasir {
namespace {

constexpr uint64_t kSecondNs = 1'000'000'000;

TEST(LoadSpeed, IsTheMeanOfWhatWasLoaded) {
  LoadSpeed speed;
  EXPECT_FALSE(speed.ns_per_byte());
  speed.Observe(0, 100);
  speed.Observe(100, 0);
  EXPECT_FALSE(speed.ns_per_byte()) << "neither says how fast it was";
  speed.Observe(1'000'000, 2'000'000);
  EXPECT_DOUBLE_EQ(speed.ns_per_byte().value_or(0), 2);
  speed.Observe(3'000'000, 18'000'000);
  EXPECT_DOUBLE_EQ(speed.ns_per_byte().value_or(0), 5) << "of bytes, not of loads";
}

TEST(LoadSpeed, RecentLoadsDecide) {
  LoadSpeed speed;
  speed.Observe(200'000'000, 2'000'000'000);
  for (int i = 0; i < 40; ++i) speed.Observe(100'000'000, 100'000'000);
  EXPECT_NEAR(speed.ns_per_byte().value_or(0), 1, 0.001);
  speed.Observe(256'000'000, 2'560'000'000);  // as many bytes as count of before
  EXPECT_NEAR(speed.ns_per_byte().value_or(0), 5.5, 0.001);
}

TEST(LoadPace, WithoutASpeedALoadMayStandStillForASecond) {
  LoadPace pace{.start_ns = kSecondNs, .progress_ns = 3 * kSecondNs, .compute_ns = 5e9};
  EXPECT_EQ(pace.LateAt(1), 4e9);
  EXPECT_EQ(pace.LateAt(1'000'000'000), 4e9);
  EXPECT_FALSE(pace.IsSlower(1'000'000'000, 1));
  EXPECT_EQ(pace.ComputedShare(1'000'000'000, 1), 0);
}

TEST(LoadPace, ALoadIsLateByItsBytesAndByAShareOfWhatComputingTakes) {
  LoadPace pace{.start_ns = kSecondNs, .progress_ns = 3 * kSecondNs, .ns_per_byte = 2};
  EXPECT_DOUBLE_EQ(pace.LateAt(0), 1.25e9) << "how long computing takes is not known";
  pace.compute_ns = 5e9;
  EXPECT_DOUBLE_EQ(pace.LateAt(0), 1.24e9);
  EXPECT_DOUBLE_EQ(pace.LateAt(5'000'000), 1.25e9);
}

TEST(LoadPace, ComparesLoadingWithComputing) {
  const LoadPace pace{.ns_per_byte = 2};
  EXPECT_TRUE(pace.IsSlower(1000, 1999));
  EXPECT_FALSE(pace.IsSlower(1000, 2000));
  EXPECT_FALSE(pace.IsSlower(1000, 0)) << "how long computing takes is not known";
  EXPECT_EQ(pace.ComputedShare(1000, 0), 0);
  // Both end at once: the share is computed while the rest is loaded.
  const double share = pace.ComputedShare(1500, 1000);
  EXPECT_DOUBLE_EQ(share, 0.75);
  EXPECT_DOUBLE_EQ(share * 1000, (1 - share) * 2 * 1500);
}

}  // namespace
}  // namespace kvasir
