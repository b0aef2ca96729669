// The end of a row of a matrix product, for weights in floats (kernels-inl.h) and quantised ones
// (quant-inl.h).
#pragma once

#include "simd/vec16-inl.h"
#include "tensor/weight_format.h"

namespace kvasir::KVASIR_TARGET_NS {
namespace {

// Adds the bias, accumulates, and stores one row's panel. `Args`: MatMulArgs of either.
template <class Args>
KV_INLINE void StoreSums(const Args& a, uint32_t row, uint32_t panel, V16 sum) {
  const uint32_t output = panel * kPanelOutputs;
  const uint32_t n = a.outputs - output < kPanelOutputs ? a.outputs - output : kPanelOutputs;
  float* y = a.y + row * a.y_stride + output;
  if (a.bias != nullptr) sum = Add(sum, LoadFirst(n, a.bias + output));
  if (a.accumulate) sum = Add(LoadFirst(n, y), sum);
  StoreFirst(n, y, sum);
}

}  // namespace
}  // namespace kvasir::KVASIR_TARGET_NS
