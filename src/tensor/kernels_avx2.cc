#define KVASIR_TARGET_NS avx2
#define KVASIR_TARGET_ID 1
#include "tensor/kernels-inl.h"
