// S3Fifo: three queues that keep a stream of blocks used once away from those used often.
#pragma once

#include <vector>

#include "policy/eviction_queue.h"
#include "policy/ghost_set.h"

namespace kvasir {

// S3-FIFO (Yang, Zhang, Qiu, Yue, Rashmi: "FIFO queues are all you need for cache eviction", SOSP
// 2023, algorithm 1). A new block enters the small queue, or the main one when it was evicted from
// the small one lately (GhostSet, as many as main holds). While the small queue has at least a
// tenth of the blocks, the oldest of it goes: to main if it was used more than once since, else out
// of the cache. Otherwise the oldest of main goes; each of its uses (at most three count) puts it
// behind the others once instead.
//
// Where the paper's queues hold everything, here only an evictable block can be at the head: one
// that is pinned or has successors keeps its place and is passed over. Within a narrower scope the
// rules are the same, for the blocks of that scope.
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
    uint32_t hits;  // that are counted in `uses`, or were
    uint8_t uses;
    Section section = kUnknown;
  };

  State& Of(BlockId id) { return states_[static_cast<size_t>(id)]; }
  void Enqueue(BlockId id, const State& state);
  void Place(State& state, Section section);  // last in it
  void Unplace(State& state);
  size_t CountIndex(Section section, LayerGroupId group, uint32_t ns) const;
  uint64_t Count(Section section, const EvictionScope& scope) const;
  bool SmallHasItsShare(const EvictionScope& scope) const;

  EvictionLimits limits_;
  uint64_t last_place_ = 0;
  EvictionQueue queue_;
  GhostSet ghosts_;
  std::vector<State> states_;  // [num_blocks]
  // Blocks held or evictable: [section][group][namespace], and at the end of each row their sum.
  std::vector<uint32_t> counts_;
};

}  // namespace kvasir
