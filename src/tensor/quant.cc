#include "tensor/quant.h"

namespace kvasir {

const QuantKernels& QuantKernelsFor(Target target) {
#if defined(__x86_64__)
  switch (target) {
    case Target::kAmx:
      return amx::kQuantKernels;
    case Target::kAvx512Vnni:
      return avx512vnni::kQuantKernels;
    case Target::kAvx512:
      return avx512::kQuantKernels;
    case Target::kAvxVnni:
      return avxvnni::kQuantKernels;
    case Target::kAvx2:
      return avx2::kQuantKernels;
    case Target::kScalar:
    case Target::kNeon:
      break;
  }
#elif defined(__aarch64__)
  if (target == Target::kNeon) return neon::kQuantKernels;
#endif
  (void)target;
  return scalar::kQuantKernels;
}

}  // namespace kvasir
