#include "schedule/erasures.h"

#include <gtest/gtest.h>

#include <chrono>
#include <limits>
#include <stdexcept>

#include "base/own_clock.h"
#include "testing/small_runner_for_test.h"
#include "tier/memory_tier_for_test.h"

namespace kvasir {
namespace {

constexpr uint64_t kAnswerNs = 1'000'000'000;

// A tier that answers erases and flushes when the test says so.
class SilentTier : public MemoryTier {
 public:
  using MemoryTier::MemoryTier;
  void Erase(const Digest&, std::function<void(Result<TierErased>)> done) override {
    erases.push_back(std::move(done));
  }
  void Flush(std::function<void(Result<TierFlushed>)> done) override {
    flushes.push_back(std::move(done));
  }

  std::vector<std::function<void(Result<TierErased>)>> erases;
  std::vector<std::function<void(Result<TierFlushed>)>> flushes;
};

class ErasuresTest : public testing::Test {
 protected:
  ErasuresTest()
      : runner_(SmallRunnerOptions()),
        tier_({.payload_bytes = runner_.layout().block_bytes()}),
        pool_only_(SmallCache(runner_)),
        with_tier_(*KvCache::Create({.layout = runner_.layout(),
                                     .budget_bytes = 1 << 24,
                                     .hidden_size = FakeRunner::kHidden,
                                     .num_cursors = 4,
                                     .max_blocks = 64,
                                     .secret = {},
                                     .step_tokens = kSmallRows,
                                     .tier = &tier_})) {}

  // Caches a prompt of two blocks.
  static void Fill(KvCache& cache, const char* owner, TokenId first) {
    const std::vector<TokenId> prompt = SmallPrompt(2 * kSmallBlockTokens, first);
    const auto tokens = static_cast<uint32_t>(prompt.size());
    MatchResult match = cache.Match(cache.EnterNamespace(owner, {}, std::nullopt), prompt, {});
    const Reservation reservation =
        *cache.Reserve(match, {.prompt_tokens = tokens, .tokens = tokens});
    KvSequence kv = cache.Fetch(std::move(match), tokens, reservation);
    ASSERT_TRUE(cache.Extend(kv, prompt));
    cache.Commit(kv, tokens, KvCache::CommitKind::kEnd);
  }
  // Reports erases. Checks that what was zeroed is known to be before sinks are called: `befores_`
  // counts that.
  uint32_t Report(Erasures& erasures) {
    const uint32_t befores = befores_;
    const size_t erased = erased_.size();
    const uint32_t told = erasures.ReportErased([this] { ++befores_; });
    if (erased_.size() > erased) {
      EXPECT_EQ(befores_, befores + 1);
    }
    return told;
  }
  ErasureSink Keep() {
    return [this](const Erasure& erasure) {
      EXPECT_GT(befores_, 0u);
      erased_.push_back(erasure);
    };
  }
  FlushSink KeepFlush() {
    return [this](const Result<TierFlushed>& flushed) { flushed_.push_back(flushed); };
  }

