// Fills panels from stored rows: the inner loop of packing weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "import/tensor_view.h"

namespace kvasir {

// A stored row of a matrix.
struct PanelRow {
  const std::byte* data = nullptr;
  DType dtype = DType::kF32;
};

// Writes a panel of `k` columns from up to 16 rows, one lane each; lanes without a row keep their
// bytes (zero in a new arena). Rows are stored as `format`, or in an unquantised type that is
// quantised to it (tensor/quantise.h). Returns the lanes whose row has a number or a scale that is
// NaN or infinite, or one too large to be quantised, lane i as bit i. O(16 k).
uint32_t FillPanel(WeightFormat format, std::span<const PanelRow> rows, uint32_t k,
                   std::byte* panel);

// Widens row `lane` of a panel to out [k]. O(k).
void WidenLane(WeightFormat format, const std::byte* panel, uint32_t lane, uint32_t k, float* out);

}  // namespace kvasir
