// Checked arithmetic on untrusted sizes, and alignment.
#pragma once

#include <cstdint>
#include <optional>

namespace kvasir {

inline std::optional<uint64_t> CheckedMul(uint64_t a, uint64_t b) {
  uint64_t r;
  if (__builtin_mul_overflow(a, b, &r)) return std::nullopt;
  return r;
}
inline std::optional<uint64_t> CheckedAdd(uint64_t a, uint64_t b) {
  uint64_t r;
  if (__builtin_add_overflow(a, b, &r)) return std::nullopt;
  return r;
}
constexpr uint64_t RoundUp(uint64_t x, uint64_t multiple) {
  return (x + multiple - 1) / multiple * multiple;
}
constexpr uint64_t CeilDiv(uint64_t x, uint64_t by) { return (x + by - 1) / by; }

}  // namespace kvasir
