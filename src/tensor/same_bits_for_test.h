// Whether two computations gave the same numbers, bit by bit: NaN equals NaN, and 0 is not -0.
#pragma once

#include <algorithm>
#include <span>

namespace kvasir {

inline bool SameBits(std::span<const float> a, std::span<const float> b) {
  return std::ranges::equal(std::as_bytes(a), std::as_bytes(b));
}

}  // namespace kvasir
