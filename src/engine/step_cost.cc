#include "engine/step_cost.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace kvasir {
namespace {

constexpr double kForget = 0.99;     // weight of all earlier steps after each one
constexpr double kUncertain = 1e6;   // variance of a parameter that nothing is known of
constexpr double kSeenEnough = 0.5;  // of a knot: then its own value counts
// Bytes are counted in these units, so that all parameters are of similar size.
constexpr double kByteUnit = 1 << 20;
constexpr double kNsUnit = 1e6;

}  // namespace

StepCost::StepCost() {
  for (size_t i = 0; i < kSize; ++i) spread_[i][i] = kUncertain;
}

StepCost::Vector StepCost::FeaturesOf(const StepWork& work) {
  Vector features{};
  const uint32_t rows = std::max(work.rows(), 1u);
  const auto low = static_cast<size_t>(std::bit_width(rows) - 1);
  const size_t knot = std::min(low, kKnots - 2);
  const double share = static_cast<double>(rows - (1u << knot)) / static_cast<double>(1u << knot);
  features[knot] = 1 - share;
  features[knot + 1] = share;
  features[kKnots] = work.prefill_kv_bytes / kByteUnit;
  features[kKnots + 1] = work.decode_kv_bytes / kByteUnit;
  return features;
}

void StepCost::Observe(const StepWork& work, uint64_t step_ns) {
  if (step_ns == 0 || work.rows() == 0) return;
  ++steps_;
  const double ms = static_cast<double>(step_ns) / kNsUnit;
  Vector x = FeaturesOf(work);
  for (size_t k = 0; k < kKnots; ++k) seen_[k] = std::min(seen_[k] + x[k], 1e6);
  double predicted = 0;
  for (size_t i = 0; i < kSize; ++i) predicted += x[i] * values_[i];
  const double error = (ms - predicted) / ms;  // the relative one
  for (double& feature : x) feature /= ms;
  Vector px{};
  double xpx = kForget;
  for (size_t i = 0; i < kSize; ++i) {
    for (size_t j = 0; j < kSize; ++j) px[i] += spread_[i][j] * x[j];
    xpx += x[i] * px[i];
  }
  for (size_t i = 0; i < kSize; ++i) values_[i] = std::max(0.0, values_[i] + px[i] / xpx * error);
  for (size_t i = 0; i < kSize; ++i) {
    for (size_t j = 0; j < kSize; ++j) {
      // Directions that no step shows stay as uncertain as they are, instead of growing for ever.
      const double grown = (spread_[i][j] - px[i] * px[j] / xpx) / kForget;
      spread_[i][j] = std::clamp(grown, -kUncertain, kUncertain);
    }
  }
  FillKnots();
}

void StepCost::FillKnots() {
  size_t first = 0;
  while (first < kKnots && seen_[first] < kSeenEnough) ++first;
  if (first == kKnots) {
    first = static_cast<size_t>(std::ranges::max_element(seen_) - seen_.begin());
  }
  for (size_t k = 0; k < kKnots; ++k) {
    if (k <= first) {
      filled_[k] = values_[first];
    } else if (seen_[k] >= kSeenEnough) {
      filled_[k] = std::max(filled_[k - 1], values_[k]);
    } else {
      filled_[k] = filled_[k - 1] * 2;  // in proportion to rows: rather too much
    }
  }
  // Between two knots that are known the middle ones cost no more than the upper one.
  for (size_t k = kKnots - 1; k-- > first;) {
    if (seen_[k] < kSeenEnough) filled_[k] = std::min(filled_[k], filled_[k + 1]);
  }
}

double StepCost::PredictNs(const StepWork& work) const {
  if (steps_ == 0) return 0;
  const Vector x = FeaturesOf(work);
  double ms = x[kKnots] * values_[kKnots] + x[kKnots + 1] * values_[kKnots + 1];
  for (size_t k = 0; k < kKnots; ++k) ms += x[k] * filled_[k];
  return ms * kNsUnit;
}

}  // namespace kvasir
