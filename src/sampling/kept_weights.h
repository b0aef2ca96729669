// KeptWeights: what top_p and min_p keep of sorted weights, and a draw from it.
#pragma once

#include <cstddef>
#include <limits>

#include "kvasir/sampling_params.h"
#include "sampling/weight_order.h"

namespace kvasir {

// The weights that are kept: how many of the largest, and their sum.
struct KeptWeights {
  size_t count;
  double sum;
};
// Returns what top_p and min_p keep of the `limit` largest weights, which are sorted(i) for i = 0,
// 1,
// ... < limit. `sum`: of all of them. O(kept).
template <typename Sorted>
KeptWeights KeptOf(Sorted sorted, size_t limit, double sum, const SamplingParams& params) {
  if (params.top_p == 1.0f && params.min_p == 0) return {limit, sum};
  const double enough =
      params.top_p < 1.0f ? params.top_p * sum : std::numeric_limits<double>::infinity();
  size_t kept = 0;
  for (sum = 0; kept < limit; ++kept) {
    const double weight = sorted(kept).weight;
    if (kept > 0 && sum >= enough && weight != sorted(kept - 1).weight) break;
    if (kept > 0 && weight < params.min_p * sorted(0).weight) break;
    sum += weight;
  }
  return {kept, sum};
}

// Does the same, and adds the sum from the largest down. O(limit).
template <typename Sorted>
KeptWeights KeptOf(Sorted sorted, size_t limit, const SamplingParams& params) {
  double sum = 0;
  for (size_t i = 0; i < limit; ++i) sum += sorted(i).weight;
  return KeptOf(sorted, limit, sum, params);
}

// Returns the index that u in [0, 1) draws from the kept ones. O(limit).
template <typename Sorted>
size_t DrawFrom(Sorted sorted, size_t limit, const SamplingParams& params, double u) {
  const KeptWeights kept = KeptOf(sorted, limit, params);
  double running = 0;
  for (size_t i = 0; i < kept.count; ++i) {
    running += sorted(i).weight;
    if (running > u * kept.sum) return i;
  }
  return 0;  // by rounding u * sum is at the very end
}

}  // namespace kvasir
