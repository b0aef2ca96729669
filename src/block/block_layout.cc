#include "block/block_layout.h"

#include <utility>

#include "base/bytes.h"
#include "base/check.h"

namespace kvasir {
namespace {

BlockPart PartAt(uint64_t offset, const BlockShape& shape, KvFormat format, uint64_t run_bytes) {
  const uint64_t tokens = uint64_t{shape.kv_heads} * shape.block_tokens;
  BlockPart part{format, offset, run_bytes, 0, tokens / kRunTokens * run_bytes};
  part.scale_offset = RoundUp(offset + part.bytes, 64);
  if (TraitsOf(format).scaled) part.bytes += tokens * sizeof(uint16_t);
  return part;
}

uint64_t EndOf(const BlockPart& part, const BlockShape& shape) {
  const uint64_t tokens = uint64_t{shape.kv_heads} * shape.block_tokens;
  const uint64_t scale_bytes = TraitsOf(part.format).scaled ? tokens * sizeof(uint16_t) : 0;
  return RoundUp(part.scale_offset + scale_bytes, 64);
}

}  // namespace

BlockLayout::BlockLayout(BlockShape shape) : shape_(std::move(shape)) {
  KV_CHECK(shape_.block_tokens > 0 && shape_.block_tokens % kRunTokens == 0);
  KV_CHECK(shape_.k_format.size() == shape_.num_layers);
  KV_CHECK(shape_.v_format.size() == shape_.num_layers);
  for (uint32_t layer = 0; layer < shape_.num_layers; ++layer) {
    KV_CHECK(shape_.block_tokens % TraitsOf(shape_.k_format[layer]).unit_tokens == 0);
    KV_CHECK(shape_.block_tokens % TraitsOf(shape_.v_format[layer]).unit_tokens == 0);
  }
  for (uint32_t layer = 0; layer < shape_.num_layers; ++layer) {
    const KvFormat k = shape_.k_format[layer], v = shape_.v_format[layer];
    key_.push_back(PartAt(block_bytes_, shape_, k, KeyRunBytes(k, shape_.head_dim)));
    block_bytes_ = EndOf(key_.back(), shape_);
    value_.push_back(PartAt(block_bytes_, shape_, v, ValueRunBytes(v, shape_.head_dim)));
    block_bytes_ = EndOf(value_.back(), shape_);
    token_bytes_ += (key_.back().bytes + value_.back().bytes) / shape_.block_tokens;
  }
}

}  // namespace kvasir
