#include "schedule/step_cost.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <span>

namespace kvasir {
namespace {

constexpr double kForget = 0.98;  // weight of all earlier steps after each one
constexpr int kRounds = 4;        // of coordinate descent, for each step
// A parameter that few of the late steps depend on stays near where it is.
constexpr double kInertia = 1e-3;
constexpr double kTiny = 1e-300;
constexpr double kSeenEnough = 0.5;  // of a knot: then its own value counts
// A knot of drafts that 400 steps were not near counts as never seen. Else a machine that was slow
// for a while would not draft any more, and so not learn that it is quick again.
constexpr double kDraftsSeen = 4, kDraftsForget = 0.995;
// Bytes are counted in these units, so that all parameters are of similar size.
constexpr double kByteUnit = 1 << 20;
constexpr double kNsUnit = 1e6;

// Puts `rows` between two of the knots at 1, 2, 4, ... rows.
void Interpolate(std::span<double> knots, uint32_t rows) {
  const auto low = static_cast<size_t>(std::bit_width(rows) - 1);
  const size_t knot = std::min(low, knots.size() - 2);
  const double share = static_cast<double>(rows - (1u << knot)) / static_cast<double>(1u << knot);
  knots[knot] = 1 - share;
  knots[knot + 1] = share;
}

}  // namespace

StepCost::Vector StepCost::FeaturesOf(const StepWork& work) {
  Vector features{};
  Interpolate(std::span(features).first(kKnots),
              std::max(work.prefill_rows + work.decode_rows, 1u));
  if (work.draft_rows > 0) {
    Interpolate(std::span(features).subspan(kFirstDraft), work.draft_rows);
  }
  features[kKnots] = work.prefill_kv_bytes / kByteUnit;
  features[kKnots + 1] = work.decode_kv_bytes / kByteUnit;
  return features;
}

void StepCost::Observe(const StepWork& work, uint64_t step_ns) {
  if (step_ns == 0 || work.rows() == 0) return;
  ++steps_;
  const double ms = static_cast<double>(step_ns) / kNsUnit;
  const Vector x = FeaturesOf(work);
  for (size_t k = 0; k < kFirstDraft; ++k) seen_[k] = std::min(seen_[k] + x[k], 1e6);
  for (size_t k = kFirstDraft; k < kSize; ++k) {
    seen_[k] = std::min(seen_[k] * kDraftsForget + x[k], kDraftsSeen);
  }
  for (size_t i = 0; i < kSize; ++i) {
    sums_[i] = sums_[i] * kForget + x[i] / ms;
    largest_[i] = std::max(largest_[i], x[i] * x[i] / (ms * ms));
    for (size_t j = 0; j < kSize; ++j) {
      products_[i][j] = products_[i][j] * kForget + x[i] * x[j] / (ms * ms);
    }
  }
  Descend();
  FillKnots();
}

void StepCost::Descend() {
  const Vector before = values_;
  for (int round = 0; round < kRounds; ++round) {
    for (size_t i = 0; i < kSize; ++i) {
      const double inertia = kInertia * largest_[i];
      double rest = sums_[i] + inertia * before[i];
      for (size_t j = 0; j < kSize; ++j) {
        if (j != i) rest -= products_[i][j] * values_[j];
      }
      values_[i] = std::max(0.0, rest / std::max(products_[i][i] + inertia, kTiny));
    }
  }
}

void StepCost::FillKnots() {
  size_t first = 0;
  while (first < kKnots && seen_[first] < kSeenEnough) ++first;
  if (first == kKnots) {
    const auto rows = std::span(seen_).first(kKnots);
    first = static_cast<size_t>(std::ranges::max_element(rows) - rows.begin());
  }
  double known = values_[first];  // of the last knot that steps were near
  for (size_t k = 0; k < kKnots; ++k) {
    if (k <= first) {
      filled_[k] = known;
    } else if (seen_[k] >= kSeenEnough) {
      filled_[k] = known = std::max(known, values_[k]);
    } else {
      filled_[k] = filled_[k - 1] * 2;  // in proportion to rows: rather too much
    }
  }
  // A knot between two that are known costs no more than the upper one.
  for (size_t k = kKnots - 1; k-- > first;) {
    if (seen_[k] < kSeenEnough) filled_[k] = std::min(filled_[k], filled_[k + 1]);
  }
  FillDrafts();
}

void StepCost::FillDrafts() {
  // The largest knot that steps were near says what a row of a prompt costs.
  size_t largest = kKnots;
  while (largest > 1 && seen_[largest - 1] < kSeenEnough) --largest;
  const double row_ms = filled_[largest - 1] / static_cast<double>(1u << (largest - 1));
  double known = 0;  // of the last knot that drafts were near
  for (size_t k = kFirstDraft; k < kSize; ++k) {
    const double most = row_ms * static_cast<double>(1u << (k - kFirstDraft));
    const bool is_seen = seen_[k] >= kSeenEnough;
    filled_[k] = std::max(known, is_seen ? values_[k] : most);
    if (is_seen) known = filled_[k];
  }
  for (size_t k = kSize - 1; k-- > kFirstDraft;) {
    if (seen_[k] < kSeenEnough) filled_[k] = std::min(filled_[k], filled_[k + 1]);
  }
}

StepCostStats StepCost::Figures() const {
  StepCostStats figures{
      .steps = steps_,
      .prefill_ns_per_kv_byte = PredictNs({.prefill_kv_bytes = 1}) - PredictNs({}),
      .decode_ns_per_kv_byte = PredictNs({.decode_kv_bytes = 1}) - PredictNs({})};
  for (size_t k = 0; k < kKnots; ++k) figures.ns_of_rows[k] = filled_[k] * kNsUnit;
  return figures;
}

double StepCost::PredictNs(const StepWork& work) const {
  if (steps_ == 0) return 0;
  const Vector x = FeaturesOf(work);
  double ms = x[kKnots] * values_[kKnots] + x[kKnots + 1] * values_[kKnots + 1];
  for (size_t k = 0; k < kKnots; ++k) ms += x[k] * filled_[k];
  for (size_t k = kFirstDraft; k < kSize; ++k) ms += x[k] * filled_[k];
  return ms * kNsUnit;
}

}  // namespace kvasir
