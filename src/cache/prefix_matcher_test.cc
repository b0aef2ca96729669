#include "cache/prefix_matcher.h"

#include <gtest/gtest.h>

#include "cache/cache_parts_for_test.h"

namespace kvasir {
namespace {

class PrefixMatcherTest : public CacheParts {
 protected:
  MatchResult Match(NamespaceId ns, const Tokens& prompt, const MatchOptions& options = {}) {
    PrefixMatcher matcher({.layout = layout_,
                           .pool = *pool_,
                           .index = index_,
                           .cursors = cursors_,
                           .accounts = accounts_,
                           .namespaces = spaces_,
                           .residency = *residency_,
                           .tier = nullptr,
                           .reuse = true,
                           .source_seed = 3,
                           .source_hash_mask = ~uint64_t{0}});
    return matcher.Match(ns, prompt, options);
  }
  static Tokens Prompt(size_t tail, uint64_t seed) {  // two blocks of Add, then others
    return Join(Join(TokensFrom(1, 16), TokensFrom(2, 16)), TokensFrom(seed, tail));
  }
};

TEST_F(PrefixMatcherTest, PinsWholeBlocksWhileItIsHeld) {
  Add(alice_, Add(alice_, Root(alice_), 1), 2);
  {
    const MatchResult match = Match(alice_, Prompt(5, 9));
    EXPECT_EQ(match.num_pool(), 32u);
    EXPECT_EQ(match.num_partial(), 0u);
    EXPECT_FALSE(match.miss);
    EXPECT_EQ(pool_->num_pinned(), 2u);
    residency_->CheckInvariants();
  }
  EXPECT_EQ(pool_->num_pinned(), 0u);
}

TEST_F(PrefixMatcherTest, UsesTheBeginningOfABlockAndSaysWhereThePromptDiverges) {
  Add(alice_, Add(alice_, Root(alice_), 1), 2);
  Tokens prompt = Prompt(0, 0);
  prompt[20] ^= 1;
  const MatchResult match = Match(alice_, prompt);
  EXPECT_EQ(match.num_pool(), 16u);
  EXPECT_EQ(match.num_partial(), 4u);
  ASSERT_TRUE(match.miss);
  EXPECT_EQ(match.miss->reason, MissReason::kDiverged);
  EXPECT_EQ(match.miss->at_token, 20u);
}

TEST_F(PrefixMatcherTest, LeavesTheLastTokenToCompute) {
  Add(alice_, Add(alice_, Root(alice_), 1), 2);
  EXPECT_EQ(Match(alice_, Prompt(0, 0)).num_reused(), 31u);
}

TEST_F(PrefixMatcherTest, FindsNothingOfAnotherOwnerAndDoesNotSaySo) {
  Add(bob_, Root(bob_), 1);
  const MatchResult match = Match(alice_, Prompt(0, 0));
  EXPECT_EQ(match.num_reused(), 0u);
  ASSERT_TRUE(match.miss);
  EXPECT_EQ(match.miss->reason, MissReason::kCold);
}

TEST_F(PrefixMatcherTest, SaysThatABlockWasEvictedOrIsReservedByOthers) {
  const NodeId first = Add(alice_, Root(alice_), 1);
  Add(alice_, first, 2);
  EXPECT_TRUE(residency_->EvictOne(kNobody, Residency::Victims::kAny));
  EXPECT_EQ(Match(alice_, Prompt(1, 9)).miss->reason, MissReason::kEvicted);
  accounts_.Reserve(spaces_.Of(bob_).account, kPartsBlocks);
  EXPECT_EQ(Match(alice_, Prompt(1, 9)).miss->reason, MissReason::kPoolFull);
  accounts_.Release(spaces_.Of(bob_).account, kPartsBlocks);
}

}  // namespace
}  // namespace kvasir
