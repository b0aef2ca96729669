// Conformance suite: the rules for every EvictionPolicy, independent of its order.
#include "policy/eviction_policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <set>
#include <vector>

#include "base/random.h"
#include "policy/eviction_choice.h"

namespace {
std::atomic<uint64_t> allocations{0};  // relaxed: tests here have one thread
}  // namespace

[[gnu::noinline]] void* operator new(size_t size) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* p = std::malloc(size)) return p;
  std::abort();
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept { std::free(p); }

namespace kvasir {
namespace {

constexpr EvictionLimits kLimits{.num_blocks = 40, .num_namespaces = 5, .num_groups = 2};
constexpr LayerGroupId kWindowGroup{1};

BlockFacts Facts(uint32_t ns, LayerGroupId group, uint64_t content) {
  return {.ns = NamespaceId{ns},
          .group = group,
          .depth = 1,
          .bytes = 1024,
          .hits = 0,
          .last_use = 0,
          .content = content};
}

// A naive cache of chains of blocks that scans all blocks for each question. Makes the same calls
// to two policies of the same kind.
class Twin {
 public:
  Twin(const EvictionChoice& choice, uint64_t seed)
      : random_(seed), policy_(choice.make(kLimits)), other_(choice.make(kLimits)) {}

  void Step() {
    const auto id = static_cast<uint32_t>(random_.Below(kLimits.num_blocks));
    Block& block = blocks_[id];
    switch (random_.Below(8)) {
      case 0:
      case 1:
        return block.here ? Pin(block) : Insert(id);
      case 2:
        return block.here ? Pin(block) : Insert(id);
      case 3:
      case 4:
      case 5:
        if (block.here && block.pinned) Unpin(block);
        return;
      case 6:
        if (block.here && !HasChildren(id)) Leave(id, /*evicted=*/false);
        return;
      default:
        TryVictim();
    }
  }

  void TryVictim() {
    std::vector<NamespaceId> namespaces;
    std::vector<LayerGroupId> groups;
    for (uint32_t ns = 0; ns < kLimits.num_namespaces; ++ns) {
      if (random_.Below(2) == 0) namespaces.push_back(NamespaceId{ns});
    }
    for (uint32_t group = 0; group < kLimits.num_groups; ++group) {
      if (random_.Below(2) == 0) groups.push_back(LayerGroupId{group});
    }
    EvictionScope scope;
    if (random_.Below(3) > 0) scope.namespaces = namespaces;
    if (random_.Below(3) > 0) scope.groups = groups;
    Evict(scope);
  }

  // Evicts the policy's victim; false when there is none.
  bool Evict(const EvictionScope& scope) {
    const auto within = [&](uint32_t id) {
      const BlockFacts& facts = blocks_[id].facts;
      return IsEvictable(id) &&
             (!scope.namespaces || std::ranges::count(*scope.namespaces, facts.ns) > 0) &&
             (!scope.groups || std::ranges::count(*scope.groups, facts.group) > 0);
    };
    bool exists = false;
    for (uint32_t id = 0; id < kLimits.num_blocks; ++id) exists |= within(id);
    const auto victim = policy_->Victim(scope);
    EXPECT_EQ(victim, other_->Victim(scope));
    EXPECT_EQ(victim.has_value(), exists);
    if (!victim) return false;
    EXPECT_TRUE(within(static_cast<uint32_t>(*victim)));
    EXPECT_EQ(policy_->Victim(scope), victim) << "a victim that stays is named again";
    EXPECT_EQ(other_->Victim(scope), victim);
    Leave(static_cast<uint32_t>(*victim), /*evicted=*/true);
    return true;
  }

  void UnpinAll() {
    for (Block& block : blocks_) {
      if (block.here && block.pinned) Unpin(block);
    }
  }

  void Check() {
    uint32_t evictable = 0;
    for (uint32_t id = 0; id < kLimits.num_blocks; ++id) {
      ASSERT_EQ(policy_->is_evictable(BlockId{id}), IsEvictable(id)) << "block " << id;
      evictable += IsEvictable(id);
    }
    ASSERT_EQ(policy_->num_evictable(), evictable);
    policy_->CheckInvariants();
  }

  uint32_t num_blocks() const {
    return static_cast<uint32_t>(std::ranges::count_if(blocks_, &Block::here));
  }
  const EvictionPolicy& policy() const { return *policy_; }

