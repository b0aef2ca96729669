#define KVASIR_TARGET_NS avxvnni
#define KVASIR_TARGET_ID 1
#define KVASIR_VNNI 1
#include "tensor/quant_block-inl.h"

namespace kvasir::avxvnni {

const QuantKernels kQuantKernels = {Quantise, ForFormat<LaneProduct>, kRowChunk};

}  // namespace kvasir::avxvnni
