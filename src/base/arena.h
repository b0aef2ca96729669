// Arena: one anonymous mapping that is handed out from front to back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/bytes.h"
#include "kvasir/status.h"

namespace kvasir {

// Hands out 64-byte aligned pieces of zeroed memory and frees them all in its destructor. Movable.
// One thread at a time. An Arena of size 0 only counts: Take returns nullptr and used() grows, so
// that the same code can plan and allocate. A sum beyond 2^64 - 1 stays there: Create refuses it.
class Arena {
 public:
  Arena() = default;
  static Result<Arena> Create(uint64_t size);  // kExhausted when the memory is refused
  // Returns an arena over existing memory, which must outlive it and is only read.
  static Arena Over(const std::byte* base, uint64_t size);
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;
  ~Arena();

  std::byte* Take(uint64_t bytes);
  template <typename T>
  T* TakeArray(uint64_t count) {
    return reinterpret_cast<T*>(Take(CheckedMul(count, sizeof(T)).value_or(UINT64_MAX)));
  }
  // Zeroes all of it, and returns its pages to the system until they are used again. What was taken
  // stays taken. REQUIRES: the memory is its own (not Over).
  void Zero();
  std::span<const std::byte> bytes() const { return {base_, size_}; }
  uint64_t used() const { return used_; }
  uint64_t size() const { return size_; }

 private:
  std::byte* base_ = nullptr;
  uint64_t size_ = 0;
  uint64_t used_ = 0;
  bool owned_ = true;
};

}  // namespace kvasir