 private:
  struct Block {
    bool here = false, pinned = false;
    uint32_t parent = kLimits.num_blocks;  // none
    BlockFacts facts{};
  };

  bool HasChildren(uint32_t id) const {
    return std::ranges::any_of(blocks_, [&](const Block& b) { return b.here && b.parent == id; });
  }
  // Tells whether a block may be evicted: one of a window even when others follow it.
  bool IsEvictable(uint32_t id) const {
    const Block& block = blocks_[id];
    return block.here && !block.pinned && (block.facts.group == kWindowGroup || !HasChildren(id));
  }
  template <typename F>
  void Both(const F& call) {
    call(*policy_);
    call(*other_);
  }
  // Reports a change of state to the policies; `before`: whether the block was evictable.
  void Tell(uint32_t id, bool before) {
    const bool now = IsEvictable(id);
    if (before && !now) Both([&](EvictionPolicy& p) { p.OnHeld(BlockId{id}); });
    if (!before && now) {
      Both([&](EvictionPolicy& p) { p.OnEvictable(BlockId{id}, blocks_[id].facts); });
    }
  }

  void Insert(uint32_t id) {
    Block block{.here = true, .pinned = true};
    block.facts = Facts(static_cast<uint32_t>(random_.Below(kLimits.num_namespaces)),
                        LayerGroupId{static_cast<uint32_t>(random_.Below(2))}, random_.Below(60));
    const auto parent = static_cast<uint32_t>(random_.Below(kLimits.num_blocks));
    const bool before = IsEvictable(parent);
    if (parent != id && blocks_[parent].here) {
      block.parent = parent;
      block.facts.depth = blocks_[parent].facts.depth + 1;
    }
    block.facts.last_use = ++clock_;
    blocks_[id] = block;
    Both([&](EvictionPolicy& p) { p.OnInserted(BlockId{id}, block.facts); });
    if (parent != id) Tell(parent, before);
  }
  void Pin(Block& block) {
    const auto id = static_cast<uint32_t>(&block - blocks_.data());
    const bool before = IsEvictable(id);
    block.facts.hits += !block.pinned;
    block.pinned = true;
    Tell(id, before);
  }
  void Unpin(Block& block) {
    const auto id = static_cast<uint32_t>(&block - blocks_.data());
    block.pinned = false;
    block.facts.last_use = ++clock_;
    Tell(id, false);
  }
  void Leave(uint32_t id, bool evicted) {
    const uint32_t parent = blocks_[id].parent;
    const bool before = parent < kLimits.num_blocks && IsEvictable(parent);
    blocks_[id].here = false;
    for (Block& block : blocks_) {  // evicting a window's block may leave its successors
      if (block.parent == id) block.parent = kLimits.num_blocks;
    }
    Both([&](EvictionPolicy& p) {
      if (evicted) {
        p.OnEvicted(BlockId{id});
      } else {
        p.OnForgotten(BlockId{id});
      }
    });
    if (parent < kLimits.num_blocks) Tell(parent, before);
  }

