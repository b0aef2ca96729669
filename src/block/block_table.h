// BlockTable: a sequence's ordered BlockRefs of one LayerGroup.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "block/block_pool.h"

namespace kvasir {

// Block i holds tokens [i * block_tokens, (i + 1) * block_tokens) of the sequence, each rotated for
// its own index (a run rotated for another position comes with context shift, in a later format of
// this table). Keeps the base addresses side by side, since attention walks them.
// One thread at a time; readers may share it while nobody writes.
class BlockTable {
 public:
  BlockTable() = default;
  BlockTable(BlockTable&&) noexcept = default;
  BlockTable& operator=(BlockTable&& other) noexcept;
  ~BlockTable() { Clear(); }

  void Reserve(size_t num_blocks);  // later Append calls up to this size allocate nothing
  void Append(BlockRef ref);
  BlockRef Replace(size_t index, BlockRef ref);  // returns the old pin
  void PopBack();
  void Clear();  // releases the last block first: leaves are older than their parents

  size_t size() const { return refs_.size(); }
  const BlockRef& ref(size_t index) const { return refs_[index]; }
  // Base addresses [size()]; valid until the next change.
  std::span<std::byte* const> bases() const { return bases_; }

 private:
  std::vector<BlockRef> refs_;
  std::vector<std::byte*> bases_;
};

}  // namespace kvasir
