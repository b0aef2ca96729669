#define KVASIR_TARGET_NS neon
#define KVASIR_TARGET_ID 3
#include "attention/kernels-inl.h"
