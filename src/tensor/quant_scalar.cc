#define KVASIR_TARGET_NS scalar
#define KVASIR_TARGET_ID 0
#define KVASIR_VNNI 1
#include "tensor/quant-inl.h"

namespace kvasir::scalar {

const QuantKernels kQuantKernels = {Quantise, ForFormat<RowProduct>, kRowChunk};

}  // namespace kvasir::scalar
