// StepCost: how long a step takes, learned from the steps that ran.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "kvasir/request_stats.h"

namespace kvasir {

// What decides how long a step takes.
struct StepWork {
  uint32_t prefill_rows = 0, decode_rows = 0;
  uint32_t draft_rows = 0;  // of drafted tokens, beside the decode_rows
  // K and V that the rows' queries see, in bytes: of prompts, where rows share what they read, and
  // of decoding sequences.
  double prefill_kv_bytes = 0, decode_kv_bytes = 0;

  uint32_t rows() const { return prefill_rows + decode_rows + draft_rows; }
};

// time = Rows(rows) + Drafts(draft_rows) + prefill_kv_bytes * a + decode_kv_bytes * b, where Rows
// counts all rows but those of drafts. Rows and Drafts are linear between knots at 1, 2, 4, ...
// rows, since few rows cost what reading the weights costs and many cost what computing them does.
// (Drafts are a separate kind of work, since a lone stream's rows and KV bytes grow together: after
// 4,180 steps of 20 ms a common Rows said 0.39 ms for one.) The parameters are at least 0 and
// minimise the squares of the relative errors of the steps, of which older ones count less and less
// (exponentially weighted least squares). Each step moves them by some rounds of coordinate
// descent. Allocates nothing. One thread at a time.
class StepCost {
 public:
  // Notes that a step of this work took so long. O(kSize^2).
  void Observe(const StepWork& work, uint64_t step_ns);
  // 0 until a step was observed. Knots that no step was near yet have values that follow from the
  // nearest ones: never less than those of fewer rows. Drafts that no step had yet cost what as
  // many rows of prompts do, which is rather too much.
  double PredictNs(const StepWork& work) const;
  bool knows_anything() const { return steps_ > 0; }
  StepCostStats Figures() const;

 private:
  static constexpr size_t kKnots = std::tuple_size_v<decltype(StepCostStats::ns_of_rows)>;
  static constexpr size_t kDraftKnots = 8;
  static constexpr size_t kFirstDraft = kKnots + 2;
  static constexpr size_t kSize = kFirstDraft + kDraftKnots;
  using Vector = std::array<double, kSize>;

  static Vector FeaturesOf(const StepWork& work);
  void Descend();
  void FillKnots();
  void FillDrafts();

  uint64_t steps_ = 0;
  // ms of each knot; of a MiB, of prefill and of decode; of each knot of drafts.
  Vector values_{};
  Vector filled_{};  // the knots that predictions use
  Vector seen_{};    // weight of the steps near each knot
  // The normal equations: sum of weight * x x^T and of weight * x * time.
  std::array<Vector, kSize> products_{};
  Vector sums_{};
  Vector largest_{};  // of the squares of what a step added
};

}  // namespace kvasir
