// Arena: one anonymous mapping, handed out front to back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/bytes.h"
#include "kvasir/status.h"

namespace kvasir {

// 64-byte aligned pieces of zeroed memory; nothing is given back before the arena goes. Movable.
// One thread at a time. An Arena of size 0 only counts: Take returns nullptr and used() grows, so
// that a plan and an allocation can be the same code.
class Arena {
 public:
  Arena() = default;
  static Result<Arena> Create(uint64_t size);  // kExhausted when the memory is refused
  // Memory of somebody else, which outlives the arena and is only read: what is taken is there
  // already.
  static Arena Over(const std::byte* base, uint64_t size);
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;
  ~Arena();

  std::byte* Take(uint64_t bytes);
  template <typename T>
  T* TakeArray(uint64_t count) {
    return reinterpret_cast<T*>(Take(count * sizeof(T)));
  }
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
