// EvictionPolicy: which idle blocks leave the pool. Pure decisions on metadata.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "block/block_pool.h"

namespace kvasir {

// Knows the idle blocks of one pool and in which order they should go. Allocates only when it is
// made. One thread at a time.
class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;

  virtual void OnIdle(BlockId id) = 0;  // REQUIRES: not known as idle
  // The block is pinned again or was reclaimed. REQUIRES: known as idle.
  virtual void OnBusy(BlockId id) = 0;
  // The idle block that should go next among those for which `evictable` is true; it stays known
  // until OnBusy. Absent when there is none.
  virtual std::optional<BlockId> Victim(const std::function<bool(BlockId)>& evictable) const = 0;
  virtual uint32_t num_idle() const = 0;
  virtual uint64_t allocated_bytes() const = 0;
  virtual void CheckInvariants() const = 0;  // O(blocks)
};

}  // namespace kvasir
