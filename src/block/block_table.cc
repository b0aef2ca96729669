#include "block/block_table.h"

#include <utility>

namespace kvasir {

BlockTable& BlockTable::operator=(BlockTable&& other) noexcept {
  if (this != &other) {
    Clear();
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
}

BlockRef BlockTable::Replace(size_t index, BlockRef ref) {
  bases_[index] = ref.mutable_data();
  std::swap(refs_[index], ref);
  return ref;
}

void BlockTable::PopBack() {
  refs_.pop_back();
  bases_.pop_back();
}

void BlockTable::Clear() {
  while (!refs_.empty()) PopBack();
}

}  // namespace kvasir
