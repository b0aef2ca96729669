// S3Fifo: three queues, so that blocks used once do not displace blocks used often.
#pragma once

#include <vector>

#include "policy/eviction_queue.h"
#include "policy/ghost_set.h"

namespace kvasir {

// S3-FIFO (Yang, Zhang, Qiu, Yue, Rashmi: "FIFO queues are all you need for cache eviction", SOSP
// 2023, algorithm 1). A new block enters the small queue, or the main queue if it was recently
// evicted from the small one (GhostSet, as many as main holds). While the small queue has at least
// a tenth of the blocks, its oldest block leaves: to main if it was used more than once since it
// entered, else out of the cache. Otherwise the oldest block of main is evicted, but each of its
// uses (at most three count) moves it to the end once instead.
//
// Unlike in the paper, only an evictable block can be at the head: a block that is pinned or has
// successors keeps its place and is skipped. Within a narrower scope the same rules apply to the
// blocks of that scope.
class S3Fifo final : public EvictionPolicy {
 public:
  static uint64_t BytesFor(const EvictionLimits& limits);
  explicit S3Fifo(const EvictionLimits& limits);

  void OnInserted(BlockId id, const BlockFacts& facts) override;
  void OnEvictable(BlockId id, const BlockFacts& facts) override;
  void OnHeld(BlockId id) override;
  void OnEvicted(BlockId id) override;
  void OnForgotten(BlockId id) override;
  std::optional<BlockId> Victim(const EvictionScope& scope) override;
  bool is_evictable(BlockId id) const override { return queue_.contains(id); }
  uint32_t num_evictable() const override { return queue_.size(); }
  uint64_t allocated_bytes() const override;
  void CheckInvariants() const override;

 private:
  enum Section : uint8_t { kSmall, kMain, kUnknown };
  static constexpr uint32_t kNumSections = 2;
  static constexpr uint32_t kMaxUses = 3;
  struct State {
    uint64_t content;
    uint64_t place;  // in its section: lower is older
    NamespaceId ns;
    LayerGroupId group;
    uint32_t hits;  // hits already counted in `uses`
    uint8_t uses;
    Section section = kUnknown;
  };

  State& Of(BlockId id) { return states_[static_cast<size_t>(id)]; }
  void Enqueue(BlockId id, const State& state);
  void Place(State& state, Section section);  // at its end
  void Unplace(State& state);
  size_t CountIndex(Section section, LayerGroupId group, uint32_t ns) const;
  uint64_t Count(Section section, const EvictionScope& scope) const;
  bool SmallHasItsShare(const EvictionScope& scope) const;

  EvictionLimits limits_;
  uint64_t last_place_ = 0;
  EvictionQueue queue_;
  GhostSet ghosts_;
  std::vector<State> states_;  // [num_blocks]
  // Numbers of held and evictable blocks: [section][group][namespace], with the sum at the end of
  // each row.
  std::vector<uint32_t> counts_;
};

}  // namespace kvasir
