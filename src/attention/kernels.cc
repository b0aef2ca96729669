#include "attention/kernels.h"

namespace kvasir {

const AttentionKernels& AttentionKernelsFor(Target target) {
#if defined(__x86_64__)
  target = FloatTarget(target);
  if (target == Target::kAvx512) return avx512::kAttentionKernels;
  if (target == Target::kAvx2) return avx2::kAttentionKernels;
#endif
  (void)target;
  return scalar::kAttentionKernels;
}

}  // namespace kvasir
