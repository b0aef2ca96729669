#include "schedule/tenant_book.h"

#include <gtest/gtest.h>

#include "testing/small_runner_for_test.h"

namespace kvasir {
namespace {

class TenantBookTest : public testing::Test {
 protected:
  static constexpr uint32_t kMaxTenants = 2;

  TenantBookTest()
      : runner_(SmallRunnerOptions()),
        cache_(SmallCache(runner_)),
        stats_(1),
        book_(*cache_, stats_, kMaxTenants, 10) {}

  uint32_t NumberOf(const std::string& name) { return book_.NumberOf(name, requests_); }
  // Adds a waiting request of a tenant.
  void Wait(uint32_t tenant) {
    auto request = std::make_unique<Request>();
    request->tenant = tenant;
    requests_.waiting.push_back(std::move(request));
  }
  double charge(uint32_t tenant) const { return book_.views()[tenant].charge_ns; }

  const FakeRunner runner_;
  const std::unique_ptr<KvCache> cache_;
  std::vector<TenantStats> stats_;
  RequestQueues requests_;
  TenantBook book_;
};

TEST_F(TenantBookTest, NumbersTenantsAsTheyCome) {
  EXPECT_EQ(NumberOf("a"), 1u);
  EXPECT_EQ(NumberOf("b"), 2u);
  EXPECT_EQ(NumberOf("a"), 1u);
  EXPECT_EQ(stats_[2].name, "b");
}

TEST_F(TenantBookTest, TakesTheNumberOfATenantWithoutRulesAndRequests) {
  book_.SetRules({{"a", {.weight = 3}}});
  NumberOf("a");
  NumberOf("b");
  stats_[2].requests = 5;
  Wait(2);
  EXPECT_EQ(NumberOf("c"), 0u) << "'a' has rules and 'b' a request";
  requests_.waiting.clear();
  EXPECT_EQ(NumberOf("c"), 2u);
  EXPECT_EQ(stats_[2].name, "c");
  EXPECT_EQ(stats_[0].requests, 5u) << "what was counted stays in the sum of all tenants";
  EXPECT_EQ(NumberOf("b"), 2u);
}

TEST_F(TenantBookTest, ChargesByWeight) {
  book_.SetRules({{"a", {.weight = 4}}});
  const uint32_t a = NumberOf("a"), b = NumberOf("b");
  book_.Charge(a, 100);
  book_.Charge(b, 100);
  EXPECT_EQ(charge(a), 25);
  EXPECT_EQ(charge(b), 100);
  EXPECT_EQ(stats_[a].service_ns, 100);
}

TEST_F(TenantBookTest, ATenantThatWasIdleStartsAtTheLeastChargeOfTheActiveOnes) {
  const uint32_t a = NumberOf("a"), b = NumberOf("b");
  book_.Charge(a, 100);
  Wait(a);
  book_.Activate(b, requests_);
  EXPECT_EQ(charge(b), 100);
  Wait(b);
  book_.Charge(a, 100);
  book_.Activate(b, requests_);
  EXPECT_EQ(charge(b), 100) << "it is active: it keeps what it is owed";
}

TEST_F(TenantBookTest, WhereAllWereIdleAllStartAtTheLargestCharge) {
  const uint32_t a = NumberOf("a"), b = NumberOf("b");
  book_.Charge(a, 70);
  book_.Activate(b, requests_);
  EXPECT_EQ(charge(b), 70);
}

TEST_F(TenantBookTest, SetsAndLiftsQuotasAndLimits) {
  const uint64_t block_bytes = cache_->layout().block_bytes();
  const uint32_t a = NumberOf("a");
  book_.SetRules({{"a", {.max_running = 3, .kv_max = 5 * block_bytes}},
                  {"b", {.kv_guaranteed = 4 * block_bytes}}});
  EXPECT_TRUE(book_.HasQuota("a"));
  EXPECT_EQ(book_.views()[a].max_running, 3u);
  EXPECT_EQ(book_.MostBlocksOf("a"), 5u);
  EXPECT_EQ(book_.MostBlocksOf("c"), 60u) << "what is guaranteed to 'b' is not for others";
  const AccountId account = book_.AccountOf("a");
  EXPECT_EQ(cache_->accounts().of(account).quota.max, 5u);
  book_.SetRules({});
  EXPECT_FALSE(book_.HasQuota("a"));
  EXPECT_EQ(cache_->accounts().of(account).quota, KvQuota{});
  EXPECT_EQ(book_.views()[a].max_running, TenantRules::kNoLimit);
}

TEST_F(TenantBookTest, CountsTheChoicesThatRun) {
  const uint32_t a = NumberOf("a");
  auto request = std::make_unique<Request>();
  request->tenant = a;
  request->spec.n = 3;
  request->events.Begin(3);
  request->events.End(1, FinishReason::kStop);
  requests_.running.push_back(std::move(request));
  book_.CountRunning(requests_);
  EXPECT_EQ(book_.views()[a].running, 2u);
  EXPECT_EQ(book_.views()[0].running, 0u);
}

}  // namespace
}  // namespace kvasir
