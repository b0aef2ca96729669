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
  // K and V that the rows' queries see, in bytes: of prompts, where rows share what they read, and
  // of decoding sequences.
  double prefill_kv_bytes = 0, decode_kv_bytes = 0;

  uint32_t rows() const { return prefill_rows + decode_rows; }
};

// time = Rows(rows) + prefill_kv_bytes * a + decode_kv_bytes * b. Rows is linear between knots at
// 1, 2, 4, ... rows, since few rows cost what reading the weights costs and many cost what
// computing them does. The parameters are at least 0 and minimise the squares of the relative
// errors of the steps, of which older ones count less and less (exponentially weighted least
// squares). Each step moves them by some rounds of coordinate descent. Allocates nothing. One
// thread at a time.
class StepCost {
 public:
  // A step of this work took so long. O(kSize^2).
  void Observe(const StepWork& work, uint64_t step_ns);
  // 0 until a step was observed. Knots that no step was near yet have values that follow from the
  // nearest ones: never less than those of fewer rows.
  double PredictNs(const StepWork& work) const;
  bool knows_anything() const { return steps_ > 0; }
  StepCostStats Figures() const;

 private:
  static constexpr size_t kKnots = std::tuple_size_v<decltype(StepCostStats::ns_of_rows)>;
  static constexpr size_t kSize = kKnots + 2;
  using Vector = std::array<double, kSize>;

  static Vector FeaturesOf(const StepWork& work);
  void Descend();
  void FillKnots();

  uint64_t steps_ = 0;
  Vector values_{};                      // ns of each knot; ns of a byte, of prefill and of decode
  std::array<double, kKnots> filled_{};  // the knots that predictions use
  std::array<double, kKnots> seen_{};    // weight of the steps near each knot
  // The normal equations: sum of weight * x x^T and of weight * x * time.
  std::array<Vector, kSize> products_{};
  Vector sums_{};
  Vector largest_{};  // of the squares of what a step added
};

}  // namespace kvasir
