// Monotonic time behind a seam that tests own.
#pragma once

#include <chrono>
#include <cstdint>

namespace kvasir {

inline uint64_t MonotonicNs() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}

}  // namespace kvasir
