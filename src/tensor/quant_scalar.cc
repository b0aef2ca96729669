#define KVASIR_TARGET_NS scalar
#define KVASIR_TARGET_ID 0
#define KVASIR_VNNI 1
#include "tensor/quant_slice-inl.h"

namespace kvasir::scalar {

const QuantKernels kQuantKernels = kLaneKernels;

}  // namespace kvasir::scalar
