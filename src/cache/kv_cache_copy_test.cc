// Reservations for the copies of tails: of blocks that are written after their first tokens are in
// the index, or belong to others too.
#include <gtest/gtest.h>

#include "cache/cache_driver_for_test.h"

namespace kvasir {
namespace {

class ReservedCopies : public KvCacheTest {};

// What was reserved for the copy of a tail is free again where the tail is written in place: else a
// sequence whose own blocks fill the pool could not grow into the last one.
TEST_F(ReservedCopies, NothingIsReservedForACopyThatIsNotMade) {
  enum class Why { kPublished, kMatched, kForked };
  for (const Why why : {Why::kPublished, Why::kMatched, Why::kForked}) {
    SCOPED_TRACE(static_cast<int>(why));
    Make(6);
    ns_ = cache().EnterNamespace("alice", IdentityNamed(1));
    Reservation mine;
    KvSequence first, fork;
    if (why == Why::kMatched) {
      (void)Run(TokensFrom(1, 20));
      Tokens prompt = TokensFrom(1, 20);
      prompt.push_back(9);
      MatchResult match = cache().Match(ns_, prompt, {});
      auto reserved = cache().Reserve(match, {21, 32});
      ASSERT_TRUE(reserved);
      mine = std::move(*reserved);
      ASSERT_EQ(match.num_reused(), 20u);
      first = cache().Fetch(std::move(match), 96, mine);
    } else {
      MatchResult match = cache().Match(ns_, TokensFrom(1, 20), {});
      mine = *cache().Reserve(match, {20, 32, why == Why::kForked ? 2u : 1u});
      first = cache().Fetch(std::move(match), 96, mine);
      ASSERT_TRUE(driver_->Append(first, 7, TokensFrom(1, 20), KvCache::CommitKind::kEnd));
    }
    if (why == Why::kForked) fork = cache().Fork(first, 96);
    EXPECT_EQ(mine.blocks(), why == Why::kForked ? 2u : 1u);
    cache().Erase(ns_);
    EXPECT_TRUE(driver_->Append(first, 7, TokensFrom(2, 1)));
    if (why == Why::kForked) {
      EXPECT_TRUE(driver_->Append(fork, 7, TokensFrom(3, 1)));
    }
    EXPECT_EQ(cache().reserved_blocks(), 0u);
    fork = KvSequence();
    EXPECT_TRUE(mine.Grow(96, 1));
    EXPECT_TRUE(driver_->Append(first, 7, TokensFrom(4, 75)));
    EXPECT_EQ(first.num_tokens(), 96u);
    cache().CheckInvariants();
  }
}

}  // namespace
}  // namespace kvasir
