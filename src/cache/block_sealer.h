// BlockSealer: hands blocks of the pool over to a tier.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

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

// Blocks that sequences publish, and those that they take from the pool, wait in a queue for each
// store of the tier to be sealed for it. A block waits only while a node of the index holds it.
// Allocates only in its constructor. One thread at a time.
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
  explicit BlockSealer(const Parts& parts)
      : parts_(parts), queues_(parts.tier.num_stores(), WriteQueue(parts.pool.num_blocks())) {}
  // Returns the memory for each store of the tier.
  static uint64_t BytesFor(uint32_t num_blocks) { return WriteQueue::BytesFor(num_blocks); }

  // Puts a block into the queues of these stores (a bit for each) if it is in a node, and full.
  void Push(BlockId block, uint8_t stores = 0xff);
  // Removes a block that leaves the index. `evicted`: it is sealed before, and those before it in
  // the queue: among them are all without which it would be of no use.
  void Remove(BlockId block, bool evicted);

  // Seals what waits until end_ns (MonotonicNs); false when blocks are left for which the tier has
  // no buffer now.
  bool SealUntil(uint64_t end_ns, const ForEach& for_each);
  // Takes all blocks out of the queue and counts them as dropped.
  void DropAll();
  uint32_t size() const;  // of all queues
  // A point in that work, and whether it is passed: what was published before is handed over.
  using Point = std::array<uint64_t, 2>;
  Point point() const;
  bool IsSealed(const Point& point) const;

 private:
  tl::expected<WriteId, WriteRefusal> BeginWrite(BlockId block, uint32_t store);
  void CountRefused(WriteRefusal why, uint32_t store);
  void SealLeaving(BlockId block, uint32_t store);
  bool SealStore(uint32_t store, uint64_t end_ns, const ForEach& for_each);

  const Parts parts_;
  std::vector<WriteQueue> queues_;  // [stores of the tier]
};

}  // namespace kvasir
