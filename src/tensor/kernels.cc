#include "tensor/kernels.h"

namespace kvasir {

const TensorKernels& TensorKernelsFor(Target target) {
#if defined(__x86_64__)
  target = FloatTarget(target);
  if (target == Target::kAvx512) return avx512::kTensorKernels;
  if (target == Target::kAvx2) return avx2::kTensorKernels;
#elif defined(__aarch64__)
  if (target == Target::kNeon) return neon::kTensorKernels;
#endif
  (void)target;
  return scalar::kTensorKernels;
}

}  // namespace kvasir
