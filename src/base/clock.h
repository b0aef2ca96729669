// Monotonic time, for what is measured; nothing is decided by it.
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
