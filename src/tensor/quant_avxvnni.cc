#define KVASIR_TARGET_NS avxvnni
#define KVASIR_TARGET_ID 1
#define KVASIR_VNNI 1
#include "tensor/quant_slice-inl.h"

namespace kvasir::avxvnni {

const QuantKernels kQuantKernels = kLaneKernels;

}  // namespace kvasir::avxvnni
