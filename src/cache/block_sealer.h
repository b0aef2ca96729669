// BlockSealer: hands blocks of the pool over to a tier.
#pragma once

#include <cstdint>
#include <functional>

#include "block/block_pool.h"
#include "block/kv_layout.h"
#include "cache/block_owners.h"
#include "cache/block_uses.h"
#include "cache/namespaces.h"
#include "cache/write_queue.h"
#include "index/prefix_index.h"
#include "tier/tier.h"

namespace kvasir {

// Runs fn(0), fn(1), ..., fn(items - 1), on as many threads as it likes.
using ForEach = std::function<void(uint32_t items, const std::function<void(uint32_t)>& fn)>;

// Blocks that sequences publish, and those that they take from the pool, wait in a queue to be
// sealed for the tier. A block waits only while a node of the index holds it. Allocates only in its
// constructor. One thread at a time.
class BlockSealer {
 public:
  // What it reads; all must outlive it.
  struct Parts {
    const KvLayout& layout;
    const BlockPool& pool;
    const PrefixIndex& index;
    const BlockUses& uses;
    const BlockOwners& owners;
    const Namespaces& namespaces;
    Tier& tier;
  };
  explicit BlockSealer(const Parts& parts) : parts_(parts), queue_(parts.pool.num_blocks()) {}
  static uint64_t BytesFor(uint32_t num_blocks) { return WriteQueue::BytesFor(num_blocks); }

  // Puts a block into the queue if it is in a node, and full.
  void Push(BlockId block);
  // Removes a block that leaves the index. `evicted`: it is sealed before, and those before it in
  // the queue: among them are all without which it would be of no use.
  void Remove(BlockId block, bool evicted);

  // Seals what waits until end_ns (MonotonicNs); false when blocks are left for which the tier has
  // no buffer now.
  bool SealUntil(uint64_t end_ns, const ForEach& for_each);
  // Takes all blocks out of the queue and counts them as dropped.
  void DropAll();
  uint32_t size() const { return queue_.size(); }
  // A point in that work, and whether it is passed: what was published before is handed over.
  uint64_t point() const { return queue_.last_ticket(); }
  bool IsSealed(uint64_t point) const { return queue_.HasPassed(point); }

 private:
  tl::expected<WriteId, WriteRefusal> BeginWrite(BlockId block);
  void CountRefused(WriteRefusal why);
  void SealLeaving(BlockId block);

  const Parts parts_;
  WriteQueue queue_;
};

}  // namespace kvasir
