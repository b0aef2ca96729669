#include "cache/kv_publisher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <span>

#include "cache/cache_driver_for_test.h"

namespace kvasir {
namespace {

class KvPublisherTest : public KvCacheTest {};  // sequences come from a cache

using enum CommitKind;

TEST_F(KvPublisherTest, TwoWhoComputeTheSameKeepOneCopy) {
  const Tokens prompt = TokensFrom(1, 33);
  KvSequence a = cache().Fetch(cache().Match(ns_, prompt, {}), 33);
  KvSequence b = cache().Fetch(cache().Match(ns_, prompt, {}), 33);
  ASSERT_TRUE(driver_->Append(a, 7, prompt));
  ASSERT_TRUE(driver_->Append(b, 7, prompt));
  EXPECT_EQ(cache().counters().deduplicated_blocks, 2u);
  EXPECT_EQ(cache().usage().pinned_blocks, 4u);
  EXPECT_EQ(a.table().ref(1).id(), b.table().ref(1).id());
  driver_->Verify(b, 7);
}

TEST_F(KvPublisherTest, ARewoundSequenceNeverRewritesWhatItPublished) {
  const Tokens prompt = TokensFrom(1, 40);
  KvSequence sequence = Run(prompt);
  cache().Truncate(sequence, 21);
  ASSERT_TRUE(driver_->Append(sequence, 7, TokensFrom(2, 30), kEnd));
  driver_->Verify(sequence, 7);
  cache().Truncate(sequence, 0);
  EXPECT_EQ(sequence.table().size(), 0u);
  ASSERT_TRUE(driver_->Append(sequence, 7, TokensFrom(3, 3)));
  Run(prompt);
  EXPECT_EQ(reused(), 40u);
  Run(Join(First(prompt, 21), TokensFrom(2, 31)));
  EXPECT_EQ(reused(), 51u);
}

TEST_F(KvPublisherTest, UncommittedTokensAreNeverPublished) {
  const Tokens prompt = TokensFrom(1, 40);
  KvSequence sequence = cache().Fetch(cache().Match(ns_, prompt, {}), 64);
  ASSERT_TRUE(cache().Extend(sequence, prompt));
  driver_->Stamp(sequence, 7, 0, 40, false);
  cache().Commit(sequence, 20, kEnd);
  EXPECT_EQ(cache().usage().cached_tokens, 16u);
  EXPECT_EQ(cache().usage().live_tokens, 24u);
  cache().Truncate(sequence, 20);
  EXPECT_EQ(cache().usage().live_tokens, 4u);
  cache().Commit(sequence, 0, kEnd);
  EXPECT_EQ(cache().usage().cached_tokens, 20u);
}

TEST_F(KvPublisherTest, TheCursorOutlivesItsTailWhenTheSequenceGoesOn) {
  const Tokens prompt = TokensFrom(1, 20);
  KvSequence sequence = Run(prompt);
  ASSERT_TRUE(driver_->Append(sequence, 7, TokensFrom(2, 30)));
  sequence = KvSequence();
  MatchResult match = cache().Match(ns_, prompt, {});
  EXPECT_TRUE(match.has_cursor());
  EXPECT_EQ(match.num_pool(), 16u);
  EXPECT_EQ(match.num_partial(), 4u);
}

// Blocks of prompts are found as soon as they are committed, and only by their own namespace.
TEST(KvCacheContinue, DraftsWhatFollowedInTheSameNamespaceAlone) {
  KvCacheOptions options = OptionsFor(32);
  options.continues = true;
  options.budget_bytes += 1 << 16;
  CacheDriver driver(options);
  const NamespaceId alice = driver.cache->EnterNamespace("alice", IdentityNamed(1));
  const NamespaceId bob = driver.cache->EnterNamespace("bob", IdentityNamed(1));
  const Tokens text = TokensFrom(1, 64);
  std::optional<Miss> miss;
  KvSequence written = driver.Run(alice, 7, text, {}, &miss);
  const Tokens asked = Join(TokensFrom(2, 20), First(text, 30));
  const KvSequence mine = driver.Run(alice, 7, asked, {}, &miss);
  KvSequence theirs = driver.Run(bob, 8, asked, {}, &miss);
  Tokens drafted(10);
  const KvCache::Continuation found = driver.cache->Continue(mine, asked, drafted);
  EXPECT_EQ(found.num_tokens, 10u);
  EXPECT_EQ(found.num_equal, 30u);
  EXPECT_TRUE(std::ranges::equal(drafted, std::span(text).subspan(30, 10)));
  EXPECT_EQ(driver.cache->Continue(theirs, First(text, 30), drafted).num_tokens, 0u);
  driver.cache->Forget(alice);
  EXPECT_EQ(driver.cache->Continue(mine, asked, drafted).num_tokens, 0u);
}

}  // namespace
}  // namespace kvasir
