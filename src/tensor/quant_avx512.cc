#define KVASIR_TARGET_NS avx512
#define KVASIR_TARGET_ID 2
#define KVASIR_VNNI 0
#include "tensor/quant_slice-inl.h"

namespace kvasir::avx512 {

const QuantKernels kQuantKernels = kLaneKernels;

}  // namespace kvasir::avx512
