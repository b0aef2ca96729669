// OwnClock: lets a simulation or a test control the time of this process.
#pragma once

#include "base/check.h"
#include "base/clock.h"

namespace kvasir {

// While it exists, the time starts at the system's time and changes only by Advance. At most one
// exists at a time. Measurements should end before it does, because afterwards the system's time
// counts again.
class OwnClock {
 public:
  OwnClock() {
    time_.monotonic_ns = MonotonicNs();
    time_.unix_ns = UnixNs();
    KV_CHECK(clock_internal::owned.exchange(&time_) == nullptr);
  }
  ~OwnClock() { clock_internal::owned.store(nullptr); }
  OwnClock(const OwnClock&) = delete;
  OwnClock& operator=(const OwnClock&) = delete;

  void Advance(std::chrono::nanoseconds by) {
    time_.monotonic_ns += static_cast<uint64_t>(by.count());
    time_.unix_ns += by.count();
  }
  // Sets the wall clock, as an operator or NTP does; may be in the past.
  void SetUnixNs(int64_t unix_ns) { time_.unix_ns = unix_ns; }

 private:
  static inline OwnedTime time_{};  // static: a thread may still read it after this object's end
};

}  // namespace kvasir
