#include "block/sequence_tables.h"

#include <cstring>

#include "base/bytes.h"
#include "base/check.h"
#include "base/result.h"

namespace kvasir {

Result<SequenceTables> SequenceTables::Create(const KvLayout& layout, uint32_t tokens,
                                              std::byte fill) {
  const auto blocks = static_cast<uint32_t>(CeilDiv(tokens, layout.block_tokens()));
  SequenceTables all;
  KV_ASSIGN(all.pool_, BlockPool::Create(layout.block_bytes(), blocks * layout.num_groups()));
  all.tables_.resize(layout.num_groups());
  for (BlockTable& table : all.tables_) {
    table.Reserve(blocks);
    for (uint32_t b = 0; b < blocks; ++b) {
      BlockRef ref = all.pool_->Allocate();
      if (fill != std::byte{}) {
        std::memset(ref.mutable_data(), static_cast<int>(fill), layout.block_bytes());
      }
      table.Append(std::move(ref));
    }
  }
  return all;
}

void SequenceTables::Fill(uint32_t group, std::span<const std::byte> contents) {
  KV_CHECK(contents.size() <= pool_->block_bytes());
  for (std::byte* block : tables_[group].bases()) {
    std::memcpy(block, contents.data(), contents.size());
  }
}

}  // namespace kvasir
