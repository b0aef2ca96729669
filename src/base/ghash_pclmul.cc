// GHASH by products of 128 bits (PCLMULQDQ), for CPUs without wider ones.
#include "base/ghash-inl.h"
