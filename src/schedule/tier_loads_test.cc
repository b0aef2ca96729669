#include "schedule/tier_loads.h"

#include <gtest/gtest.h>

#include <future>
#include <limits>
#include <thread>

#include "testing/small_runner_for_test.h"
#include "tier/memory_tier_for_test.h"

namespace kvasir {
namespace {

constexpr uint32_t kLoadedPrompt = 40;  // two whole blocks, and half of a third one
constexpr uint32_t kLoadedTokens = 2 * kSmallBlockTokens;

// A tier that has a prompt's blocks, a cache that has none, and one request for that prompt.
class TierLoadsTest : public testing::Test {
 protected:
  TierLoadsTest()
      : runner_(SmallRunnerOptions()),
        tier_({.payload_bytes = runner_.layout().block_bytes()}),
        figures_(0),
        prompt_(SmallPrompt(kLoadedPrompt)) {
    const auto earlier = MakeCache();
    {
      MatchResult match = earlier->Match(earlier->EnterNamespace("a", {}), prompt_, {});
      const Reservation reservation = *earlier->Reserve(match, Demand());
      KvSequence kv = earlier->Fetch(std::move(match), kLoadedPrompt, reservation);
      KV_CHECK(earlier->Extend(kv, prompt_));
      earlier->Commit(kv, kLoadedPrompt, KvCache::CommitKind::kEnd);
    }
    TierLoads(runner_, *earlier, &tier_, figures_, kSmallRows).Seal(/*runs=*/false);
    std::promise<void> stored;
    tier_.Flush([&](const Result<TierFlushed>&) { stored.set_value(); });
    stored.get_future().wait();
    cache_ = MakeCache();
    requests_.running.push_back(std::make_unique<Request>());
    request().spec.prompt = prompt_;
    request().receipt.prompt_tokens = request().receipt.computed = kLoadedPrompt;
    request().answer.sequences.push_back(std::make_unique<Sequence>());
    sequence().tokens = prompt_;
  }
  std::unique_ptr<KvCache> MakeCache() {
    return *KvCache::Create({.layout = runner_.layout(),
                             .budget_bytes = 1 << 24,
                             .hidden_size = FakeRunner::kHidden,
                             .max_blocks = 64,
                             .secret = {},
                             .step_tokens = kSmallRows,
                             .tier = &tier_});
  }
  static KvDemand Demand() { return {.prompt_tokens = kLoadedPrompt, .tokens = kLoadedPrompt}; }
  Request& request() { return *requests_.running[0]; }
  Sequence& sequence() { return *request().answer.sequences[0]; }

  void Start(TierLoads& loads) {
    MatchResult match = cache_->Match(cache_->EnterNamespace("a", {}), prompt_, {});
    const uint32_t num_offered = match.num_offered();
    EXPECT_EQ(num_offered, kLoadedTokens);
    request().room.reservation = *cache_->Reserve(match, Demand());
    KvLoad load = cache_->TakeOffer(match);
    sequence().kv = cache_->Fetch(std::move(match), kLoadedPrompt, request().room.reservation);
    loads.Start(request(), std::move(load), num_offered);
  }

  FakeRunner runner_;
  MemoryTier tier_;
  StepFigures figures_;
  const std::vector<TokenId> prompt_;
  std::unique_ptr<KvCache> cache_;
  RequestQueues requests_;
};

TEST_F(TierLoadsTest, ARequestWaitsForItsBlocksAndGetsThem) {
  TierLoads loads(runner_, *cache_, &tier_, figures_, kSmallRows);
  Start(loads);
  EXPECT_TRUE(request().load.waits);
  EXPECT_EQ(loads.RowsBefore(request(), sequence(), kLoadedPrompt), 0u);
  for (int i = 0; i < 10'000 && request().load.load.active(); ++i) {
    loads.Continue(requests_);
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  EXPECT_FALSE(request().load.load.active() || request().load.waits);
  EXPECT_EQ(sequence().kv.num_committed(), kLoadedTokens);
  EXPECT_EQ(loads.RowsBefore(request(), sequence(), 8), 8u);
  EXPECT_EQ(request().receipt.reused_disk, kLoadedTokens);
  EXPECT_EQ(request().receipt.computed, kLoadedPrompt - kLoadedTokens);
  EXPECT_FALSE(request().receipt.miss);
}

TEST_F(TierLoadsTest, AnEndedLoadLeavesTheRestToBeComputed) {
  TierLoads loads(runner_, *cache_, &tier_, figures_, kSmallRows);
  Start(loads);
  loads.End(request());
  EXPECT_FALSE(request().load.load.active() || request().load.waits);
  EXPECT_EQ(request().receipt.computed, kLoadedPrompt);
  EXPECT_EQ(loads.RowsBefore(request(), sequence(), kLoadedPrompt), kLoadedPrompt);
}

TEST_F(TierLoadsTest, WithoutAnOfferNothingBegins) {
  TierLoads loads(runner_, *cache_, nullptr, figures_, kSmallRows);
  loads.Start(request(), KvLoad(), 0);
  loads.Continue(requests_);
  loads.End(request());
  EXPECT_FALSE(request().load.waits);
  EXPECT_EQ(request().receipt.computed, kLoadedPrompt);
  EXPECT_EQ(loads.RowsBefore(request(), sequence(), kLoadedPrompt), kLoadedPrompt);
}

}  // namespace
}  // namespace kvasir
