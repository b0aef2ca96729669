#include "cache/kv_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

#include "cache/cache_driver_for_test.h"

namespace {
// Relaxed: tests here have one thread.
std::atomic<uint64_t> allocations{0}, allocated_bytes{0};
}  // namespace

// Counts allocations; tests compare the counts before and after a call.
[[gnu::noinline]] void* operator new(size_t size) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  allocated_bytes.fetch_add(size, std::memory_order_relaxed);
  if (void* p = std::malloc(size)) return p;
  std::abort();
}
[[gnu::noinline]] void* operator new(size_t size, const std::nothrow_t&) noexcept {
  return operator new(size);
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept { std::free(p); }

namespace kvasir {
namespace {

using enum KvCache::CommitKind;

TEST_F(KvCacheTest, PlansExactlyWhatItAllocates) {
  const KvLayout layouts[] = {TinyLayout(), LayoutOf({0, kCrossLayer, kCrossLayer}),
                              LayoutOf({20, 40, kCrossLayer})};
  for (uint64_t budget : {100'000u, 1'000'000u, 12'345'678u, 100'001u, 1'000'001u}) {
    KvCacheOptions options = OptionsFor(2);
    options.layout = layouts[budget % std::size(layouts)];
    options.source_ids = budget % 2 == 0 ? 0 : 100;
    options.budget_bytes = budget;
    const CachePlan plan = KvCache::Plan(options);
    EXPECT_LE(plan.total_bytes(), budget);
    options.budget_bytes = plan.total_bytes();
    EXPECT_EQ(KvCache::Plan(options).num_blocks, plan.num_blocks);
    options.budget_bytes = budget;
    const uint64_t before = allocated_bytes;
    const auto cache = KvCache::Create(options);
    const uint64_t bytes = allocated_bytes - before;
    ASSERT_TRUE(cache);
    // The arena is mapped, not allocated; the rest is objects of fixed size.
    EXPECT_GE(bytes, plan.index_bytes + plan.cursor_bytes);
    EXPECT_LE(bytes, plan.index_bytes + plan.cursor_bytes + 4096);
    (*cache)->CheckInvariants();
    EXPECT_EQ((*cache)->plan().pool_bytes, plan.num_blocks * (*cache)->layout().block_bytes());
  }
}

TEST_F(KvCacheTest, RefusesABudgetBelowTwoBlocks) {
  KvCacheOptions options = OptionsFor(2);
  options.budget_bytes = KvCache::Plan(options).total_bytes() - 1;
  EXPECT_EQ(KvCache::Plan(options).num_blocks, 1u);
  EXPECT_EQ(KvCache::Create(options).error().code, Code::kInvalidArgument);
  options.budget_bytes = 0;
  EXPECT_EQ(KvCache::Create(options).error().code, Code::kInvalidArgument);
}

TEST_F(KvCacheTest, HasNoMoreBlocksThanItIsTold) {
  KvCacheOptions options = OptionsFor(50);
  const uint64_t budget = options.budget_bytes;
  for (const uint32_t max_blocks : {2u, 3u, 49u, 50u, 51u}) {
    options.max_blocks = max_blocks;
    const CachePlan plan = KvCache::Plan(options);
    EXPECT_EQ(plan.num_blocks, std::min(max_blocks, 50u));
    const auto cache = KvCache::Create(options);
    ASSERT_TRUE(cache);
    EXPECT_EQ((*cache)->usage().num_blocks, plan.num_blocks);
    EXPECT_EQ((*cache)->plan().total_bytes(), plan.total_bytes());
    EXPECT_LE(plan.total_bytes(), budget);
    (*cache)->CheckInvariants();
  }
  // The budget must hold two blocks also when max_blocks is the limit.
  options.max_blocks = 2;
  options.budget_bytes = KvCache::Plan(options).total_bytes() - 1;
  EXPECT_EQ(KvCache::Create(options).error().code, Code::kInvalidArgument);
}

TEST(KvCacheDeathTest, FewerThanTwoBlocksAreABug) {
  KvCacheOptions options = OptionsFor(2);
  for (const uint32_t max_blocks : {0u, 1u, 1u << 31}) {
    options.max_blocks = max_blocks;
    EXPECT_DEATH((void)KvCache::Create(options), "max_blocks");
  }
}

TEST_F(KvCacheTest, TheSecondTurnComputesOnlyWhatIsNew) {
  const Tokens first = TokensFrom(1, 50);
  KvSequence sequence = Run(first);
  EXPECT_EQ(reused(), 0u);
  ExpectMiss(MissReason::kCold, 0);
  const Tokens answer = TokensFrom(2, 13);
  for (TokenId token : answer) {
    ASSERT_TRUE(driver_->Append(sequence, 7, std::span(&token, 1)));
  }
  cache().Commit(sequence, 0, kEnd);
  sequence = KvSequence();
  const Tokens second = Join(Join(first, answer), TokensFrom(3, 20));
  sequence = Run(second);
  EXPECT_EQ(reused(), 63u);
  EXPECT_FALSE(miss_);
  EXPECT_EQ(cache().counters().reused_pool, 63u);
  EXPECT_EQ(cache().counters().prompt_tokens, 50u + 83u);
}

TEST_F(KvCacheTest, AnIdenticalPromptIsCoveredWithItsCursorAndElseUpToItsLastToken) {
  for (size_t size : {1u, 15u, 16u, 17u, 32u, 40u}) {
    SCOPED_TRACE(size);
    const Tokens prompt = TokensFrom(size, size);
    Run(prompt);
    Run(prompt);
    EXPECT_EQ(reused(), size);
    EXPECT_FALSE(miss_);
    Run(prompt, {.use_cursor = false});
    EXPECT_EQ(reused(), size - 1);
    EXPECT_FALSE(miss_);
    cache().CheckInvariants();
  }
  EXPECT_EQ(cache().counters().cursor_hits, 6u);
}

TEST_F(KvCacheTest, SaysWhereAPromptDiverges) {
  const Tokens prompt = TokensFrom(1, 60);
  Run(prompt);
  for (uint32_t at : {1u, 16u, 35u, 50u, 57u}) {
    SCOPED_TRACE(at);
    Run(Join(First(prompt, at), TokensFrom(100 + at, 5)));
    EXPECT_EQ(reused(), at);
    ExpectMiss(MissReason::kDiverged, at);
  }
  Tokens last = prompt;
  last.back() += 1;
  Run(last);
  EXPECT_EQ(reused(), 59u);
  EXPECT_FALSE(miss_) << "only the token that is always computed differs";
}

TEST_F(KvCacheTest, SaysThatABlockWasEvicted) {
  Make(4);
  ns_ = cache().EnterNamespace("alice", IdentityNamed(1));
  const Tokens prompt = TokensFrom(1, 60);
  Run(prompt);
  Run(TokensFrom(2, 25));  // takes the two last blocks
  EXPECT_EQ(cache().counters().evicted_blocks, 2u);
  const MatchResult match = cache().Match(ns_, prompt, {});
  ASSERT_TRUE(match.miss);
  EXPECT_STREQ(ToString(match.miss->reason), "evicted");
  EXPECT_EQ(match.miss->at_token, 32u);
  EXPECT_EQ(match.num_reused(), 32u);
}

TEST_F(KvCacheTest, SaysThatTheIdentityChanged) {
  const Tokens prompt = TokensFrom(1, 40);
  Run(prompt);
  const NamespaceId changed = cache().EnterNamespace("alice", IdentityNamed(2));
  EXPECT_NE(changed, ns_);
  const auto reason = [&](NamespaceId ns, const Tokens& tokens) {
    return std::string(ToString(cache().Match(ns, tokens, {}).miss->reason));
  };
  EXPECT_EQ(reason(changed, prompt), "identity_changed");
  EXPECT_EQ(reason(changed, TokensFrom(2, 40)), "cold");
  const NamespaceId stranger = cache().EnterNamespace("bob", IdentityNamed(2));
  EXPECT_EQ(reason(stranger, prompt), "cold");
}

TEST_F(KvCacheTest, SaysThatMoreIsCachedUnderTheOtherRope) {
  const NamespaceId longs = cache().EnterNamespace("alice", IdentityNamed(2));
  const Tokens prompt = TokensFrom(1, 40);
  Run(prompt);
  MatchResult match = cache().Match(longs, prompt, {.other_rope = ns_});
  EXPECT_EQ(match.num_reused(), 0u);
  ASSERT_TRUE(match.miss);
  EXPECT_STREQ(ToString(match.miss->reason), "rope_changed");
  EXPECT_EQ(match.miss->at_token, 0u);
  // The reason also holds where a beginning is cached, as long as the other one is longer.
  const NamespaceId shorts = std::exchange(ns_, longs);
  Run(Join(First(prompt, 20), TokensFrom(9, 5)));
  match = cache().Match(longs, prompt, {.other_rope = shorts});
  EXPECT_EQ(match.num_reused(), 20u);
  EXPECT_STREQ(ToString(match.miss->reason), "rope_changed");
  EXPECT_EQ(match.miss->at_token, 20u);
  match = cache().Match(longs, Join(First(prompt, 20), TokensFrom(8, 9)), {.other_rope = shorts});
  EXPECT_STREQ(ToString(match.miss->reason), "diverged");
  // A first token in common is chance.
  match = cache().Match(longs, Join(First(TokensFrom(1, 40), 1), TokensFrom(7, 30)),
                        {.other_rope = shorts});
  EXPECT_STREQ(ToString(match.miss->reason), "diverged");
}

TEST_F(KvCacheTest, ReuseOffMatchesAndPublishesNothing) {
  const Tokens prompt = TokensFrom(1, 40);
  KvSequence sequence = Run(prompt, {.reuse = false});
  ExpectMiss(MissReason::kDisabled, 0);
  EXPECT_FALSE(sequence.publishes());
  EXPECT_EQ(cache().usage().cached_tokens, 0u);
  EXPECT_EQ(cache().usage().live_tokens, 40u);
  sequence = KvSequence();
  EXPECT_EQ(cache().usage().free_blocks, cache().usage().num_blocks);

  KvCacheOptions options = OptionsFor(8);
  options.reuse = false;
  driver_ = std::make_unique<CacheDriver>(options);
  ns_ = cache().EnterNamespace("alice", IdentityNamed(1));
  Run(prompt);
  Run(prompt);
  EXPECT_EQ(reused(), 0u);
  ExpectMiss(MissReason::kDisabled, 0);
  EXPECT_EQ(cache().usage().num_cursors, 0u);
}

TEST_F(KvCacheTest, CountsWhatIsWasted) {
  EXPECT_EQ(cache().usage().waste(), 0);
  KvSequence sequence = Run(TokensFrom(1, 40));
  EXPECT_DOUBLE_EQ(cache().usage().waste(), 1 - 40.0 / 48);
  ASSERT_TRUE(driver_->Append(sequence, 7, TokensFrom(2, 1)));  // a copy of the tail
  EXPECT_DOUBLE_EQ(cache().usage().waste(), 1 - (40.0 + 9) / 64);
  ASSERT_TRUE(driver_->Append(sequence, 7, TokensFrom(3, 7)));  // full: the old tail is redundant
  EXPECT_EQ(cache().usage().waste(), 0);
}

TEST_F(KvCacheTest, ADecodeStepAllocatesNothing) {
  Make(12);
  ns_ = cache().EnterNamespace("alice", IdentityNamed(1));
  Run(TokensFrom(1, 100));  // idle blocks that have to be evicted on the way
  const Tokens prompt = TokensFrom(2, 40);
  KvSequence sequence = cache().Fetch(cache().Match(ns_, prompt, {}), 150);
  ASSERT_TRUE(driver_->Append(sequence, 7, prompt, kEnd));
  const std::vector<float> hidden = HiddenOf(7, prompt);
  const uint64_t before = allocations;
  for (TokenId token = 0; token < 110; ++token) {
    ASSERT_TRUE(driver_->Append(sequence, 7, std::span(&token, 1)));
  }
  cache().Truncate(sequence, 70);
  cache().Commit(sequence, 0, kEnd);
  cache().KeepCursor(sequence, hidden);
  EXPECT_EQ(allocations, before);
  EXPECT_GT(cache().counters().evicted_blocks, 0u);
  EXPECT_GT(cache().counters().copied_blocks, 0u);
}

TEST_F(KvCacheTest, TheOldestCursorGoesFirst) {
  driver_ = std::make_unique<CacheDriver>(OptionsFor(32, /*num_cursors=*/2));
  ns_ = cache().EnterNamespace("alice", IdentityNamed(1));
  for (uint64_t seed : {1, 2}) Run(TokensFrom(seed, 20));
  Run(TokensFrom(1, 20));
  EXPECT_EQ(reused(), 20u);
  Run(TokensFrom(3, 20));
  const auto has = [&](uint64_t seed) {
    return cache().Match(ns_, TokensFrom(seed, 20), {}).has_cursor();
  };
  EXPECT_TRUE(has(1));
  EXPECT_FALSE(has(2));
  EXPECT_TRUE(has(3));
}

TEST_F(KvCacheTest, AMatchKeepsItsBlocksAndItsCursorWhileItIsHeld) {
  Make(4);
  ns_ = cache().EnterNamespace("alice", IdentityNamed(1));
  const Tokens prompt = TokensFrom(1, 32);
  Run(prompt);
  MatchResult match = cache().Match(ns_, prompt, {});
  EXPECT_EQ(cache().available_blocks(), 2u);
  Run(TokensFrom(2, 32));
  Run(TokensFrom(3, 32));
  const auto hidden = cache().CursorHidden(match);
  EXPECT_EQ(std::vector<float>(hidden.begin(), hidden.end()), HiddenOf(7, prompt));
  const KvSequence sequence = cache().Fetch(std::move(match), 64);
  EXPECT_EQ(sequence.num_committed(), 32u);
  driver_->Verify(sequence, 7);
}

}  // namespace
}  // namespace kvasir
