#include "block/block_table.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace kvasir {

BlockTable& BlockTable::operator=(BlockTable&& other) noexcept {
  if (this != &other) {
    Clear();
    first_ = std::exchange(other.first_, 0);
    refs_ = std::move(other.refs_);
    bases_ = std::move(other.bases_);
  }
  return *this;
}

void BlockTable::Reserve(size_t num_blocks) {
  refs_.reserve(num_blocks);
  bases_.reserve(num_blocks);
}

void BlockTable::Append(BlockRef ref) {
  bases_.push_back(ref.mutable_data());
  refs_.push_back(std::move(ref));
  if (first_ > 0 && size() == first_ + 1) FillGap();
}

BlockRef BlockTable::Replace(size_t index, BlockRef ref) {
  bases_[index] = ref.mutable_data();
  std::swap(refs_[index], ref);
  if (first_ > 0 && index == first_) FillGap();
  return ref;
}

void BlockTable::PopBack() {
  refs_.pop_back();
  bases_.pop_back();
  first_ = std::min(first_, refs_.size());
}

void BlockTable::DropBefore(size_t index) {
  KV_CHECK(index <= size());
  if (index <= first_) return;
  for (size_t i = index; i-- > first_;) refs_[i].Reset();  // leaves first, as in Clear
  first_ = index;
  if (first_ < size()) FillGap();
}

void BlockTable::KeepOnly(std::span<const uint32_t> indices) {
  KV_CHECK(first_ == 0);
  for (size_t i = 0; i < indices.size(); ++i) {
    if (indices[i] == i) continue;
    refs_[i] = std::move(refs_[indices[i]]);
    bases_[i] = bases_[indices[i]];
  }
  while (size() > indices.size()) PopBack();
}

void BlockTable::Skip(size_t num_blocks) {
  KV_CHECK(refs_.empty());
  refs_.resize(num_blocks);
  bases_.resize(num_blocks);
  first_ = num_blocks;
}

void BlockTable::Clear() {
  while (!refs_.empty()) PopBack();
}

void BlockTable::FillGap() {
  const size_t begin = first_ - std::min(first_, kMaxBlocksOfTile - 1);
  std::fill(bases_.begin() + static_cast<ptrdiff_t>(begin),
            bases_.begin() + static_cast<ptrdiff_t>(first_), bases_[first_]);
}

}  // namespace kvasir
