// MeanRows: the mean of a prompt's final hidden states.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"

namespace kvasir {

// Sums rows in double, one position after the other, so that the mean does not depend on how the
// prompt was divided into steps. Rows that are computed again, after a preemption, count once.
class MeanRows {
 public:
  // Adds the row at `position`, unless it was added before. REQUIRES: all before it were.
  void Add(uint32_t position, std::span<const float> hidden) {
    if (position < num_rows_) return;
    KV_CHECK(position == num_rows_);
    if (num_rows_++ == 0) sums_.resize(hidden.size());
    for (size_t i = 0; i < hidden.size(); ++i) sums_[i] += double{hidden[i]};
  }
  // REQUIRES: a row was added.
  std::vector<float> Mean() const {
    KV_CHECK(num_rows_ > 0);
    std::vector<float> mean(sums_.size());
    for (size_t i = 0; i < mean.size(); ++i) mean[i] = static_cast<float>(sums_[i] / num_rows_);
    return mean;
  }

 private:
  std::vector<double> sums_;  // [hidden_size]
  uint32_t num_rows_ = 0;
};

}  // namespace kvasir
