#include "tensor/exp_sum.h"

namespace kvasir {

ExpSum ExpSumFor(Target target) {
#if defined(__x86_64__)
  target = FloatTarget(target);
  if (target == Target::kAvx512) return avx512::kExpSum;
  if (target == Target::kAvx2) return avx2::kExpSum;
#elif defined(__aarch64__)
  if (target == Target::kNeon) return neon::kExpSum;
#endif
  (void)target;
  return scalar::kExpSum;
}

}  // namespace kvasir
