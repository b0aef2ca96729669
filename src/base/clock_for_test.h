// OwnClock: the time of this process, in the hands of a test.
#pragma once

#include "base/check.h"
#include "base/clock.h"

namespace kvasir {

// While it lives, the time begins where it was and moves only by Advance. One at a time. What has
// measured a time should end before it does: the system's time has gone on meanwhile.
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
  // As an operator or NTP sets it; may be the past.
  void SetUnixNs(int64_t unix_ns) { time_.unix_ns = unix_ns; }

 private:
  static inline OwnedTime time_{};  // outlives this object: a thread may be reading it
};

}  // namespace kvasir
