// GHASH by products of 512 bits (VPCLMULQDQ with AVX-512: Ice Lake, Zen 4 and later).
#include "base/ghash-inl.h"
