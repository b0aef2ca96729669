// Residency: which blocks of the pool the index holds, and how they enter and leave it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "block/block_pool.h"
#include "block/block_table.h"
#include "block/kv_layout.h"
#include "cache/block_owners.h"
#include "cache/block_sealer.h"
#include "cache/block_uses.h"
#include "cache/cursor_store.h"
#include "cache/kv_accounts.h"
#include "cache/kv_event_log.h"
#include "cache/namespaces.h"
#include "index/prefix_index.h"
#include "kvasir/cache_counters.h"
#include "policy/eviction_policy.h"

namespace kvasir {

// Keeps pool, index, policy and accounts in step. Invariants:
// - A block is retained in the pool exactly while a node of the index holds it.
// - A node has blocks of all groups of a kind or of none; a node of a prompt has those of `full`
//   all its life.
// - A sequence or match that pins a `full` block pins all `full` blocks before it. So every idle
// block can be
//   evicted: leaves first, except blocks of windows, which leave in any order.
// Allocates only in its constructor. One thread at a time.
class Residency final : private BlockPool::Observer {
 public:
  // What it keeps in step; all must outlive it.
  struct Parts {
    const KvLayout& layout;
    BlockPool& pool;
    PrefixIndex& index;
    EvictionPolicy& policy;
    CursorStore& cursors;
    BlockUses& uses;
    BlockOwners& owners;
    KvAccounts& accounts;
    Namespaces& namespaces;
    CacheCounters& counters;
    BlockSealer* sealer;           // nullptr without a tier
    KvEventLog* events = nullptr;  // nullptr: nothing is published
  };
  Residency(const Parts& parts, uint32_t num_namespaces);
  static uint64_t BytesFor(uint32_t num_namespaces) {
    return (uint64_t{num_namespaces} + 1) * sizeof(NamespaceId);
  }
  uint64_t allocated_bytes() const { return scope_.capacity() * sizeof(NamespaceId); }

  // Takes a block of a group for a sequence, evicting where none is free. REQUIRES: one is free, or
  // idle and not reserved for others.
  BlockRef Take(NamespaceId ns, AccountId account, uint32_t group);
  // Names the namespace for which EvictOne evicts from now on.
  void TakeFor(NamespaceId ns) { taker_ = ns; }
  // The idle blocks that may go: all that a guarantee does not protect, or the taker's alone.
  enum class Victims { kAny, kOwn };
  // Evicts a block, with those that cannot stay without it. False when there is no such idle block.
  bool EvictOne(AccountId taker, Victims victims);

  // Gives the node a sequence's blocks of a kind; `tables`: [layer groups]. REQUIRES: the node has
  // none, and no other node holds these.
  void Enter(NodeId node, const KvKind& kind, std::span<const BlockTable> tables,
             uint32_t block_index);
  // Removes a leaf from the index. Its blocks become free, or belong only to the sequences that pin
  // them. Its parent may then be a leaf that can be evicted.
  void Unlink(NodeId node, PrefixIndex::RemoveKind kind);
  // Takes the node's blocks of a kind out of the index.
  void Detach(NodeId node, const KvKind& kind, PrefixIndex::RemoveKind remove);
  // Removes the node if it is bare, and then each bare node above it.
  void Prune(NodeId node);

  // Notes when an erase of text under this root begins and ends, for those who publish the index.
  void NoteEraseBegins(NodeId root) {
    if (parts_.events != nullptr) parts_.events->OnEraseBegins(root);
  }
  void NoteEraseEnds(NodeId root) {
    if (parts_.events != nullptr) parts_.events->OnEraseEnds(root);
  }

  // Returns what the policy decides on of a block.
  BlockFacts FactsOf(NodeId node, BlockId block) const;
  // Counts the tokens whose KV is in the node's blocks of a kind; `first`: the one of the kind's
  // first group.
  uint32_t TokensIn(NodeId node, BlockId first) const;
  PrefixIndex& index() { return parts_.index; }
  Namespaces& namespaces() { return parts_.namespaces; }
  void CheckInvariants() const;  // O(blocks)

 private:
  void OnIdle(BlockId id) override;
  void OnPinned(BlockId id) override;
  void OnFreed(BlockId id) override;
  void OnExtraPin(BlockId id, int change) override;
  void EvictSource(NodeId last);
  void LetGo(BlockId block, uint32_t num_tokens, PrefixIndex::RemoveKind kind);
  void OfferIfEvictable(NodeId node, BlockId block);
  bool IsOfSource(NodeId node) const;
  bool Publishes(const KvKind& kind) const {
    return parts_.events != nullptr && kind.reach.kind == KvReach::Kind::kFull;
  }
  uint64_t CheckSource(NodeId last) const;
  uint64_t CheckNode(NodeId node, BlockId block) const;

  const Parts parts_;
  std::vector<NamespaceId> scope_;      // of EvictOne; kept for its capacity
  NamespaceId taker_ = kSharesNothing;  // for whom EvictOne evicts
  bool evicts_for_quota_ = false;       // what EvictOne evicts now
};

}  // namespace kvasir
