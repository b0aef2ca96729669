// FixedQueue: numbers in order of arrival, in memory of an arena.
#pragma once

#include <cstdint>

#include "base/arena.h"
#include "base/check.h"

namespace kvasir {

// Thread-compatible. Allocates nothing after construction.
class FixedQueue {
 public:
  FixedQueue(Arena& arena, uint32_t max_size)
      : items_(arena.TakeArray<uint32_t>(max_size)), max_size_(max_size) {}

  bool empty() const { return size_ == 0; }
  uint32_t size() const { return size_; }
  uint32_t at(uint32_t index) const { return items_[(first_ + index) % max_size_]; }
  void PushBack(uint32_t item) {
    KV_CHECK(size_ < max_size_);
    items_[(first_ + size_++) % max_size_] = item;
  }
  void PushFront(uint32_t item) {
    KV_CHECK(size_ < max_size_);
    first_ = (first_ + max_size_ - 1) % max_size_;
    items_[first_] = item;
    ++size_;
  }
  uint32_t PopFront() {
    KV_CHECK(size_ > 0);
    const uint32_t item = items_[first_];
    first_ = (first_ + 1) % max_size_;
    --size_;
    return item;
  }
  void Clear() { size_ = 0; }

 private:
  uint32_t* items_;
  uint32_t max_size_, first_ = 0, size_ = 0;
};

}  // namespace kvasir
