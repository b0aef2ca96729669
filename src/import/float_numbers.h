// Reads numbers of f32, f16 and bf16 tensors in place: unaligned bytes, little endian.
#pragma once

#include <cstddef>
#include <cstdint>

#include "import/tensor_view.h"

namespace kvasir {

// Widens `count` numbers exactly. REQUIRES: dtype is one of the three.
void Widen(DType dtype, const std::byte* from, uint64_t count, float* to);

// Tells whether none of `count` numbers is NaN or infinite. REQUIRES: dtype is one of the three.
bool AllFinite(DType dtype, const std::byte* from, uint64_t count);

// Computes the quotients of a row of `columns` integers, each rounded once.
void WidenRow(const ScaledIntegers& integers, uint64_t row, uint64_t columns, float* to);

}  // namespace kvasir