  Random random_;
  std::unique_ptr<EvictionPolicy> policy_, other_;
  std::vector<Block> blocks_ = std::vector<Block>(kLimits.num_blocks);
  uint64_t clock_ = 0;
};

class EvictionPolicyConformance : public testing::TestWithParam<EvictionChoice> {};

TEST_P(EvictionPolicyConformance, AllocatesWhatIsPlannedAndNothingLater) {
  for (const EvictionLimits limits :
       {EvictionLimits{1, 1, 1}, kLimits, EvictionLimits{1000, 257, 3}}) {
    const auto policy = GetParam().make(limits);
    EXPECT_EQ(policy->allocated_bytes(), GetParam().bytes_for(limits));
    const uint64_t before = allocations;
    for (uint32_t round = 0; round < 3; ++round) {
      for (uint32_t i = 0; i < limits.num_blocks; ++i) {
        const uint32_t ns = i % limits.num_namespaces;
        BlockFacts facts = Facts(ns, LayerGroupId{0}, i);
        policy->OnInserted(BlockId{i}, facts);
        facts.hits = i % 5;
        facts.last_use = round * limits.num_blocks + i;
        policy->OnEvictable(BlockId{i}, facts);
      }
      while (const auto victim = policy->Victim({})) policy->OnEvicted(*victim);
    }
    EXPECT_EQ(allocations, before);
    EXPECT_EQ(policy->allocated_bytes(), GetParam().bytes_for(limits));
  }
}

TEST_P(EvictionPolicyConformance, HasNoVictimWhereNothingIsEvictable) {
  const auto policy = GetParam().make(kLimits);
  EXPECT_EQ(policy->Victim({}), std::nullopt);
  const BlockFacts facts = Facts(2, LayerGroupId{0}, 1);
  policy->OnInserted(BlockId{3}, facts);
  EXPECT_EQ(policy->Victim({}), std::nullopt) << "its user holds it";
  policy->OnEvictable(BlockId{3}, facts);
  EXPECT_EQ(policy->Victim({}), BlockId{3});
  const std::vector<NamespaceId> others{NamespaceId{1}, NamespaceId{3}};
  EXPECT_EQ(policy->Victim({.namespaces = others}), std::nullopt);
  const std::vector<LayerGroupId> windows{kWindowGroup};
  EXPECT_EQ(policy->Victim({.groups = windows}), std::nullopt);
  EXPECT_EQ(policy->Victim({.namespaces = std::span<const NamespaceId>{}}), std::nullopt);
  policy->OnHeld(BlockId{3});
  EXPECT_EQ(policy->Victim({}), std::nullopt);
  policy->OnForgotten(BlockId{3});
  EXPECT_EQ(policy->Victim({}), std::nullopt);
}

TEST_P(EvictionPolicyConformance, NamesOnlyLeavesThatAreIdleAndChosenUnderRandomUse) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Twin twin(GetParam(), seed);
    for (int step = 0; step < 1500 && !testing::Test::HasFailure(); ++step) {
      twin.Step();
      twin.Check();
    }
    EXPECT_EQ(twin.policy().allocated_bytes(), GetParam().bytes_for(kLimits));
  }
}

TEST_P(EvictionPolicyConformance, EvictsEveryBlockOnceWhenNoneIsUsed) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Twin twin(GetParam(), seed);
    for (int step = 0; step < 500; ++step) twin.Step();
    twin.UnpinAll();
    uint32_t left = twin.num_blocks();
    EXPECT_GT(left, 0u);
    for (; left > 0; --left) {
      ASSERT_EQ(twin.num_blocks(), left);
      ASSERT_TRUE(twin.Evict({}));
      twin.Check();
    }
    EXPECT_FALSE(twin.Evict({}));
  }
}

// A policy that scans the blocks of other tenants would take 2^34 steps, and this test minutes.
TEST_P(EvictionPolicyConformance, FindsATenantsBlocksAfterManyOfAnother) {
  constexpr uint32_t kHalf = 1 << 17;
  const EvictionLimits limits{.num_blocks = 2 * kHalf, .num_namespaces = 2, .num_groups = 1};
  const auto policy = GetParam().make(limits);
  for (uint32_t i = 0; i < limits.num_blocks; ++i) {
    BlockFacts facts = Facts(i / kHalf, LayerGroupId{0}, i);
    facts.last_use = i + 1;
    policy->OnInserted(BlockId{i}, facts);
    policy->OnEvictable(BlockId{i}, facts);
  }
  const std::vector<NamespaceId> second{NamespaceId{1}};
  for (uint32_t i = 0; i < kHalf; ++i) {
    const auto victim = policy->Victim({.namespaces = second});
    ASSERT_TRUE(victim.has_value() && static_cast<uint32_t>(*victim) >= kHalf);
    policy->OnEvicted(*victim);
  }
  EXPECT_EQ(policy->Victim({.namespaces = second}), std::nullopt);
  EXPECT_EQ(policy->num_evictable(), kHalf);
}

INSTANTIATE_TEST_SUITE_P(Policies, EvictionPolicyConformance,
                         testing::ValuesIn(EvictionChoices().begin(), EvictionChoices().end()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(EvictionChoice, IsFoundByName) {
  for (const EvictionChoice& choice : EvictionChoices()) {
    EXPECT_EQ(FindEvictionChoice(choice.name), &choice);
  }
  EXPECT_EQ(FindEvictionChoice("fifo"), nullptr);
  EXPECT_EQ(FindEvictionChoice(""), nullptr);
  EXPECT_EQ(EvictionNames(), "lru, s3fifo");
}

}  // namespace
}  // namespace kvasir
