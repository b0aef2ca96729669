#include "access/rate_limits.h"

#include <gtest/gtest.h>

namespace kvasir {
namespace {

uint64_t limits_now_ns = 0;

class RateLimitsTest : public testing::Test {
 protected:
  RateLimitsTest() {
    limits_now_ns = 1'000'000'000'000;
    tenant_.name = "a";
  }
  void Pass(double seconds) { limits_now_ns += static_cast<uint64_t>(seconds * 1e9); }
  std::string Header(const std::string& name) {
    for (const auto& [key, value] : limits_.HeadersFor(tenant_)) {
      if (key == "x-ratelimit-" + name) return value;
    }
    return "";
  }

  RateLimits limits_{[] { return limits_now_ns; }};
  TenantEntry tenant_;
};

TEST_F(RateLimitsTest, ATenantWithoutLimitsIsNotCounted) {
  for (int i = 0; i < 1000; ++i) EXPECT_FALSE(limits_.TakeRequest(tenant_));
  limits_.TakeTokens("a", 1'000'000'000);
  EXPECT_FALSE(limits_.TakeRequest(tenant_));
  EXPECT_TRUE(limits_.HeadersFor(tenant_).empty());
}

TEST_F(RateLimitsTest, RequestsFillEvenly) {
  tenant_.requests_per_minute = 6;
  for (int i = 0; i < 6; ++i) EXPECT_FALSE(limits_.TakeRequest(tenant_));
  const auto refused = limits_.TakeRequest(tenant_);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->cause, Cause::kRate);
  EXPECT_EQ(refused->retry_ms, 10'000u);
  EXPECT_EQ(Header("limit-requests"), "6");
  EXPECT_EQ(Header("remaining-requests"), "0");
  EXPECT_EQ(Header("reset-requests"), "60.000s");
  EXPECT_EQ(Header("limit-tokens"), "");
  Pass(10.5);
  EXPECT_FALSE(limits_.TakeRequest(tenant_));
  EXPECT_TRUE(limits_.TakeRequest(tenant_));
  Pass(1000);
  EXPECT_EQ(Header("remaining-requests"), "6");
}

TEST_F(RateLimitsTest, TokensAreTakenAfterwardsAndMayBeOwed) {
  tenant_.tokens_per_minute = 600;
  EXPECT_FALSE(limits_.TakeRequest(tenant_));
  limits_.TakeTokens("a", 1200);
  EXPECT_EQ(Header("remaining-tokens"), "0");
  const auto refused = limits_.TakeRequest(tenant_);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->retry_ms, 60'100u);
  Pass(60.2);
  EXPECT_FALSE(limits_.TakeRequest(tenant_));
}

TEST_F(RateLimitsTest, ANewLimitKeepsWhatWasUsed) {
  tenant_.tokens_per_minute = 600;
  EXPECT_FALSE(limits_.TakeRequest(tenant_));
  limits_.TakeTokens("a", 500);
  tenant_.tokens_per_minute = 1000;
  EXPECT_EQ(Header("remaining-tokens"), "500");
  tenant_.tokens_per_minute = 100;
  EXPECT_EQ(Header("remaining-tokens"), "0");
  EXPECT_TRUE(limits_.TakeRequest(tenant_));
}

}  // namespace
}  // namespace kvasir
