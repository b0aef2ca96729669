#include "cache/residency.h"

#include <gtest/gtest.h>

#include <memory>

#include "cache/cache_driver_for_test.h"
#include "cache/node_hold.h"

namespace kvasir {
namespace {

constexpr uint32_t kNumBlocks = 4;

// The parts of a cache for one layer, without a cache.
class ResidencyTest : public testing::Test {
 protected:
  void SetUp() override {
    auto made = BlockPool::Create(layout_.block_bytes(), kNumBlocks);
    ASSERT_TRUE(made);
    pool_ = std::move(*made);
    owners_ = std::make_unique<BlockOwners>(*pool_);
    residency_ = std::make_unique<Residency>(Residency::Parts{.layout = layout_,
                                                              .pool = *pool_,
                                                              .index = index_,
                                                              .policy = *policy_,
                                                              .cursors = cursors_,
                                                              .uses = uses_,
                                                              .owners = *owners_,
                                                              .accounts = accounts_,
                                                              .namespaces = spaces_,
                                                              .counters = counters_,
                                                              .sealer = nullptr},
                                             /*num_namespaces=*/2);
    alice_ = Open("alice");
    bob_ = Open("bob");
  }
  void TearDown() override { residency_->CheckInvariants(); }
  NamespaceId Open(std::string_view owner) {
    Namespace space = Namespaces::Named(owner, IdentityNamed(1), std::nullopt);
    space.account = accounts_.Open(space.owner);
    EXPECT_FALSE(spaces_.Reopen(space));
    return spaces_.Put(*spaces_.PlaceFor(space), space, index_.AddRoot({}));
  }
  // Computes a block after `parent`, which is pinned until it returns.
  NodeId Add(NamespaceId ns, NodeId parent, uint64_t seed) {
    std::vector<BlockRef> before;  // who pins a block pins all before it
    for (NodeId node = parent; !PrefixIndex::is_root(node); node = index_.parent(node)) {
      before.push_back(pool_->Pin(*index_.block(node, 0)));
    }
    std::vector<BlockTable> tables(1);
    tables[0].Append(residency_->Take(ns, spaces_.Of(ns).account, 0));
    const NodeId node = index_.Insert(parent, TokensFrom(seed, 16));
    residency_->Enter(node, layout_.kinds()[0], tables, 0);
    residency_->CheckInvariants();
    tables.clear();  // the last block first
    return node;
  }
  NodeId Root(NamespaceId ns) const { return spaces_.Of(ns).root; }

  const KvLayout layout_ = TinyLayout();
  PrefixIndex index_{{.num_blocks = kNumBlocks,
                      .block_tokens = 16,
                      .num_nodes = kNumBlocks,
                      .num_roots = 3,
                      .seed = 5}};
  std::unique_ptr<EvictionPolicy> policy_ = DefaultEvictionChoice().make(
      {.num_blocks = kNumBlocks, .num_namespaces = 3, .num_groups = 1});
  CursorStore cursors_{2, 16, kHidden};
  BlockUses uses_{layout_, kNumBlocks};
  KvAccounts accounts_{2, kNumBlocks};
  Namespaces spaces_{2, index_.AddRoot({}), index_, accounts_};
  CacheCounters counters_;
  std::unique_ptr<BlockPool> pool_;
  std::unique_ptr<BlockOwners> owners_;
  std::unique_ptr<Residency> residency_;
  NamespaceId alice_{}, bob_{};
};

TEST_F(ResidencyTest, ABlockInANodeIsIdleAfterItsLastPin) {
  const NodeId node = Add(alice_, Root(alice_), 1);
  EXPECT_EQ(pool_->num_idle(), 1u);
  EXPECT_EQ(accounts_.of(spaces_.Of(alice_).account).idle, 1u);
  EXPECT_EQ(uses_.held_bytes(), 16 * layout_.token_bytes());
  residency_->Unlink(node, PrefixIndex::RemoveKind::kForgotten);
  EXPECT_EQ(pool_->num_free(), kNumBlocks);
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
  for (uint64_t seed = 0; seed < kNumBlocks; ++seed) Add(alice_, Root(alice_), seed);
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
