#include "policy/s3_fifo.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <vector>

#include "base/random.h"

namespace kvasir {
namespace {

constexpr EvictionLimits kFifoLimits{.num_blocks = 20, .num_namespaces = 2, .num_groups = 1};

class S3FifoTest : public testing::Test {
 protected:
  BlockFacts FactsOf(uint32_t id) const {
    return {.ns = NamespaceId{ns_[id]},
            .group = LayerGroupId{0},
            .hits = hits_[id],
            .content = 1000 + content_[id]};
  }
  void Insert(uint32_t id, uint32_t content, uint32_t ns = 0) {
    hits_[id] = 0;
    content_[id] = content;
    ns_[id] = ns;
    policy_.OnInserted(BlockId{id}, FactsOf(id));
    policy_.OnEvictable(BlockId{id}, FactsOf(id));
  }
  void Use(uint32_t id, uint32_t times = 1) {
    policy_.OnHeld(BlockId{id});
    hits_[id] += times;
    policy_.OnEvictable(BlockId{id}, FactsOf(id));
  }
  uint32_t Evict(const EvictionScope& scope = {}) {
    const auto victim = policy_.Victim(scope);
    EXPECT_TRUE(victim);
    policy_.OnEvicted(*victim);
    policy_.CheckInvariants();
    return static_cast<uint32_t>(*victim);
  }

  S3Fifo policy_{kFifoLimits};
  uint32_t hits_[kFifoLimits.num_blocks] = {};
  uint32_t content_[kFifoLimits.num_blocks] = {};
  uint32_t ns_[kFifoLimits.num_blocks] = {};
};

TEST_F(S3FifoTest, DropsWhatWasUsedOnceAtMostInTheOrderItCame) {
  for (uint32_t i = 0; i < 4; ++i) Insert(i, i);
  Use(0);
  Use(1, 2);
  EXPECT_EQ(Evict(), 0u) << "one use does not take it to main";
  EXPECT_EQ(Evict(), 2u) << "block 1 is in main now";
  EXPECT_EQ(Evict(), 3u);
  EXPECT_EQ(Evict(), 1u);
}

TEST_F(S3FifoTest, ScansDoNotPushOutWhatIsUsedOften) {
  for (uint32_t i = 0; i < 10; ++i) {
    Insert(i, i);
    Use(i, 2);
  }
  for (uint32_t round = 0; round < 200; ++round) {
    const uint32_t id = 10 + round % 10;
    if (round >= 10) {
      EXPECT_GE(Evict(), 10u);
    }
    Insert(id, 100 + round);
  }
}

TEST_F(S3FifoTest, ABlockThatComesBackSoonEntersMain) {
  for (uint32_t i = 0; i < 3; ++i) Insert(i, i);
  EXPECT_EQ(Evict(), 0u);
  Insert(0, 0);  // the same content
  EXPECT_EQ(Evict(), 1u);
  EXPECT_EQ(Evict(), 2u);
  EXPECT_EQ(Evict(), 0u);
}

TEST_F(S3FifoTest, WhatIsForgottenIsNotRemembered) {
  Insert(0, 0);
  policy_.OnForgotten(BlockId{0});
  Insert(0, 0);
  Insert(1, 1);
  EXPECT_EQ(Evict(), 0u) << "it is in the small queue";
}

TEST_F(S3FifoTest, CountsTheSharesOfTheChosenNamespaceAlone) {
  // 12 blocks of namespace 1 go to main and 1 stays in small: less than a tenth of that namespace.
  for (uint32_t i = 0; i < 12; ++i) {
    Insert(i, i, 1);
    Use(i, 2);
  }
  Insert(19, 19, 1);
  const std::vector<NamespaceId> first{NamespaceId{0}}, second{NamespaceId{1}};
  EXPECT_EQ(Evict({.namespaces = second}), 0u);
  for (uint32_t i = 12; i < 16; ++i) Insert(i, i, 0);
  EXPECT_EQ(Evict({.namespaces = second}), 1u);
  EXPECT_EQ(Evict({.namespaces = first}), 12u);
  EXPECT_EQ(Evict(), 19u) << "of both together, small has more than a tenth";
}

// The paper's algorithm on plain lists, for blocks that are always evictable.
class NaiveS3Fifo {
 public:
  struct Entry {
    uint32_t id;
    uint64_t content;
    uint32_t uses = 0;
  };
  void Insert(uint32_t id, uint64_t content) {
    (ghosts_.Take(content) ? main_ : small_).push_back({id, content});
  }
  void Use(uint32_t id) {
    for (auto* queue : {&small_, &main_}) {
      for (Entry& entry : *queue) {
        if (entry.id == id) entry.uses = std::min(entry.uses + 1, 3u);
      }
    }
  }
  uint32_t Evict() {
    while (true) {
      const bool from_small =
          main_.empty() || (!small_.empty() && small_.size() * 10 >= small_.size() + main_.size());
      auto& queue = from_small ? small_ : main_;
      Entry oldest = queue.front();
      queue.pop_front();
      if (oldest.uses <= (from_small ? 1u : 0u)) {
        if (from_small) ghosts_.Add(oldest.content);
        return oldest.id;
      }
      oldest.uses = from_small ? 0 : oldest.uses - 1;
      main_.push_back(oldest);
    }
  }

 private:
  std::deque<Entry> small_, main_;
  GhostSet ghosts_{kFifoLimits.num_blocks - kFifoLimits.num_blocks / 10};
};

TEST_F(S3FifoTest, NamesTheVictimsOfThePapersAlgorithm) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    policy_ = S3Fifo(kFifoLimits);
    NaiveS3Fifo naive;
    std::vector<uint32_t> free, resident;
    for (uint32_t i = 0; i < kFifoLimits.num_blocks; ++i) free.push_back(i);
    for (int step = 0; step < 3000; ++step) {
      // A few contents are requested often.
      const auto content = static_cast<uint32_t>(random.Below(random.Below(2) == 0 ? 12 : 120));
      const auto found =
          std::ranges::find(resident, content, [&](uint32_t id) { return content_[id]; });
      if (found != resident.end()) {
        Use(*found);
        naive.Use(*found);
        continue;
      }
      if (free.empty()) {
        const uint32_t victim = Evict();
        ASSERT_EQ(victim, naive.Evict()) << "step " << step;
        std::erase(resident, victim);
        free.push_back(victim);
      }
      Insert(free.back(), content);
      naive.Insert(free.back(), 1000 + content);
      resident.push_back(free.back());
      free.pop_back();
    }
  }
}

TEST(GhostSet, RemembersWhatWasAddedLatelyAndNothingElse) {
  for (const uint32_t window : {1u, 3u, 900u, 1024u}) {
    SCOPED_TRACE(window);
    GhostSet ghosts(window);
    EXPECT_EQ(ghosts.allocated_bytes(), GhostSet::BytesFor(window));
    for (uint64_t i = 1; i <= 5000; ++i) {
      EXPECT_FALSE(ghosts.Take(i));
      ghosts.Add(i);
      EXPECT_TRUE(ghosts.Take(i)) << "the newest is there";
      EXPECT_FALSE(ghosts.Take(i)) << "once";
      ghosts.Add(i);
    }
    uint32_t remembered = 0;
    for (uint64_t i = 1; i <= 5000; ++i) {
      const bool taken = ghosts.Take(i);
      EXPECT_TRUE(!taken || i > 5000 - window);
      remembered += taken;
    }
    // Each was added twice, so the window covers half as many.
    EXPECT_GE(remembered, window / 3);
  }
}

}  // namespace
}  // namespace kvasir
