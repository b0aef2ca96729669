#include "cache/residency.h"

#include <gtest/gtest.h>

#include "cache/cache_parts_for_test.h"
#include "cache/node_hold.h"

namespace kvasir {
namespace {

class ResidencyTest : public CacheParts {};

TEST_F(ResidencyTest, ABlockInANodeIsIdleAfterItsLastPin) {
  const NodeId node = Add(alice_, Root(alice_), 1);
  EXPECT_EQ(pool_->num_idle(), 1u);
  EXPECT_EQ(accounts_.of(spaces_.Of(alice_).account).idle, 1u);
  EXPECT_EQ(uses_.held_bytes(), 16 * layout_.token_bytes());
  residency_->Unlink(node, PrefixIndex::RemoveKind::kForgotten);
  EXPECT_EQ(pool_->num_free(), kPartsBlocks);
  EXPECT_EQ(uses_.held_bytes(), 0u);
  EXPECT_EQ(counters_.evicted_blocks, 0u);
}

TEST_F(ResidencyTest, EvictsLeavesFirst) {
  const NodeId first = Add(alice_, Root(alice_), 1);
  const NodeId second = Add(alice_, first, 2);
  EXPECT_TRUE(residency_->EvictOne(kNobody, Residency::Victims::kAny));
  EXPECT_TRUE(index_.block(first, 0));
  EXPECT_FALSE(index_.has_children(first));
  EXPECT_EQ(counters_.evicted_tokens, 16u);
  EXPECT_TRUE(index_.WasEvicted(first, TokensFrom(2, 16), 0));
  EXPECT_TRUE(residency_->EvictOne(kNobody, Residency::Victims::kAny));
  EXPECT_FALSE(residency_->EvictOne(kNobody, Residency::Victims::kAny));
  static_cast<void>(second);
}

TEST_F(ResidencyTest, TakesAnIdleBlockWhenNoneIsFree) {
  for (uint64_t seed = 0; seed < kPartsBlocks; ++seed) Add(alice_, Root(alice_), seed);
  EXPECT_EQ(pool_->num_free(), 0u);
  Add(bob_, Root(bob_), 1);
  EXPECT_EQ(counters_.evicted_blocks, 1u);
  EXPECT_EQ(counters_.evicted_own_blocks, 0u);
  Add(alice_, Root(alice_), 9);
  EXPECT_EQ(counters_.evicted_blocks, 2u);
  EXPECT_EQ(counters_.evicted_own_blocks, 1u);
}

TEST_F(ResidencyTest, AnOwnerAtItsMaximumTakesItsOwn) {
  const AccountId account = spaces_.Of(alice_).account;
  accounts_.SetQuota(account, {.max = 2});
  Add(bob_, Root(bob_), 1);
  Add(alice_, Root(alice_), 1);
  Add(alice_, Root(alice_), 2);
  Add(alice_, Root(alice_), 3);
  EXPECT_EQ(accounts_.of(account).held(), 2u);
  EXPECT_EQ(counters_.quota_evicted_blocks, 1u);
  EXPECT_TRUE(index_.has_children(Root(bob_)));
}

TEST_F(ResidencyTest, AHoldKeepsItsNodeAndKnowsThatItWasRemoved) {
  const NodeId node = Add(alice_, Root(alice_), 1);
  NodeHold hold(residency_.get(), alice_, node);
  EXPECT_EQ(spaces_.Of(alice_).users, 1u);
  EXPECT_TRUE(hold.is_current());
  NodeHold other = hold.Share();
  residency_->Unlink(node, PrefixIndex::RemoveKind::kForgotten);
  EXPECT_FALSE(hold.is_current());
  other.Reset();
  EXPECT_FALSE(hold.is_current());
  hold.Reset();
  EXPECT_EQ(spaces_.Of(alice_).users, 0u);
  EXPECT_EQ(index_.num_nodes(), 0u);
}

}  // namespace
}  // namespace kvasir
