#include "cache/kv_publisher.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace kvasir
