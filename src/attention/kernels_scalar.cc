#define KVASIR_TARGET_NS scalar
#define KVASIR_TARGET_ID 0
#include "attention/kernels-inl.h"
