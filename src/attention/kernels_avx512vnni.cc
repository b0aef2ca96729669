#define KVASIR_TARGET_NS avx512vnni
#define KVASIR_TARGET_ID 2
#include "attention/kernels-inl.h"
