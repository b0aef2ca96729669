#include "attention/kernels.h"

namespace kvasir {
namespace {

constexpr OfTarget<AttentionKernels> kTables[] = {
    {Target::kScalar, &scalar::kAttentionKernels},
#if defined(__x86_64__)
    {Target::kAvx2, &avx2::kAttentionKernels},
    {Target::kAvxVnni, &avxvnni::kAttentionKernels},
    {Target::kAvx512, &avx512::kAttentionKernels},
    {Target::kAvx512Vnni, &avx512vnni::kAttentionKernels},
#elif defined(__aarch64__)
    {Target::kNeon, &neon::kAttentionKernels},
#endif
};

}  // namespace

const AttentionKernels& AttentionKernelsFor(Target target) { return ValueFor(target, kTables); }

}  // namespace kvasir
