#include "cache/block_uses.h"

#include <gtest/gtest.h>

#include "cache/cache_driver_for_test.h"

namespace kvasir {
namespace {

constexpr AccountId kAccount{1};

TEST(BlockUses, KnowsWhatABlockWasTakenFor) {
  const KvLayout layout = LayoutOf({0, 0, 20});
  BlockUses uses(layout, 4);
  EXPECT_EQ(uses.allocated_bytes(), BlockUses::BytesFor(4));
  for (uint32_t group = 0; group < 3; ++group) uses.Take(BlockId{group}, group, kAccount);
  EXPECT_TRUE(uses.stands_for_kind(BlockId{0}));
  EXPECT_FALSE(uses.stands_for_kind(BlockId{1}));
  EXPECT_TRUE(uses.stands_for_kind(BlockId{2}));
  EXPECT_EQ(uses.kind(BlockId{1}).first_group, 0u);
  EXPECT_EQ(uses.kind(BlockId{2}).reach.window, 20u);
  EXPECT_EQ(uses.account(BlockId{1}), kAccount);
  EXPECT_EQ(uses.account(BlockId{3}), kNobody);
}

TEST(BlockUses, CountsHitsSinceANodeHoldsTheBlock) {
  const KvLayout layout = TinyLayout();
  BlockUses uses(layout, 2);
  uses.CountHit(BlockId{0});
  uses.Touch(BlockId{1});
  uses.Renew(BlockId{0});
  EXPECT_EQ(uses.of(BlockId{0}).hits, 0u);
  EXPECT_EQ(uses.of(BlockId{0}).last, uses.of(BlockId{1}).last);
  uses.CountHit(BlockId{0});
  uses.Touch(BlockId{0});
  EXPECT_EQ(uses.of(BlockId{0}).hits, 1u);
  EXPECT_GT(uses.of(BlockId{0}).last, uses.of(BlockId{1}).last);
}

TEST(BlockUses, SumsTokensOfTheFirstGroupAndBytesOfAll) {
  const KvLayout layout = LayoutOf({0, 20});
  BlockUses uses(layout, 3);
  uses.Take(BlockId{0}, 0, kNobody);
  uses.Take(BlockId{1}, 1, kNobody);
  uses.SetLive(BlockId{0}, 7);
  uses.SetLive(BlockId{1}, 7);
  EXPECT_EQ(uses.live_tokens(), 7u);
  EXPECT_EQ(uses.held_bytes(), 7 * (layout.token_bytes(0) + layout.token_bytes(1)));
  uses.SetLive(BlockId{0}, 3);
  EXPECT_EQ(uses.live_tokens(), 3u);
  uses.SetLive(BlockId{0}, 0);
  uses.AddCached(BlockId{0}, 16);
  EXPECT_EQ(uses.held_bytes(), 16 * layout.token_bytes(0) + 7 * layout.token_bytes(1));
  uses.CheckInvariants(16 * layout.token_bytes(0));
  uses.SubtractCached(BlockId{0}, 16);
  uses.SetLive(BlockId{1}, 0);
  EXPECT_EQ(uses.held_bytes(), 0u);
  uses.CheckInvariants(0);
  EXPECT_DEATH(uses.CheckInvariants(1), "cached_bytes");
}

}  // namespace
}  // namespace kvasir
