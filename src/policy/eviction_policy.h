// EvictionPolicy: decides by metadata which blocks leave a full cache.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "block/ids.h"

namespace kvasir {

// The facts about a block that a policy decides on; the cache supplies them.
struct BlockFacts {
  NamespaceId ns;
  LayerGroupId group;
  uint32_t depth;  // its place in its prompt, in blocks: the first has 1
  uint64_t bytes;  // bytes that its eviction frees
  uint32_t hits;   // prompts that have reused it, or a part of it, since it entered
  // When its last user released it, by a clock of the cache that never shows the same time twice.
  uint64_t last_use;
  // A keyed hash of the namespace and all tokens up to the block's end. When the block is computed
  // again, it has the same hash.
  uint64_t content;
};

// Where a victim may come from; an absent list allows all.
struct EvictionScope {
  std::optional<std::span<const NamespaceId>> namespaces;  // no duplicates
  std::optional<std::span<const LayerGroupId>> groups;     // no duplicates
};

// The sizes that a policy allocates for.
struct EvictionLimits {
  uint32_t num_blocks;
  uint32_t num_namespaces;
  uint32_t num_groups;
};

// Tracks the blocks of a cache and which of them may be evicted. Blocks that leave together (a
// node's in the groups of one kind, a source's) are one block here: the cache names one of them.
// States of a block:
//
//   unknown -> held (OnInserted) <-> evictable (OnEvictable, OnHeld)
//   evictable -> unknown (OnEvicted); held or evictable -> unknown (OnForgotten)
//
// The cache changes the states. A block is evictable only while no sequence pins it and no block of
// its group follows it. So leaves leave first, and a policy does not need to know the tree.
//
// Each call takes O(log blocks). Victim also takes O(chosen namespaces * chosen groups), or
// O(groups) when all namespaces are chosen. No call scans the blocks. The same calls give the same
// victims. Allocates only in its constructor. One thread at a time.
class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;

  virtual void OnInserted(BlockId id, const BlockFacts& facts) = 0;  // REQUIRES: unknown
  // `facts`: the current ones. REQUIRES: held; namespace and group are those of OnInserted.
  virtual void OnEvictable(BlockId id, const BlockFacts& facts) = 0;
  virtual void OnHeld(BlockId id) = 0;     // REQUIRES: evictable
  virtual void OnEvicted(BlockId id) = 0;  // the cache has evicted it. REQUIRES: evictable
  // Notes that the block left for another reason: erased, or no longer shared. REQUIRES: held or
  // evictable.
  virtual void OnForgotten(BlockId id) = 0;

  // Returns the evictable block within `scope` that should be evicted next. It stays evictable
  // until OnEvicted. Absent when the scope has none. May move other blocks back in its order, at
  // most one step for each of their hits.
  virtual std::optional<BlockId> Victim(const EvictionScope& scope) = 0;

  virtual bool is_evictable(BlockId id) const = 0;
  virtual uint32_t num_evictable() const = 0;
  virtual uint64_t allocated_bytes() const = 0;
  virtual void CheckInvariants() const = 0;  // O(blocks)
};

}  // namespace kvasir
