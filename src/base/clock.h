// Clock: the one place that reads the time, so that OwnClock (base/own_clock.h) can replace it for
// a test or a simulation. Timers and condition variables still wait in real time.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace kvasir {

// A time that changes only when its owner changes it.
struct OwnedTime {
  std::atomic<uint64_t> monotonic_ns;
  std::atomic<int64_t> unix_ns;
};

namespace clock_internal {
// Null: the system's time. Acquire: makes the time that it points to visible.
inline std::atomic<const OwnedTime*> owned{nullptr};
}  // namespace clock_internal

// Reads the clock for measurements and deadlines: never goes back.
inline uint64_t MonotonicNs() {
  if (const OwnedTime* time = clock_internal::owned.load(std::memory_order_acquire)) {
    return time->monotonic_ns.load(std::memory_order_relaxed);
  }
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::nanoseconds(now).count());
}

// Returns the wall-clock time since 1970; may be set back.
inline int64_t UnixNs() {
  if (const OwnedTime* time = clock_internal::owned.load(std::memory_order_acquire)) {
    return time->unix_ns.load(std::memory_order_relaxed);
  }
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::nanoseconds(now).count();
}
inline int64_t UnixS() { return UnixNs() / 1'000'000'000; }

}  // namespace kvasir
