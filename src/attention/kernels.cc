#include "attention/kernels.h"

namespace kvasir {

const AttentionKernels& AttentionKernelsFor(Target target) {
#if defined(__x86_64__)
  switch (target) {
    case Target::kAmx:
    case Target::kAvx512Vnni:
      return avx512vnni::kAttentionKernels;
    case Target::kAvx512:
      return avx512::kAttentionKernels;
    case Target::kAvxVnni:
      return avxvnni::kAttentionKernels;
    case Target::kAvx2:
      return avx2::kAttentionKernels;
    case Target::kScalar:
    case Target::kNeon:
      break;
  }
#elif defined(__aarch64__)
  if (target == Target::kNeon) return neon::kAttentionKernels;
#endif
  (void)target;
  return scalar::kAttentionKernels;
}

}  // namespace kvasir
