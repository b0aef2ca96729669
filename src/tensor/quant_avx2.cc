#define KVASIR_TARGET_NS avx2
#define KVASIR_TARGET_ID 1
#define KVASIR_VNNI 0
#include "tensor/quant_slice-inl.h"

namespace kvasir::avx2 {

const QuantKernels kQuantKernels = kLaneKernels;

}  // namespace kvasir::avx2
