// GHASH by products of 256 bits (VPCLMULQDQ without AVX-512: Zen 3, Alder Lake).
#include "base/ghash-inl.h"
