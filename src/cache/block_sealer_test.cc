#include "cache/block_sealer.h"

#include <gtest/gtest.h>

#include <limits>
#include <memory>

#include "base/clock.h"
#include "cache/cache_driver_for_test.h"
#include "tier/memory_tier_for_test.h"

namespace kvasir {
namespace {

constexpr NamespaceId kSealed{1};

// Runs of blocks in an index, as a cache has them, without a cache.
class BlockSealerTest : public testing::Test {
 protected:
  void Make(const MemoryTierOptions& options) {
    auto made = BlockPool::Create(layout_.block_bytes(), 8);
    ASSERT_TRUE(made);
    pool_ = std::move(*made);
    owners_ = std::make_unique<BlockOwners>(*pool_);
    tier_ = std::make_unique<MemoryTier>(options);
    sealer_ = std::make_unique<BlockSealer>(BlockSealer::Parts{.layout = layout_,
                                                               .pool = *pool_,
                                                               .index = index_,
                                                               .uses = uses_,
                                                               .owners = *owners_,
                                                               .namespaces = spaces_,
                                                               .tier = *tier_});
    parent_ = index_.AddRoot({});
    const Namespace space = Namespaces::Named("alice", IdentityNamed(1), std::nullopt);
    ASSERT_FALSE(spaces_.Reenter(space));
    ASSERT_EQ(spaces_.Put(*spaces_.PlaceFor(space), space, parent_), kSealed);
  }
  void TearDown() override {
    for (const BlockId block : added_) pool_->Unretain(block);
  }
  // Adds a node with a block below the last one.
  BlockId Add(uint32_t num_tokens = 16) {
    BlockRef block = pool_->Allocate();
    owners_->Take(block, kSealed);
    pool_->Retain(block.id());
    parent_ = index_.Insert(parent_, TokensFrom(added_.size(), num_tokens));
    index_.SetBlock(parent_, 0, block.id());
    added_.push_back(block.id());
    refs_.push_back(std::move(block));
    return added_.back();
  }
  bool Seal(uint64_t end_ns = std::numeric_limits<uint64_t>::max()) {
    return sealer_->SealUntil(end_ns, [](uint32_t items, const std::function<void(uint32_t)>& fn) {
      for (uint32_t i = 0; i < items; ++i) fn(i);
    });
  }
  uint64_t num_records() const {
    const TierStats stats = tier_->Stats();
    return stats.blocks + stats.pending_blocks;
  }

  const KvLayout layout_ = TinyLayout();
  PrefixIndex index_{
      {.num_blocks = 8, .block_tokens = 16, .num_nodes = 16, .num_roots = 2, .seed = 5}};
  KvAccounts accounts_{1, 8};
  BlockUses uses_{layout_, 8};
  Namespaces spaces_{{.all = 1}, index_.AddRoot({}), index_, accounts_};
  std::unique_ptr<BlockPool> pool_;
  std::unique_ptr<BlockOwners> owners_;
  std::unique_ptr<MemoryTier> tier_;
  std::unique_ptr<BlockSealer> sealer_;
  NodeId parent_{};
  std::vector<BlockId> added_;
  std::vector<BlockRef> refs_;
};

TEST_F(BlockSealerTest, SealsFullBlocksInTheOrderInWhichTheyCame) {
  Make({.payload_bytes = layout_.block_bytes()});
  const BlockId first = Add(), second = Add(), tail = Add(5);
  for (const BlockId block : {first, second, tail}) sealer_->Push(block);
  sealer_->Push(first);  // it waits already
  EXPECT_EQ(sealer_->size(), 2u);
  const BlockSealer::Point point = sealer_->point();
  EXPECT_FALSE(sealer_->IsSealed(point));
  EXPECT_TRUE(Seal());
  EXPECT_TRUE(sealer_->IsSealed(point));
  EXPECT_EQ(num_records(), 2u);  // the second one needs the first one: MemoryTier refuses orphans
}

TEST_F(BlockSealerTest, GoesOnWhenTheTierHasABufferAgain) {
  Make({.payload_bytes = layout_.block_bytes(), .num_buffers = 2});
  for (uint32_t i = 0; i < 4; ++i) sealer_->Push(Add());
  while (!Seal()) {
  }
  EXPECT_EQ(sealer_->size(), 0u);
  EXPECT_EQ(num_records(), 4u);
  EXPECT_EQ(tier_->Stats().dropped_buffer, 0u);
}

TEST_F(BlockSealerTest, StopsAtTheEndOfItsTime) {
  Make({.payload_bytes = layout_.block_bytes()});
  for (uint32_t i = 0; i < 8; ++i) sealer_->Push(Add());
  EXPECT_TRUE(Seal(/*end_ns=*/0));  // one look at the clock: eight blocks
  EXPECT_EQ(num_records(), 8u);
}

TEST_F(BlockSealerTest, SealsABlockThatIsEvictedWithThoseBeforeIt) {
  Make({.payload_bytes = layout_.block_bytes()});
  const BlockId first = Add(), second = Add(), third = Add();
  for (const BlockId block : {first, second, third}) sealer_->Push(block);
  sealer_->Remove(second, /*evicted=*/true);
  EXPECT_EQ(num_records(), 2u);
  EXPECT_EQ(sealer_->size(), 1u);
  sealer_->Remove(third, /*evicted=*/false);  // forgotten: nothing is written
  EXPECT_EQ(num_records(), 2u);
  EXPECT_EQ(sealer_->size(), 0u);
}

TEST_F(BlockSealerTest, CountsWhatItDrops) {
  Make({.payload_bytes = layout_.block_bytes()});
  for (uint32_t i = 0; i < 3; ++i) sealer_->Push(Add());
  sealer_->DropAll();
  EXPECT_EQ(sealer_->size(), 0u);
  EXPECT_EQ(num_records(), 0u);
  EXPECT_EQ(tier_->Stats().dropped_buffer, 3u);
}

}  // namespace
}  // namespace kvasir
