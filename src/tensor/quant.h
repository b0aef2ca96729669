// Products with quantised weights: activations are rounded to int8 in groups of 32, the dot product
// of a group is exact in int32, and groups are joined in order (docs/numerics.md). All targets
// compute the same bits; none of them allocates or locks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "simd/target.h"
#include "tensor/weight_format.h"

namespace kvasir {

// The places of the parts of a quantised row of k activations, in bytes from its start. A row fits
// only the weight format and the target that it was quantised for, because both decide the
// `offsets` that are added to a dot product.
struct ActivationLayout {
  explicit constexpr ActivationLayout(uint32_t k)
      : columns((k + 63) / 64 * 64), groups(columns / kGroup) {}
  constexpr uint64_t scales_at() const { return columns; }                    // f32 [groups]
  constexpr uint64_t scaled_sums_at() const { return columns + groups * 4; }  // f32 [groups]
  constexpr uint64_t offsets_at() const { return columns + groups * 8; }      // i32 [groups][2]
  // Returns an odd number of cache lines, so that rows do not share a few cache sets.
  constexpr uint64_t bytes() const { return ((columns + groups * 16 + 63) / 64 | 1) * 64; }

  uint32_t columns;  // int8, zero beyond k
  uint64_t groups;
};

// Rows are quantised block by block: a target may use its own layout for a whole block, within the
// same bytes.
constexpr uint32_t kBlockRows = 16;

struct QuantKernels {
  // A block of rows: out <- x[rows][k], rows x_stride floats apart, 1 <= rows <= kBlockRows. For
  // each group s = max|x| / 127 and q = round_to_even(x * (127 / max|x|)); q = 0 and s = 0 where
  // max|x| < 2^-100. A number that is not finite makes its group's s NaN, and so each product with
  // it. out: rows * ActivationLayout(k).bytes(), 64-byte aligned.
  struct QuantiseArgs {
    const float* x;
    size_t x_stride;
    uint32_t rows, k;
    WeightFormat format;
    std::byte* out;
  };
  void (*quantise)(const QuantiseArgs& args);

  // y[m][n] = bias[n] + sum over groups, in order, by FMA from 0, of float(dot) * (dw * da) and,
  // where the format has a minimum, minimum * (da * float(sum of q)); bias last (may be nullptr).
  // With `accumulate`, that is added to y. x: blocks of quantised rows, all but the last of
  // kBlockRows. Outputs at or beyond `outputs` are not written; panels [panel_begin, panel_end) of
  // w are read.
  struct MatMulArgs {
    const std::byte* x;
    size_t x_stride;  // ActivationLayout(k).bytes()
    const std::byte* w;
    WeightFormat format;
    const float* bias;
    float* y;
    size_t y_stride;
    uint32_t rows, k, outputs;
    uint32_t panel_begin, panel_end;
    bool accumulate;
  };
  void (*mat_mul)(const MatMulArgs& args);

  uint32_t item_rows;  // rows of a work item at most: a multiple of kBlockRows
};

// REQUIRES: the CPU has the target.
const QuantKernels& QuantKernelsFor(Target target);

namespace scalar {
extern const QuantKernels kQuantKernels;
}
namespace avx2 {
extern const QuantKernels kQuantKernels;
}
namespace avxvnni {
extern const QuantKernels kQuantKernels;
}
namespace avx512 {
extern const QuantKernels kQuantKernels;
}
namespace avx512vnni {
extern const QuantKernels kQuantKernels;
}
namespace amx {
extern const QuantKernels kQuantKernels;
}
namespace neon {
extern const QuantKernels kQuantKernels;
}
// The tile code of amx with a tile unit in plain C++: any CPU can run it, so any test can.
namespace amxsoft {
extern const QuantKernels kQuantKernels;
}

}  // namespace kvasir