  OwnClock clock_;
  FakeRunner runner_;
  SilentTier tier_;
  const std::unique_ptr<KvCache> pool_only_, with_tier_;
  uint32_t befores_ = 0;  // calls before the first sink of a report
  std::vector<Erasure> erased_;
  std::vector<Result<TierFlushed>> flushed_;
};

TEST_F(ErasuresTest, ReportsAnEraseWhenItsBlocksAreZeroed) {
  Erasures erasures(*pool_only_, nullptr, kAnswerNs,
                    [](const Digest&) { return std::vector{Identity{}}; });
  Fill(*pool_only_, "a", 1);
  Fill(*pool_only_, "b", 2);
  erasures.Erase("a", Keep());
  EXPECT_FALSE(erasures.empty());
  EXPECT_FALSE(erasures.AreZeroed());
  EXPECT_EQ(Report(erasures), 0u);
  erasures.Zero(0);
  EXPECT_EQ(Report(erasures), 1u);
  EXPECT_TRUE(erasures.empty());
  ASSERT_EQ(erased_.size(), 1u);
  EXPECT_EQ(erased_[0].blocks, 2u);
  EXPECT_EQ(erased_[0].tokens, 2u * kSmallBlockTokens);
  EXPECT_EQ(pool_only_->usage().cached_tokens, 2u * kSmallBlockTokens) << "those of 'b'";
}

TEST_F(ErasuresTest, ForgetsAPartOfAPrompt) {
  Erasures erasures(*pool_only_, nullptr, kAnswerNs,
                    [](const Digest&) { return std::vector{Identity{}}; });
  Fill(*pool_only_, "a", 1);
  const ForgetRequest request{.owner = "a",
                              .cache_salt = {},
                              .ids = SmallPrompt(2 * kSmallBlockTokens, 1),
                              .first = kSmallBlockTokens,
                              .last = kSmallBlockTokens};
  erasures.Forget(request, std::make_shared<const KeptPrompts>(), Keep());
  erasures.Zero(0);
  EXPECT_EQ(Report(erasures), 1u);
  EXPECT_EQ(erased_[0].tokens, kSmallBlockTokens);
  EXPECT_EQ(pool_only_->usage().cached_tokens, kSmallBlockTokens);
}

TEST_F(ErasuresTest, WaitsForTheTiersAnswer) {
  Erasures erasures(*with_tier_, &tier_, kAnswerNs,
                    [](const Digest&) { return std::vector{Identity{}}; });
  erasures.Erase("a", Keep());
  erasures.Zero(0);
  EXPECT_TRUE(erasures.AreZeroed());
  EXPECT_EQ(Report(erasures), 0u);
  tier_.erases[0](TierErased{.blocks = 7, .bytes = 70});
  EXPECT_EQ(Report(erasures), 1u);
  EXPECT_EQ(erased_[0].disk_blocks, 7u);
  EXPECT_FALSE(erased_[0].error);
}

TEST_F(ErasuresTest, ATierThatDoesNotAnswerIsAnErrorInTheReport) {
  Erasures erasures(*with_tier_, &tier_, kAnswerNs,
                    [](const Digest&) { return std::vector{Identity{}}; });
  erasures.Erase("a", Keep());
  erasures.Zero(0);
  clock_.Advance(std::chrono::nanoseconds(kAnswerNs));
  EXPECT_EQ(Report(erasures), 1u);
  ASSERT_TRUE(erased_[0].error);
  EXPECT_EQ(erased_[0].error->code, Code::kUnavailable);
}

// Time goes on while it reports: an erase becomes due between two looks at the clock.
TEST_F(ErasuresTest, NothingIsReportedOfWhichTheCallerWasNotTold) {
  Erasures erasures(*with_tier_, &tier_, kAnswerNs,
                    [](const Digest&) { return std::vector{Identity{}}; });
  const auto next = [&](const Erasure& erasure) {
    clock_.Advance(std::chrono::nanoseconds(kAnswerNs));
    Keep()(erasure);
  };
  erasures.Erase("a", next);
  erasures.Erase("b", Keep());
  erasures.Zero(0);
  EXPECT_EQ(Report(erasures), 0u);
  EXPECT_EQ(befores_, 0u);
  tier_.erases[0](TierErased{});
  EXPECT_EQ(Report(erasures), 2u);
  EXPECT_EQ(befores_, 1u);
}

TEST_F(ErasuresTest, EndTierWaitsShortensTheWaits) {
  Erasures erasures(*with_tier_, &tier_, kAnswerNs,
                    [](const Digest&) { return std::vector{Identity{}}; });
  erasures.Erase("a", Keep());
  erasures.Flush(KeepFlush());
  erasures.Zero(0);
  erasures.EndTierWaits(MonotonicNs());
  erasures.ReportFlushed();
  EXPECT_EQ(Report(erasures), 1u);
  ASSERT_EQ(flushed_.size(), 1u);
  EXPECT_EQ(flushed_[0].error().code, Code::kUnavailable);
  EXPECT_TRUE(erasures.empty());
}

TEST_F(ErasuresTest, ASinkThatThrowsIsCalledAgain) {
  Erasures erasures(*pool_only_, nullptr, kAnswerNs,
                    [](const Digest&) { return std::vector{Identity{}}; });
  uint32_t calls = 0;
  erasures.Erase("a", [&](const Erasure&) {
    if (++calls == 1) throw std::bad_alloc();
  });
  erasures.Erase("b", Keep());
  erasures.Zero(0);
  EXPECT_EQ(Report(erasures), 0u);
  EXPECT_EQ(Report(erasures), 2u);
  EXPECT_EQ(calls, 2u);
}

TEST_F(ErasuresTest, FlushesWhenAllBlocksWereHandedOver) {
  Erasures erasures(*with_tier_, &tier_, kAnswerNs,
                    [](const Digest&) { return std::vector{Identity{}}; });
  Fill(*with_tier_, "a", 1);
  erasures.Flush(KeepFlush());
  erasures.FlushSealed();
  EXPECT_TRUE(tier_.flushes.empty()) << "two blocks are still queued";
  with_tier_->SealQueued(std::numeric_limits<uint64_t>::max(),
                         [](uint32_t items, const std::function<void(uint32_t)>& fn) {
                           for (uint32_t i = 0; i < items; ++i) fn(i);
                         });
  erasures.FlushSealed();
  erasures.FlushSealed();
  ASSERT_EQ(tier_.flushes.size(), 1u) << "it is asked once";
  erasures.ReportFlushed();
  EXPECT_TRUE(flushed_.empty());
  tier_.flushes[0](TierFlushed{});
  erasures.ReportFlushed();
  ASSERT_EQ(flushed_.size(), 1u);
  EXPECT_TRUE(flushed_[0]);
  EXPECT_TRUE(erasures.empty());
}

}  // namespace
}  // namespace kvasir
