// SequenceTables: the blocks of one sequence, in a separate pool.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "block/block_pool.h"
#include "block/block_table.h"
#include "block/kv_layout.h"

namespace kvasir {

// Every block of `tokens` tokens in each group, for benchmarks, tools and tests that compute
// without a cache. Move-only.
class SequenceTables {
 public:
  // Creates tables whose bytes are `fill`. kExhausted when memory is refused.
  static Result<SequenceTables> Create(const KvLayout& layout, uint32_t tokens,
                                       std::byte fill = {});

  // Fills the tables: every block of `group` holds `contents` then. REQUIRES: contents has the
  // bytes of a block at most.
  void Fill(uint32_t group, std::span<const std::byte> contents);

  std::span<const BlockTable> tables() const { return tables_; }
  const BlockTable& operator[](uint32_t group) const { return tables_[group]; }

 private:
  std::unique_ptr<BlockPool> pool_;
  std::vector<BlockTable> tables_;  // [group]; after pool_, which must outlive their pins
};

}  // namespace kvasir
