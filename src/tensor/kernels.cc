#include "tensor/kernels.h"

namespace kvasir {
namespace {

constexpr OfTarget<TensorKernels> kTensorTables[] = {
    {Target::kScalar, &scalar::kTensorKernels},
#if defined(__x86_64__)
    {Target::kAvx2, &avx2::kTensorKernels},
    {Target::kAvx512, &avx512::kTensorKernels},
#elif defined(__aarch64__)
    {Target::kNeon, &neon::kTensorKernels},
#endif
};

}  // namespace

const TensorKernels& TensorKernelsFor(Target target) { return ValueFor(target, kTensorTables); }

}  // namespace kvasir
