// Converts blocks of GGUF's quantised types to the groups of a packed panel. No number changes.
#pragma once

#include <cstddef>

#include "import/tensor_view.h"

namespace kvasir {

// Converts `block` with BlockOf(dtype).columns numbers to groups [columns / 32], in order of
// columns. False when a scale or minimum is NaN or infinite. REQUIRES: IsQuantised(dtype).
//
// The blocks (ggml-common.h), f16 and integers little endian; codes are low nibbles first:
//   Q4_0, IQ4_NL  d f16, 16 bytes: byte i has the codes of columns i and i + 16
//   Q4_1          d f16, m f16, the same 16 bytes
//   Q5_0          d f16, u32 whose bit i is bit 4 of column i's code, the same 16 bytes
//   Q5_1          d f16, m f16, that u32, the same 16 bytes
//   Q8_0          d f16, 32 signed bytes
//   Q4_K          d f16, dmin f16, 12 bytes: scale and minimum of 6 bits for each 32 columns, 128
//                 bytes: byte i of the c-th 32 has the codes of columns 64c + i and 64c + 32 + i
//   Q5_K          as Q4_K with 32 bytes before the codes: bit g of byte i is bit 4 of
//                 column 32g + i
//   Q6_K          128 bytes ql, 64 bytes qh, 16 signed scales of 16 columns each, d f16; in each
//                 half of 128 columns (64 bytes ql, 32 bytes qh) column 32j + i has the low nibble
//                 (j < 2) or the high one of ql[32 (j % 2) + i] and bits 2j, 2j+1 of qh[i] above it
bool TakeApart(DType dtype, const std::byte* block, WeightGroup* groups);

}  // namespace kvasir
