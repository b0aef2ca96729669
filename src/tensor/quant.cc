#include "tensor/quant.h"

namespace kvasir {
namespace {

constexpr OfTarget<QuantKernels> kQuantTables[] = {
    {Target::kScalar, &scalar::kQuantKernels},
#if defined(__x86_64__)
    {Target::kAvx2, &avx2::kQuantKernels},     {Target::kAvxVnni, &avxvnni::kQuantKernels},
    {Target::kAvx512, &avx512::kQuantKernels}, {Target::kAvx512Vnni, &avx512vnni::kQuantKernels},
    {Target::kAmx, &amx::kQuantKernels},
#elif defined(__aarch64__)
    {Target::kNeon, &neon::kQuantKernels},
#endif
};

}  // namespace

const QuantKernels& QuantKernelsFor(Target target) { return ValueFor(target, kQuantTables); }

}  // namespace kvasir
