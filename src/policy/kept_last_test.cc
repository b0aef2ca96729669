#include "policy/kept_last.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>

#include "base/fault.h"
#include "base/own_clock.h"
#include "base/random.h"
#include "base/rounds_for_test.h"
#include "policy/lru.h"

namespace kvasir {
namespace {

constexpr EvictionLimits kSizes{.num_blocks = 40, .num_namespaces = 3, .num_groups = 1};
constexpr uint64_t kNsPerS = 1'000'000'000;

class KeptLastTest : public testing::Test {
 protected:
  BlockFacts FactsOf(uint32_t ns = 0) {
    return {.ns = NamespaceId{ns}, .group = LayerGroupId{0}, .last_use = ++uses_};
  }
  void Insert(uint32_t id, uint32_t ns = 0) { policy_.OnInserted(BlockId{id}, FactsOf(ns)); }
  bool Mark(uint32_t id, uint64_t ttl_s, uint32_t blocks = 1, uint64_t most = 100,
            uint32_t account = 0) {
    return policy_.Mark(BlockId{id}, FactsOf(), {account, blocks, ttl_s * kNsPerS}, most);
  }
  void Release(uint32_t id, uint32_t ns = 0) { policy_.OnEvictable(BlockId{id}, FactsOf(ns)); }
  std::vector<uint32_t> Order(const EvictionScope& scope = {}) {
    std::vector<uint32_t> order;
    while (const auto victim = policy_.Victim(scope)) {
      order.push_back(static_cast<uint32_t>(*victim));
      policy_.OnEvicted(*victim);
      policy_.CheckInvariants();
    }
    return order;
  }
  void Wait(uint64_t s) { clock_.Advance(std::chrono::seconds(s)); }

