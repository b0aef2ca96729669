#include "tensor/exp_sum.h"

namespace kvasir {
namespace {

constexpr OfTarget<ExpSum> kExpSums[] = {
    {Target::kScalar, &scalar::kExpSum},
#if defined(__x86_64__)
    {Target::kAvx2, &avx2::kExpSum},
    {Target::kAvx512, &avx512::kExpSum},
#elif defined(__aarch64__)
    {Target::kNeon, &neon::kExpSum},
#endif
};

}  // namespace

ExpSum ExpSumFor(Target target) { return ValueFor(target, kExpSums); }

}  // namespace kvasir
