// For tests of what KvCache is made of: its parts without it.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string_view>
#include <vector>

#include "cache/cache_driver_for_test.h"
#include "cache/residency.h"

namespace kvasir {

inline constexpr uint32_t kPartsBlocks = 4;

// The parts of a cache for a layout of one group, with namespaces of alice and bob, without a
// cache.
class CacheParts : public testing::Test {
 protected:
  void SetUp() override {
    auto made = BlockPool::Create(layout_.block_bytes(), kPartsBlocks);
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
    alice_ = Enter("alice");
    bob_ = Enter("bob");
  }
  void TearDown() override { residency_->CheckInvariants(); }
  NamespaceId Enter(std::string_view owner) {
    Namespace space = Namespaces::Named(owner, IdentityNamed(1), std::nullopt);
    space.account = accounts_.Enter(space.owner);
    EXPECT_FALSE(spaces_.Reenter(space));
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
  PrefixIndex index_{{.num_blocks = kPartsBlocks,
                      .block_tokens = 16,
                      .num_nodes = kPartsBlocks,
                      .num_roots = 3,
                      .seed = 5}};
  std::unique_ptr<EvictionPolicy> policy_ = DefaultEvictionChoice().make(
      {.num_blocks = kPartsBlocks, .num_namespaces = 3, .num_groups = 1});
  CursorStore cursors_{2, 16, kHidden};
  BlockUses uses_{layout_, kPartsBlocks};
  KvAccounts accounts_{2, kPartsBlocks};
  Namespaces spaces_{{.all = 2}, index_.AddRoot({}), index_, accounts_};
  CacheCounters counters_;
  std::unique_ptr<BlockPool> pool_;
  std::unique_ptr<BlockOwners> owners_;
  std::unique_ptr<Residency> residency_;
  NamespaceId alice_{}, bob_{};
};

}  // namespace kvasir
