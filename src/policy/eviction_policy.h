// EvictionPolicy: which blocks leave a cache that is full. Pure decisions on metadata.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "block/ids.h"

namespace kvasir {

// What a policy decides on; the cache says it of each block.
struct BlockFacts {
  NamespaceId ns;
  LayerGroupId group;
  uint32_t depth;  // its place in its prompt, in blocks: the first has 1
  uint64_t bytes;  // what its eviction frees
  uint32_t hits;   // prompts that reused it, or a part of it, since it entered
  // When its last user let go of it, by a clock of the cache that never shows a time twice.
  uint64_t last_use;
  // A keyed hash of the namespace and all tokens up to its end: a block that is computed again has
  // the same.
  uint64_t content;
};

// Where a victim may come from. Absent: from everywhere.
struct EvictionScope {
  std::optional<std::span<const NamespaceId>> namespaces;  // none of them twice
  std::optional<std::span<const LayerGroupId>> groups;     // none of them twice
};

// The sizes that a policy allocates for.
struct EvictionLimits {
  uint32_t num_blocks;
  uint32_t num_namespaces;
  uint32_t num_groups;
};

// Knows all blocks that a cache holds, and which of them may be evicted. States of a block:
//
//   unknown -> held (OnInserted) <-> evictable (OnEvictable, OnHeld)
//   evictable -> unknown (OnEvicted); held or evictable -> unknown (OnForgotten)
//
// The cache moves them. It calls a block evictable only while nobody pins it and no block of its
// group goes on from it, so that a policy never has to look at the tree to let leaves go first.
//
// Each call takes O(log blocks), and Victim O(chosen namespaces * chosen groups) besides, which is
// O(groups) where all namespaces are chosen: none looks through the blocks. Same calls, same
// victims. Allocates only when it is made. One thread at a time.
class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;

  virtual void OnInserted(BlockId id, const BlockFacts& facts) = 0;  // REQUIRES: unknown
  // `facts`: as they stand now. REQUIRES: held; namespace and group as it was inserted with.
  virtual void OnEvictable(BlockId id, const BlockFacts& facts) = 0;
  virtual void OnHeld(BlockId id) = 0;     // REQUIRES: evictable
  virtual void OnEvicted(BlockId id) = 0;  // the cache let it go. REQUIRES: evictable
  // It left for another reason: erased, or no longer shared. REQUIRES: held or evictable.
  virtual void OnForgotten(BlockId id) = 0;

  // The evictable block within `scope` that should go next. It stays evictable until OnEvicted.
  // Absent when the scope has none. May set other blocks back in its order, for which their hits
  // pay: a hit, at most one step.
  virtual std::optional<BlockId> Victim(const EvictionScope& scope) = 0;

  virtual bool is_evictable(BlockId id) const = 0;
  virtual uint32_t num_evictable() const = 0;
  virtual uint64_t allocated_bytes() const = 0;
  virtual void CheckInvariants() const = 0;  // O(blocks)
};

}  // namespace kvasir
