// Tensor kernels of one target: matrix products, norms, rotary embedding, activations. All
// targets compute the same bits (docs/numerics.md); none of them allocates or locks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "simd/target.h"
#include "tensor/activation.h"
#include "tensor/weight_format.h"

namespace kvasir {

// Returns the largest power of two that divides head_dim.
constexpr uint32_t HadamardSize(uint32_t head_dim) { return head_dim & (0u - head_dim); }

struct TensorKernels {
  // y[m][n] = bias[n] + sum over k, in order, of x[m][k] * w[n][k] by FMA from 0 (bias last, may be
  // nullptr), for output panels [panel_begin, panel_end) of 16. With `accumulate`, that sum is
  // added to y. w: panels [n / 16][k][16]; x rows x_stride floats apart, y rows y_stride. Outputs
  // at or beyond `outputs` are not written.
  struct MatMulArgs {
    const float* x;
    size_t x_stride;
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

  // y[i] = x[i] / sqrt(mean(x^2) + eps) * w[i] (RMSNorm, Zhang and Sennrich, 2019). The squares
  // are summed in 16 lanes and one tree; when the sum is not finite, y is NaN. y may be x.
  // `other_order` is for the injected fault lane-order: a serial sum.
  void (*rms_norm)(const float* x, const float* w, float eps, uint32_t n, float* y,
                   bool other_order);

  // y[i] = (x[i] - mean) / sqrt(variance + eps) * w[i] + b[i] (Ba, Kiros and Hinton, 2016). Mean
  // and variance each reduce over 16 lanes and one tree, the variance from the differences; the
  // last product and sum are one FMA. Where the variance is not finite, y is NaN. y may be x.
  // `other_order` as of rms_norm, for the mean.
  void (*layer_norm)(const float* x, const float* w, const float* b, float eps, uint32_t n,
                     float* y, bool other_order);

  // y[i] += factor * x[i], one FMA.
  void (*add_scaled)(float factor, const float* x, uint32_t n, float* y);

  // Rotates the first `rotated` numbers of each head of [heads][head_dim] in place, pairing i with
  // i + rotated/2: cos, sin [rotated/2]. REQUIRES: rotated is even and at most head_dim.
  void (*rope)(float* x, uint32_t heads, uint32_t head_dim, uint32_t rotated, const float* cos,
               const float* sin);

  // Multiplies each head of [heads][head_dim] by the Hadamard matrix of HadamardSize(head_dim),
  // block by block, in place: sums and differences, no factor. O(n log n) each.
  void (*hadamard)(float* x, uint32_t heads, uint32_t head_dim);

  // y[i] = act(gate[i]) * up[i]. y may be gate.
  void (*gated)(Activation act, const float* gate, const float* up, uint32_t n, float* y);
  // x[i] = act(x[i]). silu x = x / (1 + e^-x); gelu_tanh and gelu as Hendrycks and Gimpel (2016)
  // have them; relu x = x - x below 0, else x: what is not finite stays so.
  void (*activate)(Activation act, uint32_t n, float* x);

  // x[i] = cap * tanh(x[i] / cap); what is not finite becomes NaN. REQUIRES: cap > 0.
  void (*soft_cap)(float cap, uint32_t n, float* x);

  // dst[i] = the number stored at src[i]: a row of the embedding.
  void (*widen)(const std::byte* src, WeightFormat format, uint32_t n, float* dst);

  // Tells whether all of x[0, n) are finite.
  bool (*all_finite)(const float* x, uint32_t n);
};

// REQUIRES: the CPU has the target.
const TensorKernels& TensorKernelsFor(Target target);

namespace scalar {
extern const TensorKernels kTensorKernels;
}
namespace avx2 {
extern const TensorKernels kTensorKernels;
}
namespace avx512 {
extern const TensorKernels kTensorKernels;
}
namespace neon {
extern const TensorKernels kTensorKernels;
}

}  // namespace kvasir
