#define KVASIR_TARGET_NS scalar
#define KVASIR_TARGET_ID 0
#include "tensor/kernels-inl.h"
