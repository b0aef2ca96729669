// BlockTable: a sequence's ordered BlockRefs of one LayerGroup.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "block/block_pool.h"

namespace kvasir {

// Block i holds tokens [i * block_tokens, (i + 1) * block_tokens) of the sequence, each rotated for
// its own index and never again: rows ask from other positions instead (StepRun).
// Blocks before first() were given back or never taken, because they are outside the window.
// Keeps the base addresses side by side, since attention walks them.
// One thread at a time; readers may share it while no thread writes.
class BlockTable {
 public:
  BlockTable() = default;
  BlockTable(BlockTable&&) noexcept = default;
  BlockTable& operator=(BlockTable&& other) noexcept;
  ~BlockTable() { Clear(); }

  void Reserve(size_t num_blocks);  // later Append calls up to this size allocate nothing
  void Append(BlockRef ref);
  BlockRef Replace(size_t index, BlockRef ref);  // returns the old pin. REQUIRES: index >= first()
  void PopBack();
  // Gives back one block, which no row sees any more and DropBefore takes next. REQUIRES: first()
  // <= index < size().
  void Release(size_t index) { refs_[index].Reset(); }
  void DropBefore(size_t index);  // gives back the blocks before it. REQUIRES: index <= size()
  // Gives back all blocks but those at these indices (ascending), which move together. REQUIRES:
  // first() is 0.
  void KeepOnly(std::span<const uint32_t> indices);
  void Skip(size_t num_blocks);  // begins after blocks that it does not hold. REQUIRES: empty
  void Clear();  // releases the last block first: leaves are older than their parents

  size_t size() const { return refs_.size(); }
  size_t first() const { return first_; }
  size_t num_held() const { return size() - first(); }
  const BlockRef& ref(size_t index) const { return refs_[index]; }
  // Returns the base addresses [size()]; valid until the next change. A block before first() has a
  // readable address (another block's) if both are in the same attention tile (kMaxBlocksOfTile);
  // other addresses before first() must not be used.
  std::span<std::byte* const> bases() const { return bases_; }

 private:
  // Attention loads whole tiles of 64 tokens and masks what a row does not see.
  static constexpr size_t kMaxBlocksOfTile = 64 / 16;

  void FillGap();

  size_t first_ = 0;
  std::vector<BlockRef> refs_;  // [size()], empty before first_
  std::vector<std::byte*> bases_;
};

}  // namespace kvasir
