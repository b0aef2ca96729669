// BlockLayout: shape, KV format and bytes of a block of one LayerGroup; fixed for a pool.
#pragma once

#include <cstdint>
#include <vector>

#include "format/kv_format.h"

namespace kvasir {

// What decides the layout. One entry of k_format/v_format per layer of the group.
struct BlockShape {
  uint32_t block_tokens = 16;  // multiple of 16
  uint32_t num_layers = 0;
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;
  std::vector<KvFormat> k_format;  // [num_layers]
  std::vector<KvFormat> v_format;  // [num_layers]
};

// Where one layer's K or V lies in a block, in bytes from the block's start.
struct BlockPart {
  KvFormat format;
  uint64_t offset;        // numbers: [kv_head][block_tokens / 16][run_bytes]
  uint64_t run_bytes;     // of 16 tokens of a head: layouts in format/kv_format.h
  uint64_t scale_offset;  // bf16 [kv_head][block_tokens], after the numbers; unscaled: unused
  uint64_t bytes;         // numbers and scales, alignment not counted
};

// A block holds, in address order and layer after layer, the part of K and then that of V. Each
// part, and the scales within it, start 64-byte aligned.
class BlockLayout {
 public:
  explicit BlockLayout(BlockShape shape);

  const BlockShape& shape() const { return shape_; }
  uint32_t block_tokens() const { return shape_.block_tokens; }
  uint64_t block_bytes() const { return block_bytes_; }  // multiple of 64
  const BlockPart& key(uint32_t layer) const { return key_[layer]; }
  const BlockPart& value(uint32_t layer) const { return value_[layer]; }
  // Returns the bytes that one token's K and V need, padding of head_dim and scales included
  // (alignment not).
  uint64_t token_bytes() const { return token_bytes_; }

 private:
  BlockShape shape_;
  uint64_t block_bytes_ = 0;
  uint64_t token_bytes_ = 0;
  std::vector<BlockPart> key_, value_;
};

}  // namespace kvasir
