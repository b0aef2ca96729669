// ByteBudget: a number of bytes that several share. ByteShare: what one of them has.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/moves.h"

namespace kvasir {

// Counts what is taken; it holds no memory. Thread-safe.
class ByteBudget {
 public:
  explicit ByteBudget(uint64_t max_bytes) : max_bytes_(max_bytes) {}
  uint64_t max_bytes() const { return max_bytes_; }
  // Returns the bytes in use. Relaxed, here and below: a sum that orders nothing else.
  uint64_t taken_bytes() const { return taken_.load(std::memory_order_relaxed); }

  // False: too few are left, and none were taken.
  bool Take(uint64_t bytes) {
    uint64_t taken = taken_bytes();
    do {
      if (taken > max_bytes_ || bytes > max_bytes_ - taken) return false;
    } while (!taken_.compare_exchange_weak(taken, taken + bytes, std::memory_order_relaxed));
    return true;
  }
  // Takes them even where they are too many.
  void TakeAnyway(uint64_t bytes) { taken_.fetch_add(bytes, std::memory_order_relaxed); }
  void Give(uint64_t bytes) { taken_.fetch_sub(bytes, std::memory_order_relaxed); }

 private:
  const uint64_t max_bytes_;
  std::atomic<uint64_t> taken_{0};
};

// Bytes of a budget; the destructor gives them back. Must not outlive its budget.
// Thread-compatible.
class ByteShare {
 public:
  ByteShare() = default;  // of no budget, for being assigned to
  explicit ByteShare(ByteBudget& budget) : budget_(&budget) {}
  // Has `bytes` that were taken from the budget already.
  ByteShare(ByteBudget& budget, uint64_t bytes) : budget_(&budget), bytes_(bytes) {}
  ByteShare(ByteShare&&) noexcept = default;
  ByteShare& operator=(ByteShare&& other) noexcept { return MoveInto(*this, std::move(other)); }
  ~ByteShare() {
    if (budget_ != nullptr) budget_->Give(bytes_);
  }

  uint64_t bytes() const { return bytes_; }
  // Changes the bytes, up or down. False when there is no room for more; then nothing changes.
  bool Resize(uint64_t bytes) {
    if (bytes > bytes_ && !budget_->Take(bytes - bytes_)) return false;
    if (bytes < bytes_) budget_->Give(bytes_ - bytes);
    bytes_ = bytes;
    return true;
  }
  // Changes the bytes whether or not there is room.
  void ResizeAnyway(uint64_t bytes) {
    if (bytes > bytes_) budget_->TakeAnyway(bytes - bytes_);
    if (bytes < bytes_) budget_->Give(bytes_ - bytes);
    bytes_ = bytes;
  }

 private:
  MovedPointer<ByteBudget> budget_;
  uint64_t bytes_ = 0;
};

}  // namespace kvasir
