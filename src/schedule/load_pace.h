// LoadPace: whether a sequence goes on waiting for its blocks from a tier, or computes them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

namespace kvasir {

// Bytes a nanosecond of loads, reading and opening together; learned from those that were waited
// for. Recent loads decide.
class LoadSpeed {
 public:
  void Observe(uint64_t bytes, uint64_t ns) {
    if (bytes == 0 || ns == 0) return;
    bytes_ += static_cast<double>(bytes);
    ns_ += static_cast<double>(ns);
    constexpr double kRecentBytes = 256e6;
    if (bytes_ > kRecentBytes) {
      ns_ *= kRecentBytes / bytes_;
      bytes_ = kRecentBytes;
    }
  }
  // Absent: nothing was loaded yet.
  std::optional<double> ns_per_byte() const {
    return bytes_ == 0 ? std::nullopt : std::optional(ns_ / bytes_);
  }

 private:
  double bytes_ = 0, ns_ = 0;
};

// A load is late when its next block has not come by the time that the estimate gives it, and 40 ms
// and 4% of the time of computing all of it: with what follows then, the first token comes at most
// 5% and 50 ms later than without a tier. Before anything was computed, when that time is not
// known, a quarter of a second instead: the first prompt of a process that is started for prompts
// of others must not be computed since 40 ms are lacking. While no speed is known, it may stand
// still for a second.
struct LoadPace {
  static constexpr double kToleranceNs = 40e6, kToleranceShare = 0.04, kUnknownNs = 1e9;
  static constexpr double kFirstToleranceNs = 250e6;
  // How much later a block may come, or a lookup be answered. `compute_ns`: as below.
  static constexpr double ToleranceNs(double compute_ns) {
    return compute_ns > 0 ? kToleranceNs + kToleranceShare * compute_ns : kFirstToleranceNs;
  }

  uint64_t start_ns = 0;     // MonotonicNs
  uint64_t progress_ns = 0;  // when a block was opened last
  double compute_ns = 0;     // to compute all of the offer's tokens; 0: not known
  std::optional<double> ns_per_byte;

  // Returns when a load that has `bytes`, with the next block, is late.
  double LateAt(uint64_t bytes) const {
    if (!ns_per_byte) return static_cast<double>(progress_ns) + kUnknownNs;
    return static_cast<double>(start_ns) + static_cast<double>(bytes) * *ns_per_byte +
           ToleranceNs(compute_ns);
  }
  // Returns whether loading `bytes` takes longer than computing their tokens.
  bool IsSlower(uint64_t bytes, double tokens_ns) const {
    return ns_per_byte && tokens_ns > 0 && static_cast<double>(bytes) * *ns_per_byte > tokens_ns;
  }
  // Returns the share of the tokens that are left to compute before the first one to load, so that
  // both end at once: each takes the other's share.
  double ComputedShare(uint64_t bytes, double tokens_ns) const {
    if (!ns_per_byte || tokens_ns <= 0) return 0;
    const double load_ns = static_cast<double>(bytes) * *ns_per_byte;
    return load_ns / (load_ns + tokens_ns);
  }
};

}  // namespace kvasir
