// Percentiles of measured values, by nearest rank: the answer is always one of the values.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

namespace kvasir {

// Returns the smallest value that at least `share` of all values do not exceed. 0 without values.
// REQUIRES: they ascend.
inline double NearestRank(const std::vector<double>& sorted, double share) {
  if (sorted.empty()) return 0;
  const auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(sorted.size())));
  return sorted[std::clamp<size_t>(rank, 1, sorted.size()) - 1];
}

// What reports say of a quantity.
struct Percentiles {
  size_t count = 0;
  double mean = 0, p50 = 0, p90 = 0, p95 = 0, p99 = 0, max = 0;
};

// Returns all zero without values.
inline Percentiles PercentilesOf(std::vector<double> values) {
  Percentiles all{.count = values.size()};
  if (values.empty()) return all;
  std::ranges::sort(values);
  for (const double value : values) all.mean += value / static_cast<double>(values.size());
  all.p50 = NearestRank(values, 0.5);
  all.p90 = NearestRank(values, 0.9);
  all.p95 = NearestRank(values, 0.95);
  all.p99 = NearestRank(values, 0.99);
  all.max = values.back();
  return all;
}

}  // namespace kvasir
