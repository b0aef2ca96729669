#include "attention/kernels.h"

namespace kvasir {

const AttentionKernels& AttentionKernelsFor(Target target) {
#if defined(__x86_64__)
  target = FloatTarget(target);
  if (target == Target::kAvx512) return avx512::kAttentionKernels;
  if (target == Target::kAvx2) return avx2::kAttentionKernels;
#elif defined(__aarch64__)
  if (target == Target::kNeon) return neon::kAttentionKernels;
#endif
  (void)target;
  return scalar::kAttentionKernels;
}

}  // namespace kvasir
