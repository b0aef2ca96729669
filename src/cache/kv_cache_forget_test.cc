// KvCache::Forget of a part of a prompt: what leaves, what stays, and that no byte of it is left.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/fault.h"
#include "cache/cache_driver_for_test.h"

namespace kvasir {
namespace {

using enum KvCache::CommitKind;

class KvCacheForget : public KvCacheTest {
 protected:
  KvCache::Forgotten Forget(const Tokens& ids, uint32_t first, uint32_t last) {
    const auto forgotten = cache().Forget(ns_, ids, first, last);
    cache().CheckInvariants();
    return forgotten;
  }
  bool IsZero(const std::byte* base) {
#if defined(__SANITIZE_ADDRESS__)  // free blocks are poisoned there
    return base != nullptr;
#else
    const auto bytes = static_cast<ptrdiff_t>(cache().layout().block_bytes());
    return std::count(base, base + bytes, std::byte{0}) == bytes;
#endif
  }
};

TEST_F(KvCacheForget, TheBlockThatHoldsTheTokenAndAllBelowItLeave) {
  const Tokens prompt = TokensFrom(1, 40);
  Run(prompt);
  Run(Join(First(prompt, 20), TokensFrom(2, 30)));  // leaves it at token 20
  Run(Join(First(prompt, 36), TokensFrom(3, 30)));  // leaves it at token 36
  const auto forgotten = Forget(prompt, 33, 34);
  EXPECT_EQ(forgotten.erased_blocks, 4u);  // a tail of 8; 16, 16 and 2 of another
  EXPECT_EQ(forgotten.erased_tokens, 8u + 16u + 16u + 2u);
  EXPECT_EQ(forgotten.kept_shared, 0u);
  Run(Join(First(prompt, 20), TokensFrom(2, 30)));
  EXPECT_EQ(reused(), 50u);
  Run(prompt);
  EXPECT_EQ(reused(), 32u);
}

TEST_F(KvCacheForget, WhatPartsBeforeTheEndOfTheTextStays) {
  const Tokens prompt = TokensFrom(1, 80);
  const Tokens chat = Join(First(prompt, 36), TokensFrom(2, 30));  // parts within the text
  const Tokens late = Join(First(prompt, 60), TokensFrom(3, 20));  // has all of it
  for (const Tokens& one : {prompt, chat, late}) Run(one);
  // The text begins in the second block and ends in the fourth one.
  const auto forgotten = Forget(prompt, 20, 59);
  EXPECT_EQ(forgotten.erased_tokens, 16u + 16u + 16u + 32u);  // 32 on; of `late` 48 on
  Run(chat);
  EXPECT_EQ(reused(), chat.size());
  Run(late);
  EXPECT_EQ(reused(), 36u);  // of the block of `chat`
  cache().Erase(ns_);
  for (const Tokens& one : {prompt, late}) Run(one);
  EXPECT_EQ(Forget(prompt, 20, 59).erased_tokens, 96u);  // nothing is left behind
  Run(prompt);
  EXPECT_EQ(reused(), 16u);
}

TEST_F(KvCacheForget, ASequenceThatMayPartStaysWithItsBlocks) {
  const Tokens prompt = TokensFrom(1, 80);
  Run(prompt);
  KvSequence other = Run(First(prompt, 36));  // it has not parted yet, and its tail is in a block
  EXPECT_EQ(Forget(prompt, 0, 79).erased_tokens, 48u);
  EXPECT_TRUE(other.publishes());
  ASSERT_TRUE(driver_->Append(other, 7, TokensFrom(3, 20), kEnd));
  EXPECT_EQ(cache().usage().cached_tokens, 56u);
  other.LeaveIndex();
  Forget(Join(First(prompt, 36), TokensFrom(3, 20)), 0, 55);
  EXPECT_EQ(cache().usage().cached_tokens, 0u);
  driver_->Verify(other, 7);
}

TEST_F(KvCacheForget, TheFaultsAreSeen) {
  const Tokens prompt = TokensFrom(1, 80);
  const auto left_of = [&](Fault fault, const Tokens& other) {
    cache().Erase(ns_);
    for (const Tokens& one : {prompt, other}) Run(one);
    InjectFault(fault);
    Forget(prompt, 0, 40);
    InjectFault(Fault::kNone);
    return cache().Match(ns_, other, {}).num_reused();
  };
  const Tokens parts = Join(First(prompt, 20), TokensFrom(2, 30));
  const Tokens goes_on = Join(First(prompt, 60), TokensFrom(3, 20));
  EXPECT_EQ(left_of(Fault::kNone, parts), 50u);
  EXPECT_EQ(left_of(Fault::kEraseByFirst, parts), 0u);
  EXPECT_EQ(left_of(Fault::kNone, goes_on), 0u);
  EXPECT_EQ(left_of(Fault::kEraseOwnOnly, goes_on), 80u);
}

TEST_F(KvCacheForget, OtherPromptsAndWhatComesBeforeStay) {
  const Tokens prompt = TokensFrom(1, 40);
  Run(prompt);
  Run(TokensFrom(2, 40));
  EXPECT_EQ(Forget(prompt, 0, 39).erased_tokens, 40u);
  EXPECT_EQ(Forget(prompt, 0, 39).erased_tokens, 0u);  // it is gone already
  EXPECT_EQ(Forget(TokensFrom(4, 40), 20, 21).erased_tokens, 0u);
  Run(TokensFrom(2, 40));
  EXPECT_EQ(reused(), 40u);
  Run(prompt);
  EXPECT_EQ(reused(), 0u);
  ExpectMiss(MissReason::kCold, 0);
}

TEST_F(KvCacheForget, CursorsWhoseTailHoldsTheTokenLeave) {
  const Tokens prompt = TokensFrom(1, 20);
  Run(prompt);
  Run(First(prompt, 17));
  EXPECT_EQ(cache().usage().num_cursors, 2u);
  Forget(prompt, 18, 18);
  EXPECT_EQ(cache().usage().num_cursors, 1u);
  Forget(prompt, 16, 19);
  EXPECT_EQ(cache().usage().num_cursors, 0u);
}

TEST_F(KvCacheForget, WhatIsWhollyInAKeptPromptStays) {
  const Tokens prompt = TokensFrom(1, 80);
  Run(prompt);
  const Tokens fork = First(prompt, 50);  // three whole blocks
  const auto forgotten = cache().Forget(ns_, prompt, 20, 20, KeptPrompts({fork}, prompt));
  cache().CheckInvariants();
  EXPECT_EQ(forgotten.kept_shared, 2u);
  EXPECT_EQ(forgotten.erased_blocks, 2u);
  Run(prompt);
  EXPECT_EQ(reused(), 48u);
}

TEST_F(KvCacheForget, NoByteOfItIsLeftInAnyBlock) {
  const Tokens prompt = TokensFrom(1, 48);
  std::vector<const std::byte*> bases;
  {
    const KvSequence sequence = Run(prompt);
    bases.assign(sequence.table().bases().begin(), sequence.table().bases().end());
  }
  const auto forgotten = Forget(prompt, 16, 47);
  for (int i = 0; i < 100 && !cache().IsZeroed(forgotten.point); ++i) cache().ZeroForgotten(1);
  EXPECT_TRUE(cache().IsZeroed(forgotten.point));
  EXPECT_TRUE(IsZero(bases[1]) && IsZero(bases[2]));
#if !defined(__SANITIZE_ADDRESS__)
  EXPECT_FALSE(IsZero(bases[0]));
#endif
}

TEST_F(KvCacheForget, ARunningSequenceGoesOnAndLeavesNothing) {
  const Tokens prompt = TokensFrom(1, 40);
  KvSequence running = Run(prompt);
  KvSequence fork = cache().Fork(running, 64);
  Forget(prompt, 20, 20);
  EXPECT_FALSE(running.publishes());
  driver_->Verify(running, 7);
  ASSERT_TRUE(driver_->Append(running, 7, TokensFrom(3, 20), kEnd));
  driver_->Verify(running, 7);
  EXPECT_EQ(cache().usage().cached_tokens, 16u);
  cache().KeepCursor(running, HiddenOf(7, running.tokens()));
  EXPECT_EQ(cache().usage().num_cursors, 0u);
  const std::vector<std::byte*> bases(running.table().bases().begin(),
                                      running.table().bases().end());
  KvSequence late = cache().Fork(fork, 64);  // its place is gone already
  EXPECT_FALSE(late.publishes());
  cache().CheckInvariants();
  running = KvSequence();
  fork = KvSequence();
  cache().CheckInvariants();
  cache().Erase(ns_);  // while its place is held
  cache().CheckInvariants();
  late = KvSequence();
  cache().CheckInvariants();
  for (const std::byte* base : bases) EXPECT_TRUE(IsZero(base));
  Run(prompt);
  EXPECT_EQ(reused(), 0u);
}

// The scheduler takes a running sequence of the text out of the index first.
TEST_F(KvCacheForget, CopiesOfASequenceThatDropsTokensAreZeroedWhenItReleasesThem) {
  const Tokens prompt = TokensFrom(1, 80);
  for (const bool erases : {false, true}) {
    KvSequence running = Run(prompt);
    const uint64_t copied = cache().counters().copied_blocks;
    const std::vector<uint32_t> kept = {0, 2};
    ASSERT_TRUE(cache().Retain(running, {kept, 1, 4, 128, 0}));
    EXPECT_EQ(cache().counters().copied_blocks - copied, 2u);  // of the third block and the last
    running.LeaveIndex();
    if (erases) {
      cache().Erase(ns_);
    } else {
      Forget(prompt, 20, 79);
    }
    ASSERT_TRUE(driver_->Append(running, 7, TokensFrom(3, 20), kEnd));
    driver_->Verify(running, 7);
    std::vector<const std::byte*> bases = {running.kept()[0].bases()[1]};
    if (erases) bases.push_back(running.kept()[0].bases()[0]);  // else it is another text's too
    const BlockTable& table = running.table();
    for (size_t b = table.first(); b < table.size(); ++b) bases.push_back(table.bases()[b]);
    EXPECT_EQ(bases.size(), erases ? 5u : 4u);
    running = KvSequence();
    for (size_t i = 0; i < bases.size(); ++i) EXPECT_TRUE(IsZero(bases[i])) << i;
    EXPECT_EQ(cache().usage().cached_tokens, erases ? 0u : 16u);
  }
}

TEST_F(KvCacheForget, ASequenceBeforeTheTokenStillPublishes) {
  const Tokens prompt = TokensFrom(1, 40);
  Run(prompt);
  KvSequence before = Run(First(prompt, 17));
  Forget(prompt, 30, 31);
  EXPECT_TRUE(before.publishes());
  ASSERT_TRUE(driver_->Append(before, 7, TokensFrom(3, 20), kEnd));
  EXPECT_EQ(cache().usage().cached_tokens, 37u);
  cache().CheckInvariants();
}

}  // namespace
}  // namespace kvasir
