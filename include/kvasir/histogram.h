// Histogram: how often a quantity was below each of some bounds.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvasir {

// Counts values by upper bound (inclusive, ascending), like Prometheus; the last count is of values
// above all bounds. `bounds` must outlive it. One thread at a time; a copy is a snapshot.
class Histogram {
 public:
  static constexpr size_t kMaxBounds = 24;
  explicit constexpr Histogram(std::span<const double> bounds) : bounds_(bounds) {}

  void Observe(double value) {
    const size_t at = std::ranges::lower_bound(bounds_, value) - bounds_.begin();
    ++counts_[at];
    ++count_;
    sum_ += value;
  }
  std::span<const double> bounds() const { return bounds_; }
  uint64_t count_of(size_t bound) const { return counts_[bound]; }  // not cumulative
  uint64_t count() const { return count_; }
  double sum() const { return sum_; }

 private:
  std::span<const double> bounds_;
  std::array<uint64_t, kMaxBounds + 1> counts_{};
  uint64_t count_ = 0;
  double sum_ = 0;
};

// The bounds of vLLM, so that its dashboards work. In seconds, and in tokens.
inline constexpr double kFirstTokenBounds[] = {0.001, 0.005, 0.01, 0.02,  0.04,  0.06,  0.08, 0.1,
                                               0.25,  0.5,   0.75, 1.0,   2.5,   5.0,   7.5,  10.0,
                                               20.0,  40.0,  80.0, 160.0, 640.0, 2560.0};
inline constexpr double kTokenTimeBounds[] = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2,
                                              0.3,  0.4,   0.5,  0.75,  1.0, 2.5,  5.0,
                                              7.5,  10.0,  20.0, 40.0,  80.0};
inline constexpr double kRequestTimeBounds[] = {0.3,  0.5,   0.8,   1.0,   1.5,   2.0,    2.5,
                                                5.0,  10.0,  15.0,  20.0,  30.0,  40.0,   50.0,
                                                60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0};
inline constexpr double kTokenCountBounds[] = {1,     2,      5,      10,     20,     50,    100,
                                               200,   500,    1000,   2000,   5000,   10000, 20000,
                                               50000, 100000, 200000, 500000, 1000000};
inline constexpr double kStepTokenBounds[] = {1,   8,    16,   32,   64,   128,  256,
                                              512, 1024, 2048, 4096, 8192, 16384};
inline constexpr double kChoiceBounds[] = {1, 2, 5, 10, 20};
inline constexpr double kPreemptionBounds[] = {1, 2, 3, 4, 5, 10, 20};
// Ours: a read or a write of the disk tier in seconds, a share of a whole, and a real figure by its
// estimate.
inline constexpr double kTierTimeBounds[] = {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005,
                                             0.01,   0.025,   0.05,   0.1,   0.25,   0.5,
                                             1.0,    2.5,     5.0,    10.0,  30.0};
inline constexpr double kShareBounds[] = {0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4,
                                          0.5,  0.6,  0.7,  0.8, 0.9, 1};
inline constexpr double kRatioBounds[] = {0.25, 0.5,  0.67, 0.75, 0.8, 0.9, 1,
                                          1.1,  1.25, 1.33, 1.5,  2,   4,   8};

}  // namespace kvasir
