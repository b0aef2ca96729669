// ExpSum: the sum under a softmax over a row of logits, with the same bits on every target.
#pragma once

#include <cstdint>

#include "simd/target.h"

namespace kvasir {

// The sum of e^(x[i] - max) over x[0, n): Exp as simd/vec16-inl.h has it, and sums in f32 in lanes
// i mod 16, from the first to the last, which one tree adds (8, 4, 2, 1). Terms below e^-87.3 are
// 0. REQUIRES: no x is above max.
using ExpSum = float (*)(const float* x, uint32_t n, float max);

// REQUIRES: the CPU has the target.
ExpSum ExpSumFor(Target target);

namespace scalar {
extern const ExpSum kExpSum;
}
namespace avx2 {
extern const ExpSum kExpSum;
}
namespace avx512 {
extern const ExpSum kExpSum;
}
namespace neon {
extern const ExpSum kExpSum;
}

}  // namespace kvasir
