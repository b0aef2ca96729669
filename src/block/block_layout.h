// BlockLayout: shape, KV format and bytes of a block of one LayerGroup; fixed for a pool.
#pragma once

#include <cstdint>
#include <vector>

#include "format/kv_format.h"

namespace kvasir {

// Tokens in a tile of K: lanes of the widest vector. block_tokens is a multiple of it.
inline constexpr uint32_t kTileTokens = 16;

// What decides the layout. One entry of k_format/v_format per layer of the group.
struct BlockShape {
  uint32_t block_tokens = 16;  // multiple of 16
  uint32_t num_layers = 0;
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;
  std::vector<KvFormat> k_format;  // [num_layers]
  std::vector<KvFormat> v_format;  // [num_layers]
};

// Bytes of a block, in address order, layer after layer:
//   K [kv_head][block_tokens / 16][head_dim][16]   lanes = tokens: a query x key product has no
//                                                  horizontal sum
//   V [kv_head][block_tokens][value_stride]        lanes = head dims; value_stride = head_dim
//                                                  rounded up to 16, the rest zero
// Each of the two parts starts 64-byte aligned.
class BlockLayout {
 public:
  explicit BlockLayout(BlockShape shape);

  const BlockShape& shape() const { return shape_; }
  uint32_t block_tokens() const { return shape_.block_tokens; }
  uint32_t value_stride() const { return value_stride_; }
  uint64_t block_bytes() const { return block_bytes_; }  // multiple of 64
  // Offset of layer `layer`'s K or V from the block's start, in bytes.
  uint64_t key_offset(uint32_t layer) const { return key_offset_[layer]; }
  uint64_t value_offset(uint32_t layer) const { return value_offset_[layer]; }
  // Bytes that one token's K and V need, padding of head_dim included (alignment not).
  uint64_t token_bytes() const { return token_bytes_; }

 private:
  BlockShape shape_;
  uint32_t value_stride_;
  uint64_t block_bytes_ = 0;
  uint64_t token_bytes_ = 0;
  std::vector<uint64_t> key_offset_;
  std::vector<uint64_t> value_offset_;
};

}  // namespace kvasir
