#define KVASIR_TARGET_NS avxvnni
#define KVASIR_TARGET_ID 1
#include "attention/kernels-inl.h"
