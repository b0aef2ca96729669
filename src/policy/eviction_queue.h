// EvictionQueue: evictable blocks in the order in which a policy evicts them.
#pragma once

#include <vector>

#include "policy/eviction_policy.h"

namespace kvasir {

// One EvictionQueue can hold several queues of a policy ("sections"); a block is in one of them. In
// each section the blocks of one namespace and group form a lane, a treap by `order`; a tournament
// over the lanes' first blocks finds the first block of any range of lanes. So Insert and Remove
// are O(log blocks + log lanes), expected, and First is O(log lanes) for each group where all
// namespaces are chosen, and O(1) for each chosen namespace and group elsewhere. The treap's shape
// depends only on block numbers, so prompts cannot influence it.
//
// Allocates only in its constructor. One thread at a time.
class EvictionQueue {
 public:
  static uint64_t BytesFor(const EvictionLimits& limits, uint32_t num_sections);
  EvictionQueue(const EvictionLimits& limits, uint32_t num_sections);

  // Inserts a block. Lower `order` comes first; with equal order, the lower block number.
  // REQUIRES: the block is not in the queue.
  void Insert(BlockId id, uint32_t section, NamespaceId ns, LayerGroupId group, uint64_t order);
  void Remove(BlockId id);  // REQUIRES: it is in the queue
  // Returns the first block of a section within `scope`.
  std::optional<BlockId> First(uint32_t section, const EvictionScope& scope) const;

  bool contains(BlockId id) const { return nodes_[static_cast<size_t>(id)].lane != kNone; }
  uint32_t size() const { return size_; }
  uint64_t allocated_bytes() const;
  void CheckInvariants() const;  // O(blocks + lanes)

 private:
  static constexpr uint32_t kNone = ~uint32_t{0};
  struct Node {
    uint64_t order;
    uint32_t left;
    uint32_t right;
    uint32_t lane = kNone;  // kNone: not in the queue
  };

  uint32_t LaneOf(uint32_t section, LayerGroupId group, uint32_t ns) const;
  bool Before(uint32_t a, uint32_t b) const;  // kNone comes last
  uint32_t Earlier(uint32_t a, uint32_t b) const { return Before(b, a) ? b : a; }
  uint32_t Leftmost(uint32_t tree) const;
  void SetFirst(uint32_t lane, uint32_t node);
  uint32_t FirstOf(uint32_t begin, uint32_t end) const;  // of lanes [begin, end)
  uint32_t CheckLane(uint32_t lane) const;

  EvictionLimits limits_;
  uint32_t num_lanes_;
  uint32_t leaves_;  // power of two that holds num_lanes_
  uint32_t size_ = 0;
  std::vector<Node> nodes_;      // [num_blocks]
  std::vector<uint32_t> roots_;  // [num_lanes]
  // [2 * leaves_]: winners_[leaves_ + lane] is the lane's first block, winners_[i] the earlier one
  // of winners_[2i] and winners_[2i + 1].
  std::vector<uint32_t> winners_;
};

}  // namespace kvasir
