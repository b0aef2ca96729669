#include "base/clock.h"

#include <gtest/gtest.h>

#include "base/own_clock.h"

namespace kvasir {
namespace {

TEST(Clock, GoesOnAsTheSystemsDoes) {
  const uint64_t before_ns = MonotonicNs();
  while (MonotonicNs() == before_ns) {
  }
  EXPECT_GT(MonotonicNs(), before_ns);
  EXPECT_GT(UnixS(), 1'700'000'000);
  EXPECT_LE(UnixS(), UnixNs() / 1'000'000'000);
}

TEST(Clock, StandsStillInTheHandsOfATest) {
  const uint64_t real_ns = MonotonicNs();
  {
    OwnClock clock;
    const uint64_t monotonic_ns = MonotonicNs();
    const int64_t unix_ns = UnixNs();
    EXPECT_GE(monotonic_ns, real_ns);
    EXPECT_EQ(MonotonicNs(), monotonic_ns);
    clock.Advance(std::chrono::hours(1));
    EXPECT_EQ(MonotonicNs() - monotonic_ns, 3'600'000'000'000u);
    EXPECT_EQ(UnixNs() - unix_ns, 3'600'000'000'000);
    clock.SetUnixNs(1'234'567'890'123);
    EXPECT_EQ(UnixS(), 1'234);
    EXPECT_EQ(MonotonicNs() - monotonic_ns, 3'600'000'000'000u) << "setting it moves no deadline";
  }
  EXPECT_LT(MonotonicNs() - real_ns, 3'600'000'000'000u);
}

}  // namespace
}  // namespace kvasir
