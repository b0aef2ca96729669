// RemoteBreaker: whether a fleet's store is asked, or left alone for a while because of its faults.
#pragma once

#include <algorithm>
#include <cstdint>

#include "tier/error_window.h"

namespace kvasir {

// 3 stalls or 8 errors in a minute open it: nothing is asked for 10 s, and twice as long each time
// that it opens again within a minute, to 5 minutes; a random tenth more, so that machines do not
// come back at once. Then one probe decides. Thread-compatible.
class RemoteBreaker {
 public:
  static constexpr uint64_t kFirstNs = 10'000'000'000, kMostNs = 300'000'000'000,
                            kCalmNs = 60'000'000'000;

  // Returns true when this one has to open it.
  bool Count(ErrorWindow::Kind kind, uint64_t now_ns) { return window_.Count(kind, now_ns); }
  // `random`: any bits.
  void Open(uint64_t now_ns, uint64_t random) {
    const bool was_calm = closed_ns_ != 0 && now_ns - closed_ns_ > kCalmNs;
    wait_ns_ = wait_ns_ == 0 || was_calm ? kFirstNs : std::min(2 * wait_ns_, kMostNs);
    retry_ns_ = now_ns + wait_ns_ + random % (wait_ns_ / 10);
    closed_ns_ = 0;
    window_.Clear();
  }
  // Closes it: the probe has come back.
  void Close(uint64_t now_ns) {
    closed_ns_ = now_ns;
    window_.Clear();
  }
  // Returns when the next probe is due.
  uint64_t retry_ns() const { return retry_ns_; }

 private:
  ErrorWindow window_;
  uint64_t wait_ns_ = 0, retry_ns_ = 0;
  uint64_t closed_ns_ = 0;  // 0: it is open, or was never closed
};

}  // namespace kvasir
