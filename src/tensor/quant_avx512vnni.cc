#define KVASIR_TARGET_NS avx512vnni
#define KVASIR_TARGET_ID 2
#define KVASIR_VNNI 1
#include "tensor/quant_slice-inl.h"

namespace kvasir::avx512vnni {

const QuantKernels kQuantKernels = kLaneKernels;

}  // namespace kvasir::avx512vnni