  OwnClock clock_;
  uint64_t uses_ = 0;
  KeptLast policy_{std::make_unique<Lru>(kSizes), kSizes};
};

using Blocks = std::vector<uint32_t>;

TEST_F(KeptLastTest, MarkedBlocksLeaveLastAndInTheOrderOfTheirUse) {
  for (uint32_t id = 0; id < 5; ++id) Insert(id);
  EXPECT_TRUE(Mark(2, 300));
  Wait(1);
  EXPECT_TRUE(Mark(0, 300));
  for (uint32_t id = 0; id < 5; ++id) Release(id);
  EXPECT_EQ(policy_.num_evictable(), 5u);
  EXPECT_EQ(Order(), (Blocks{1, 3, 4, 2, 0}));
  EXPECT_EQ(policy_.num_marks(), 0u);
}

TEST_F(KeptLastTest, AMarkEndsWithItsTimeWhichEachUseRenews) {
  for (uint32_t id = 0; id < 3; ++id) Insert(id);
  Mark(0, 300);
  Mark(1, 300);
  for (uint32_t id = 0; id < 3; ++id) Release(id);
  Wait(299);
  policy_.Use(BlockId{1});
  Wait(1);
  EXPECT_EQ(policy_.Victim({}), BlockId{0}) << "the mark is over, and its last use was first";
  EXPECT_EQ(policy_.num_marks(), 1u);
  EXPECT_EQ(Order(), (Blocks{0, 2, 1}));
}

TEST_F(KeptLastTest, TheMutantWhoseMarksNeverExpireIsFound) {
  InjectFault(Fault::kMarkNeverExpires);
  for (uint32_t id = 0; id < 2; ++id) Insert(id);
  Mark(0, 300);
  for (uint32_t id = 0; id < 2; ++id) Release(id);
  Wait(300);
  EXPECT_NE(policy_.Victim({}), BlockId{0});
  InjectFault(Fault::kNone);
}

TEST_F(KeptLastTest, AMarkMayEndWhileItsBlockIsHeld) {
  Insert(0);
  Insert(1);
  Mark(0, 300);
  Release(1);
  Wait(300);
  EXPECT_EQ(policy_.Victim({}), BlockId{1});
  EXPECT_EQ(policy_.num_marks(), 0u);
  Release(0);
  EXPECT_EQ(Order(), (Blocks{1, 0}));
}

TEST_F(KeptLastTest, TheLongerTimeCounts) {
  Insert(0);
  Insert(1);
  Mark(0, 3600);
  Mark(0, 300);
  Release(0);
  Release(1);
  Wait(3599);
  EXPECT_EQ(policy_.Victim({}), BlockId{1});
}

TEST_F(KeptLastTest, AnAccountsMarksKeepItsShareAndTheOldestEnds) {
  for (uint32_t id = 0; id < 4; ++id) Insert(id);
  EXPECT_FALSE(Mark(0, 300, 11, 10));
  EXPECT_TRUE(Mark(0, 300, 4, 10));
  Wait(1);
  EXPECT_TRUE(Mark(1, 300, 4, 10));
  Wait(1);
  EXPECT_TRUE(Mark(2, 300, 10, 10, /*account=*/7)) << "another account's";
  policy_.Use(BlockId{0});
  EXPECT_TRUE(Mark(3, 300, 4, 10));
  EXPECT_TRUE(policy_.is_marked(BlockId{0}));
  EXPECT_FALSE(policy_.is_marked(BlockId{1}));
  EXPECT_TRUE(policy_.is_marked(BlockId{2}));
  EXPECT_TRUE(policy_.is_marked(BlockId{3}));
}

TEST_F(KeptLastTest, TheTableHasAnEnd) {
  for (uint32_t id = 0; id < 40; ++id) Insert(id);
  for (uint32_t id = 0; id < 40; ++id) {
    Mark(id, 300, 1, 1000);
    Wait(1);
  }
  EXPECT_EQ(policy_.num_marks(), 16u);
  EXPECT_FALSE(policy_.is_marked(BlockId{23}));
  EXPECT_TRUE(policy_.is_marked(BlockId{24}));
  policy_.CheckInvariants();
}

TEST_F(KeptLastTest, AScopeHoldsForMarkedBlocksToo) {
  Insert(0, 1);
  Insert(1, 2);
  Mark(0, 300);
  Mark(1, 300);
  Release(0, 1);
  Release(1, 2);
  const std::vector<NamespaceId> second{NamespaceId{2}};
  EXPECT_EQ(Order({.namespaces = second}), (Blocks{1}));
  EXPECT_EQ(Order(), (Blocks{0}));
}

struct PlainBlock {
  bool is_here = false, is_idle = false;
  std::optional<uint64_t> marked_until, mark_used;
  uint64_t ttl_ns = 0, last_use = 0;
};

// Returns the idle block that leaves first; null where no block is idle.
const PlainBlock* FirstToLeave(const std::vector<PlainBlock>& blocks) {
  const auto before = [](const PlainBlock& a, const PlainBlock& b) {
    if (a.marked_until.has_value() != b.marked_until.has_value()) {
      return !a.marked_until.has_value();
    }
    return a.marked_until ? *a.mark_used < *b.mark_used : a.last_use < b.last_use;
  };
  const PlainBlock* first = nullptr;
  for (const PlainBlock& one : blocks) {
    if (!one.is_here || !one.is_idle) continue;
    if (first == nullptr || before(one, *first)) first = &one;
  }
  return first;
}

// Against lists of what is idle, and when it was used.
TEST_F(KeptLastTest, IsThePlainDefinitionInRandomHistories) {
  std::vector<PlainBlock> blocks(kSizes.num_blocks);
  Random random(3);
  const auto end_past = [&] {
    for (PlainBlock& one : blocks) {
      if (one.marked_until && *one.marked_until <= MonotonicNs()) one.marked_until.reset();
    }
  };
  size_t num_kept_victims = 0;
  for (int step = 0; step < Rounds(100'000, 5'000); ++step) {
    clock_.Advance(std::chrono::milliseconds(random.Below(3000)));
    const auto id = static_cast<uint32_t>(random.Below(kSizes.num_blocks));
    PlainBlock& one = blocks[id];
    const uint64_t choice = random.Below(10);
    if (!one.is_here) {
      Insert(id);
      one = {.is_here = true};
    } else if (choice < 2 && !one.is_idle) {
      end_past();
      const auto marks = std::ranges::count_if(
          blocks, [](const PlainBlock& other) { return other.marked_until.has_value(); });
      if (marks == 16 && !one.marked_until) continue;  // TheTableHasAnEnd
      const uint64_t ttl_s = 100 + random.Below(2000);
      ASSERT_TRUE(Mark(id, ttl_s, 0));
      one.ttl_ns = std::max(ttl_s * kNsPerS, one.marked_until ? one.ttl_ns : 0);
      one.mark_used = MonotonicNs();
      one.marked_until = *one.mark_used + one.ttl_ns;
    } else if (choice < 4 && one.is_idle) {
      policy_.OnHeld(BlockId{id});
      policy_.Use(BlockId{id});
      if (policy_.is_marked(BlockId{id}) && one.marked_until) {
        one.mark_used = MonotonicNs();
        one.marked_until = *one.mark_used + one.ttl_ns;
      }
      one.is_idle = false;
    } else if (choice < 8 && !one.is_idle) {
      Release(id);
      one.is_idle = true;
      one.last_use = uses_;
    } else if (choice == 8 && random.Below(4) == 0) {
      policy_.OnForgotten(BlockId{id});
      one = {};
    } else {
      const auto victim = policy_.Victim({});
      end_past();
      const PlainBlock* wanted = FirstToLeave(blocks);
      ASSERT_EQ(victim.has_value(), wanted != nullptr);
      if (!victim) continue;
      ASSERT_EQ(static_cast<uint32_t>(*victim), wanted - blocks.data()) << "step " << step;
      num_kept_victims += wanted->marked_until.has_value();
      policy_.OnEvicted(*victim);
      blocks[static_cast<uint32_t>(*victim)] = {};
    }
    if (step % 64 == 0) policy_.CheckInvariants();
  }
  EXPECT_GT(num_kept_victims, Rounds(500u, 20u));
}

}  // namespace
}  // namespace kvasir
