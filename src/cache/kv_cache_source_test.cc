// Sources: the KV of what precedes a prompt, found whole or not at all, and keys made of bytes.
#include <gtest/gtest.h>

#include <set>

#include "base/fault.h"
#include "cache/cache_driver_for_test.h"

namespace kvasir {
namespace {

class KvCacheSources : public KvCacheTest {
 protected:
  void MakeSources(const std::vector<uint32_t>& layers, uint32_t num_blocks = 64) {
    Make(num_blocks, LayoutOf(layers));
    ns_ = cache().EnterNamespace("alice", IdentityNamed(1));
  }
  static PromptSource Text(const Tokens& source) {
    return {source, static_cast<uint32_t>(source.size())};
  }
  static uint64_t SaltOf(const Tokens& source) { return PrefixHash(7, source); }
  MatchResult Match(const Tokens& prompt, const PromptSource& source) {
    return cache().Match(ns_, prompt, {.use_cursor = false, .source = source});
  }
  KvSequence RunOn(const Tokens& source, const Tokens& prompt, const PromptSource& as) {
    return driver_->Run(ns_, SaltOf(source), prompt, {.use_cursor = false, .source = as}, &miss_);
  }
  KvSequence RunText(const Tokens& source, const Tokens& prompt) {
    return RunOn(source, prompt, Text(source));
  }
};

TEST_F(KvCacheSources, ASourceIsFoundWholeOrNotAtAll) {
  for (const std::vector<uint32_t>& layers :
       {std::vector<uint32_t>{0, kCrossLayer}, {0, 20, kCrossLayer, kCrossLayer}}) {
    for (const uint32_t size : {1u, 10u, 11u, 15u, 16u, 17u, 47u, 48u, 49u}) {
      SCOPED_TRACE(size);
      MakeSources(layers, 128);
      const Tokens source = TokensFrom(1, size), prompt = TokensFrom(2, 40);
      EXPECT_EQ(Match(prompt, Text(source)).source_miss, MissReason::kCold);
      { const KvSequence kept = RunText(source, prompt); }
      ExpectMiss(MissReason::kCold, 0);
      cache().CheckInvariants();
      const MatchResult again = Match(Join(prompt, {5}), Text(source));
      EXPECT_FALSE(again.source_miss);
      EXPECT_EQ(again.num_reused(), 40u);
      // Sources that begin alike, and one with a token less or more.
      for (uint32_t other = 1; other < size + 20; ++other) {
        if (other == size) continue;
        const MatchResult match = Match(prompt, Text(TokensFrom(1, other)));
        EXPECT_EQ(match.source_miss, MissReason::kCold) << other;
        EXPECT_EQ(match.num_reused(), 0u) << other;
      }
    }
  }
}

TEST_F(KvCacheSources, TheSameTokensUnderTwoSourcesShareNothing) {
  MakeSources({0, kCrossLayer});
  const Tokens prompt = TokensFrom(2, 40), one = TokensFrom(1, 32), two = First(one, 31);
  const KvSequence under_one = RunText(one, prompt), under_two = RunText(two, prompt);
  EXPECT_EQ(reused(), 0u);
  const KvSequence alone = RunOn({}, prompt, {});
  EXPECT_EQ(reused(), 0u);
  std::set<BlockId> blocks;
  for (const KvSequence* each : {&under_one, &under_two, &alone}) {
    for (const BlockTable& table : each->tables()) {
      for (size_t b = 0; b < table.size(); ++b) {
        EXPECT_TRUE(blocks.insert(table.ref(b).id()).second);
      }
    }
  }
  EXPECT_EQ(blocks.size(), 3u * 3 + 2 + 2);
  // A prompt that consists of a source's tokens is another thing too.
  EXPECT_EQ(Match(Join(one, prompt), {}).num_reused(), 0u);
}

TEST_F(KvCacheSources, PromptsThatAreStillKeptAreFoundAfterTheirSourceWasEvicted) {
  MakeSources({0, kCrossLayer}, 12);
  const Tokens source = TokensFrom(1, 30), prompt = TokensFrom(2, 20);
  const uint64_t salt = SaltOf(source);
  { const KvSequence kept = RunText(source, prompt); }
  // Others have reserved all blocks but one: the prompt's first block is pinned, the source is not.
  MatchResult other = cache().Match(ns_, Tokens{1}, {.reuse = false});
  auto all_but_one =
      cache().Reserve(other, {.prompt_tokens = 1, .tokens = 16 * 11, .shares_prompt = false});
  ASSERT_TRUE(all_but_one);
  const MatchResult held = Match(Join(prompt, {5}), Text(source));
  EXPECT_EQ(held.source_miss, MissReason::kPoolFull);
  EXPECT_EQ(held.num_reused(), 16u);
  all_but_one->Release();
  KvSequence greedy = cache().Fetch(std::move(other), 512);
  EXPECT_TRUE(driver_->Append(greedy, 7, TokensFrom(3, 16 * 10)));
  EXPECT_EQ(cache().counters().evicted_blocks, 3u) << "the prompt's tail and the whole source";
  cache().CheckInvariants();
  MatchResult match = Match(Join(prompt, {5}), Text(source));
  EXPECT_EQ(match.source_miss, MissReason::kEvicted);
  EXPECT_EQ(match.num_reused(), 16u);
  KvSequence sequence = cache().Fetch(std::move(match), 64);
  EXPECT_FALSE(sequence.has_source());
  const Status refused = cache().ExtendSource(sequence);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kExhausted);
  greedy = KvSequence();
  EXPECT_TRUE(driver_->ComputeSource(sequence, salt));
  EXPECT_TRUE(driver_->Append(sequence, salt, TokensFrom(4, 10)));
  driver_->Verify(sequence, salt);
  EXPECT_FALSE(Match(prompt, Text(source)).source_miss);
}

TEST_F(KvCacheSources, ASkippedCompareServesAnotherSourceOfTheSameLength) {
  MakeSources({0, kCrossLayer});
  const Tokens prompt = TokensFrom(2, 40);
  { const KvSequence kept = RunText(TokensFrom(1, 40), prompt); }
  InjectFault(Fault::kSkippedCompare);
  const MatchResult wrong = Match(prompt, Text(TokensFrom(3, 40)));
  EXPECT_FALSE(wrong.source_miss);
  EXPECT_GE(wrong.num_reused(), 32u);
  for (const uint32_t size : {1u, 17u, 39u, 41u, 100u}) {
    const MatchResult other = Match(prompt, Text(TokensFrom(3, size)));
    EXPECT_TRUE(other.source_miss) << size;
    EXPECT_EQ(other.num_reused(), 0u) << size;
  }
  InjectFault(Fault::kNone);
}

TEST_F(KvCacheSources, AnEvictedSourceLeavesNoNode) {
  MakeSources({0, kCrossLayer}, 12);
  const Tokens source = TokensFrom(1, 60);
  {
    KvSequence kept = cache().Fetch(Match({}, Text(source)), 16);
    EXPECT_TRUE(driver_->ComputeSource(kept, SaltOf(source)));
  }
  EXPECT_FALSE(Match({}, Text(source)).source_miss);
  EXPECT_EQ(cache().usage().cached_blocks, 4u);
  EXPECT_EQ(cache().usage().held_bytes, 60 * cache().layout().token_bytes(1));
  KvSequence greedy = cache().Fetch(cache().Match(ns_, Tokens{1}, {.reuse = false}), 512);
  EXPECT_TRUE(driver_->Append(greedy, 7, TokensFrom(3, 16 * 9)));
  EXPECT_EQ(cache().counters().evicted_blocks, 4u);
  EXPECT_EQ(cache().usage().cached_tokens, 0u);
  EXPECT_EQ(Match({}, Text(source)).source_miss, MissReason::kEvicted);
}

TEST_F(KvCacheSources, TwoWhoComputeTheSameSourceKeepOneOfThem) {
  MakeSources({0, kCrossLayer});
  const Tokens source = TokensFrom(1, 33);
  KvSequence one = cache().Fetch(Match({}, Text(source)), 64);
  KvSequence two = cache().Fetch(Match({}, Text(source)), 64);
  EXPECT_TRUE(driver_->ComputeSource(one, SaltOf(source)));
  EXPECT_TRUE(driver_->ComputeSource(two, SaltOf(source)));
  EXPECT_EQ(cache().usage().pinned_blocks, 3u);
  EXPECT_EQ(cache().counters().deduplicated_blocks, 3u);
  const KvSequence fork = cache().Fork(two, 64);
  EXPECT_EQ(cache().usage().pinned_blocks, 3u);
  EXPECT_TRUE(cache().Truncate(two, 0));
  driver_->Verify(fork, SaltOf(source));
  driver_->Verify(two, SaltOf(source));
}

TEST_F(KvCacheSources, AnotherIdentityOfTheTenantIsTheReason) {
  MakeSources({0, kCrossLayer});
  const Tokens source = TokensFrom(1, 33), prompt = TokensFrom(2, 40);
  { const KvSequence kept = RunText(source, prompt); }
  const NamespaceId changed = cache().EnterNamespace("alice", IdentityNamed(2));
  const NamespaceId bob = cache().EnterNamespace("bob", IdentityNamed(1));
  const MatchOptions options{.source = Text(source)};
  const MatchResult mine = cache().Match(changed, prompt, options);
  EXPECT_EQ(mine.source_miss, MissReason::kIdentityChanged);
  EXPECT_EQ(mine.miss->reason, MissReason::kIdentityChanged);
  EXPECT_EQ(cache().Match(bob, prompt, options).source_miss, MissReason::kCold);
}

TEST_F(KvCacheSources, BytesAreKeysWhoseKvIsInThePromptsTokens) {
  MakeSources({0});
  std::vector<std::byte> image(1001);
  for (size_t i = 0; i < image.size(); ++i) image[i] = static_cast<std::byte>(i * 31);
  const Tokens prompt = TokensFrom(2, 40);
  const Tokens key = PackBytes(image);
  { const KvSequence kept = RunOn(key, prompt, {key, 0}); }
  EXPECT_EQ(Match(Join(prompt, {5}), {key, 0}).num_reused(), 40u);
  EXPECT_FALSE(Match(prompt, {key, 0}).source_miss) << "there is nothing to compute";
  for (const size_t at : {size_t{0}, size_t{500}, image.size() - 1}) {
    std::vector<std::byte> other = image;
    other[at] ^= std::byte{1};
    EXPECT_EQ(Match(prompt, {PackBytes(other), 0}).num_reused(), 0u) << at;
  }
  std::vector<std::byte> longer = image;
  longer.push_back(std::byte{0});  // as the padding of the last id
  EXPECT_EQ(Match(prompt, {PackBytes(longer), 0}).num_reused(), 0u);
  EXPECT_EQ(Match(prompt, {}).num_reused(), 0u);
}

TEST_F(KvCacheSources, AKeyWithoutRoomForItsNodesIsNotShared) {
  MakeSources({0}, 16);
  const Tokens prompt = TokensFrom(2, 40);
  const Tokens small = TokensFrom(3, 100), large = TokensFrom(1, 16 * 40);
  { const KvSequence kept = RunOn(small, prompt, {small, 0}); }
  const KvSequence alone = RunOn(large, prompt, {large, 0});
  EXPECT_FALSE(alone.publishes());
  EXPECT_EQ(Match(prompt, {large, 0}).num_reused(), 0u);
  EXPECT_EQ(Match(prompt, {small, 0}).num_reused(), 39u) << "nothing was evicted for it";
  // With nodes that are planned for it, it is.
  KvCacheOptions options = OptionsFor(16);
  const CachePlan without = KvCache::Plan(options);
  options.source_ids = 16 * 41;
  options.budget_bytes += 16'384;
  EXPECT_GT(KvCache::Plan(options).index_bytes, without.index_bytes);
  CacheDriver roomy(options);
  const NamespaceId ns = roomy.cache->EnterNamespace("alice", IdentityNamed(1));
  const MatchOptions with{.use_cursor = false, .source = {large, 0}};
  { const KvSequence kept = roomy.Run(ns, 7, prompt, with); }
  EXPECT_EQ(roomy.cache->Match(ns, prompt, with).num_reused(), 39u);
}

TEST_F(KvCacheSources, SourcesWithTheSameHashAreComparedAndOnlyOneIsKept) {
  KvCacheOptions options = OptionsFor(64, 16, &DefaultEvictionChoice(), LayoutOf({0, kCrossLayer}));
  options.source_hash_mask = 0;
  CacheDriver driver(options);
  const NamespaceId ns = driver.cache->EnterNamespace("alice", IdentityNamed(1));
  const Tokens one = TokensFrom(1, 40), prompt = TokensFrom(2, 20);
  Tokens two = one;
  two.back() ^= 1;
  { const KvSequence kept = driver.Run(ns, 7, prompt, {.source = Text(one)}); }
  const KvSequence other = driver.Run(ns, 8, prompt, {.source = Text(two)});
  EXPECT_EQ(driver.reused, 0u);
  EXPECT_FALSE(other.publishes());
  driver.Verify(other, 8);
  const MatchResult match = driver.cache->Match(ns, prompt, {.source = Text(one)});
  EXPECT_FALSE(match.source_miss);
  EXPECT_EQ(match.num_reused(), 20u);
}

TEST_F(KvCacheSources, AReservationCountsTheSourceOnce) {
  MakeSources({0, kCrossLayer, kCrossLayer}, 32);
  const KvDemand demand{.prompt_tokens = 20, .tokens = 40, .n = 3, .source_tokens = 33};
  EXPECT_EQ(demand.blocks(cache().layout(), 24), 1 + 3 * 2 + 2 * 3u);
  const Tokens source = TokensFrom(1, 33), prompt = TokensFrom(2, 20);
  MatchResult match = Match(prompt, Text(source));
  auto reservation = cache().Reserve(match, demand);
  ASSERT_TRUE(reservation);
  EXPECT_EQ(reservation->blocks(), 13u);
  {
    KvSequence closed = cache().Fetch(std::move(match), 64, *reservation);
    KvSequence greedy = cache().Fetch(cache().Match(ns_, Tokens{1}, {.reuse = false}), 512);
    while (driver_->Append(greedy, 7, TokensFrom(3, 16))) {
    }
    EXPECT_TRUE(driver_->ComputeSource(closed, SaltOf(source)));
    EXPECT_EQ(reservation->blocks(), 7u);
  }
  EXPECT_EQ(reservation->blocks(), 4u);  // of the other two
  // The source is here: the next request takes no blocks for it.
  MatchResult second = Match(prompt, Text(source));
  const auto with_source = cache().Reserve(second, demand);
  ASSERT_TRUE(with_source);
  EXPECT_EQ(with_source->blocks(), 7u);
  // A sequence that ends before it has its source gives its blocks back.
  MatchResult third = Match(prompt, Text(TokensFrom(9, 33)));
  KvDemand one = demand;
  one.n = 1;
  const auto cold = cache().Reserve(third, one);
  ASSERT_TRUE(cold);
  EXPECT_EQ(cold->blocks(), 9u);
  { const KvSequence dropped = cache().Fetch(std::move(third), 64, *cold); }
  EXPECT_EQ(cold->blocks(), 0u);
}

TEST_F(KvCacheSources, LayoutsCountTheirOwnGroupsApart) {
  const KvLayout layout = LayoutOf({kCrossLayer, 20, 0, kCrossLayer, 0});
  EXPECT_EQ(layout.num_groups(), 5u);
  EXPECT_EQ(layout.num_full_groups(), 2u);
  EXPECT_EQ(layout.num_own_groups(), 3u);
  EXPECT_EQ(layout.num_cross_groups(), 2u);
  EXPECT_TRUE(layout.has_windows());
  EXPECT_FALSE(LayoutOf({0, kCrossLayer}).has_windows());
  EXPECT_EQ(layout.kinds().size(), 3u);
  EXPECT_EQ(layout.own_kinds().size(), 2u);
  EXPECT_EQ(layout.place(0).group, 3u);
  EXPECT_EQ(layout.place(3).group, 4u);
  EXPECT_EQ(layout.token_bytes(), 3 * layout.token_bytes(0));
  EXPECT_EQ(layout.SourceBlocks(33), 6u);
}

}  // namespace
}  // namespace kvasir
