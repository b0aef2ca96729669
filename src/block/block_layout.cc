#include "block/block_layout.h"

#include <utility>

#include "base/bytes.h"
#include "base/check.h"

namespace kvasir {

BlockLayout::BlockLayout(BlockShape shape) : shape_(std::move(shape)) {
  KV_CHECK(shape_.block_tokens > 0 && shape_.block_tokens % kTileTokens == 0);
  KV_CHECK(shape_.k_format.size() == shape_.num_layers);
  KV_CHECK(shape_.v_format.size() == shape_.num_layers);
  value_stride_ = static_cast<uint32_t>(RoundUp(shape_.head_dim, 16));
  uint64_t offset = 0;
  for (uint32_t layer = 0; layer < shape_.num_layers; ++layer) {
    const uint64_t keys = uint64_t{shape_.kv_heads} * shape_.block_tokens * shape_.head_dim;
    const uint64_t values = uint64_t{shape_.kv_heads} * shape_.block_tokens * value_stride_;
    const uint64_t key_bytes = KvBytes(shape_.k_format[layer], keys);
    const uint64_t value_bytes = KvBytes(shape_.v_format[layer], values);
    key_offset_.push_back(offset);
    offset = RoundUp(offset + key_bytes, 64);
    value_offset_.push_back(offset);
    offset = RoundUp(offset + value_bytes, 64);
    token_bytes_ += (key_bytes + value_bytes) / shape_.block_tokens;
  }
  block_bytes_ = offset;
}

}  // namespace kvasir
