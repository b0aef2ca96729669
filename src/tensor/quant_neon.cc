#define KVASIR_TARGET_NS neon
#define KVASIR_TARGET_ID 3
#define KVASIR_VNNI 1
#include "tensor/quant_slice-inl.h"

namespace kvasir::neon {

const QuantKernels kQuantKernels = kLaneKernels;

}  // namespace kvasir::neon
