#include "schedule/block_sums.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/check.h"
#include "policy/retention_policy.h"

namespace kvasir {

BlockSums::Shape BlockSums::ShapeFor(const KvLayout& layout, uint32_t ctx_size) {
  if (layout.num_full_groups() == 0 || layout.block_tokens() != kHeavyBlock || ctx_size == 0) {
    return {};
  }
  // The first decision that drops comes at most 95 tokens after the exact ones, or the budget.
  const uint32_t tokens = ctx_size + RetentionPolicy::kMaxRows + RetentionPolicy::kScoredTokens;
  return {layout.num_full_layers() * layout.layout(0).shape().kv_heads,
          static_cast<uint32_t>(CeilDiv(tokens, kHeavyBlock))};
}

BlockSums::BlockSums(const Shape& shape, uint32_t slots)
    : shape_(shape),
      bytes_(BytesFor(shape, slots)),
      sums_(std::make_unique<float[]>(bytes_ / sizeof(float))) {
  for (uint32_t i = 0; i < slots; ++i) {
    free_.push_back(sums_.get() + uint64_t{i} * shape.rows * shape.blocks);
  }
}

BlockSums::Slot BlockSums::Take(uint32_t blocks) {
  KV_CHECK(!free_.empty() && blocks <= shape_.blocks);
  Slot slot;
  slot.owner_ = this;
  slot.data_ = free_.back();
  slot.stride_ = blocks;
  free_.pop_back();
  return slot;
}

BlockSums::Slot& BlockSums::Slot::operator=(Slot&& other) noexcept {
  if (this == &other) return *this;
  Release();
  owner_ = std::exchange(other.owner_, nullptr);
  data_ = std::exchange(other.data_, nullptr);
  stride_ = std::exchange(other.stride_, 0);
  return *this;
}

void BlockSums::Slot::Release() {
  if (owner_ == nullptr) return;
  std::fill_n(data_, size_t{owner_->shape_.rows} * stride_, 0.0f);
  owner_->free_.push_back(data_);  // has room for all slots
  owner_ = nullptr;
  data_ = nullptr;
  stride_ = 0;
}

float BlockSums::Slot::SumOf(uint32_t block) const {
  float sum = 0;
  for (uint32_t row = 0; row < owner_->shape_.rows; ++row) {
    sum += data_[size_t{row} * stride_ + block];
  }
  return sum;
}

BlockSums::Slot BlockSums::Slot::Copy() const {
  if (owner_ == nullptr) return {};
  Slot copy = owner_->Take(stride_);
  std::copy_n(data_, size_t{owner_->shape_.rows} * stride_, copy.data_);
  return copy;
}

}  // namespace kvasir
