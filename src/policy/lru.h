// Lru: evicts the block that was released longest ago.
#pragma once

#include "policy/eviction_queue.h"

namespace kvasir {

class Lru final : public EvictionPolicy {
 public:
  static uint64_t BytesFor(const EvictionLimits& limits);
  explicit Lru(const EvictionLimits& limits);

  void OnInserted(BlockId id, const BlockFacts& facts) override;
  void OnEvictable(BlockId id, const BlockFacts& facts) override;
  void OnHeld(BlockId id) override;
  void OnEvicted(BlockId id) override;
  void OnForgotten(BlockId id) override;
  std::optional<BlockId> Victim(const EvictionScope& scope) override;
  bool is_evictable(BlockId id) const override { return queue_.contains(id); }
  uint32_t num_evictable() const override { return queue_.size(); }
  uint64_t allocated_bytes() const override { return queue_.allocated_bytes(); }
  void CheckInvariants() const override { queue_.CheckInvariants(); }

 private:
  EvictionQueue queue_;  // by last use
};

}  // namespace kvasir
