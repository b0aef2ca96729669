#define KVASIR_TARGET_NS avx512
#define KVASIR_TARGET_ID 2
#include "tensor/kernels-inl.h"
