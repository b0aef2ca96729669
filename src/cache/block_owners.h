// BlockOwners: whose KV the bytes of each block are, and which free blocks must be zeroed.
#pragma once

#include <cstdint>
#include <vector>

#include "block/block_pool.h"
#include "block/ids.h"

namespace kvasir {

// Remembers the namespace that each block was last taken for, also while the block is free. Forget
// marks a namespace's free blocks; each is zeroed by Zero, or by Take if that comes first.
// Allocates only in its constructor. One thread at a time.
class BlockOwners {
 public:
  explicit BlockOwners(BlockPool& pool)  // which must outlive this
      : pool_(pool), owners_(pool.num_blocks()) {}
  static uint64_t BytesFor(uint32_t num_blocks) { return num_blocks * sizeof(uint32_t); }
  uint64_t allocated_bytes() const { return owners_.capacity() * sizeof(uint32_t); }

  // Gives the block to a namespace from now on. Zeroes it first if it was forgotten.
  void Take(BlockRef& block, NamespaceId ns);
  NamespaceId of(BlockId block) const {  // REQUIRES: is_known(block)
    return NamespaceId{owners_[static_cast<size_t>(block)] - 1};
  }
  // Tells whether the block was taken, and not zeroed since.
  bool is_known(BlockId block) const { return owners_[static_cast<size_t>(block)] != 0; }

  // Has all blocks zeroed that were taken for the namespace and are not retained: free ones later,
  // those in use at their last release. Returns a point in that work for IsZeroed. O(blocks),
  // without writing to any.
  uint64_t Forget(NamespaceId ns);
  // Zeroes forgotten blocks, oldest work first, until at least `bytes` are zeroed or none is left.
  void Zero(uint64_t bytes);
  // Tells whether all blocks are zeroed that were free after the Forget that returned `point`.
  bool IsZeroed(uint64_t point) const { return num_forgotten_ == 0 || zeroing_at_ >= point; }
  // Returns the point at which all that is forgotten now is zeroed.
  uint64_t point() const { return zeroing_at_ + pool_.num_blocks(); }
  void CheckInvariants() const;  // O(blocks)

 private:
  static constexpr uint32_t kForgotten = uint32_t{1} << 31;

  BlockPool& pool_;
  // [blocks] the namespace plus one, with kForgotten if the block is free and must be zeroed. 0:
  // never taken, or zeroed since.
  std::vector<uint32_t> owners_;
  uint32_t num_forgotten_ = 0;
  uint64_t zeroing_at_ = 0;  // blocks that Zero has passed, round after round
};

}  // namespace kvasir
