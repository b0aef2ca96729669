// SharedBytes: memory that several walks share.
#pragma once

#include <atomic>
#include <cstdint>

namespace kvasir {

// Counts what is taken of a budget. Thread-safe.
class SharedBytes {
 public:
  explicit SharedBytes(uint64_t most) : most_(most) {}
  uint64_t most() const { return most_; }
  // Relaxed, here and below: a count that orders nothing else.
  uint64_t taken() const { return taken_.load(std::memory_order_relaxed); }
  // What each may take whatever the others have.
  uint64_t own_share() const { return most_ / kShares; }
  bool Take(uint64_t bytes) {
    if (taken_.fetch_add(bytes, std::memory_order_relaxed) + bytes <= most_) return true;
    Give(bytes);
    return false;
  }
  void TakeAnyway(uint64_t bytes) { taken_.fetch_add(bytes, std::memory_order_relaxed); }
  void Give(uint64_t bytes) { taken_.fetch_sub(bytes, std::memory_order_relaxed); }

 private:
  static constexpr uint64_t kShares = 128;

  const uint64_t most_;
  std::atomic<uint64_t> taken_{0};
};

// What one of them has taken. It gives that back at its end.
class BytesTaken {
 public:
  explicit BytesTaken(SharedBytes& from) : from_(from) {}
  BytesTaken(const BytesTaken&) = delete;
  BytesTaken& operator=(const BytesTaken&) = delete;
  ~BytesTaken() { from_.Give(bytes_); }

  // Makes the count `bytes` or more. False: there is no room, and it stays as it was.
  bool Reach(uint64_t bytes) {
    if (bytes <= bytes_) return true;
    if (bytes <= from_.own_share()) {
      from_.TakeAnyway(bytes - bytes_);
    } else if (!from_.Take(bytes - bytes_)) {
      return false;
    }
    bytes_ = bytes;
    return true;
  }
  // Makes the count `bytes`, room or not.
  void Set(uint64_t bytes) {
    if (bytes > bytes_) from_.TakeAnyway(bytes - bytes_);
    if (bytes < bytes_) from_.Give(bytes_ - bytes);
    bytes_ = bytes;
  }

 private:
  SharedBytes& from_;
  uint64_t bytes_ = 0;
};

}  // namespace kvasir
