// Quantisers: f32 numbers to the codes and scales of a packed panel (--weights).
//
//   Q8_0  as ggml: d = max|x| / 127, code = round half away from zero (x / d)
//   Q4_0  as ggml: d = the number of largest magnitude / -8, code = min(15, trunc(x / d + 8.5))
//   I8, Q4_1 (i4)  x = d * code + m with the least sum of squared errors of a search. Its
//   candidates
//         are the range of the numbers and ranges that clip its ends a little. For each it chooses
//         codes, fits d and m to them by least squares, rounds both to f16, and chooses the codes
//         again. The first of equal errors wins. The plain range is the first candidate, so the
//         error is never above that of rounding to the range.
//
// Each of 16 lanes belongs to one output and uses IEEE operations in a fixed order and no libm, so
// every machine makes the same bytes.
#pragma once

#include <cstdint>

#include "tensor/weight_format.h"

namespace kvasir {

// The largest magnitude that can be quantised, because scales are f16.
inline constexpr float kMaxQuantised = 65504.0f;

// x [32][16]: a group of each of 16 outputs; columns beyond `columns` are ignored and get the code
// 0. groups [16]. REQUIRES: format is I8, Q8_0, Q4_0 or Q4_1; 1 <= columns <= 32; no magnitude
// above kMaxQuantised.
void QuantiseGroups(WeightFormat format, const float (*x)[kPanelOutputs], uint32_t columns,
                    WeightGroup* groups);

}  // namespace kvasir
