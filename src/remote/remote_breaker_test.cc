#include "remote/remote_breaker.h"

#include <gtest/gtest.h>

namespace kvasir {
namespace {

TEST(RemoteBreaker, WaitsLongerEachTimeAndForgets) {
  RemoteBreaker breaker;
  uint64_t now = 1'000'000'000;
  for (int i = 0; i < 2; ++i) EXPECT_FALSE(breaker.Count(ErrorWindow::Kind::kStall, now));
  EXPECT_TRUE(breaker.Count(ErrorWindow::Kind::kStall, now));
  uint64_t wait = RemoteBreaker::kFirstNs;
  for (int i = 0; i < 8; ++i) {
    breaker.Open(now, 0);
    EXPECT_EQ(breaker.retry_ns() - now, wait);
    wait = std::min(2 * wait, RemoteBreaker::kMostNs);
    now = breaker.retry_ns();
    breaker.Close(now);
    now += 1'000'000'000;
  }
  now += RemoteBreaker::kCalmNs;
  const uint64_t most_late = RemoteBreaker::kFirstNs / 10 - 1;
  breaker.Open(now, 2 * (most_late + 1) + most_late);
  EXPECT_EQ(breaker.retry_ns() - now, RemoteBreaker::kFirstNs + most_late);
  breaker.Open(now, most_late);  // a tenth of a longer wait is longer
  EXPECT_EQ(breaker.retry_ns() - now, 2 * RemoteBreaker::kFirstNs + most_late);
}

}  // namespace
}  // namespace kvasir
