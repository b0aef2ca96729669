// Numbers of f32, f16 and bf16 tensors where they are stored: unaligned bytes, little endian.
#pragma once

#include <cstddef>
#include <cstdint>

#include "import/tensor_view.h"

namespace kvasir {

// Widens `count` numbers, exactly. REQUIRES: a dtype of the three.
void Widen(DType dtype, const std::byte* from, uint64_t count, float* to);

// Whether none of `count` numbers is NaN or infinite. REQUIRES: a dtype of the three.
bool AllFinite(DType dtype, const std::byte* from, uint64_t count);

}  // namespace kvasir
