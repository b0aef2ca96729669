// TensorView: a tensor's bytes where they lie in a mapped file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tensor/weight_format.h"

namespace kvasir {

// How a file stores numbers: any WeightFormat but kI8, which is ours alone.
using DType = WeightFormat;

// Numbers of a row lie in blocks: `columns` of them in `bytes` bytes (ggml's block structs).
struct StoredBlock {
  uint32_t columns, bytes;
};
constexpr StoredBlock BlockOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return {1, 4};
    case DType::kF16:
    case DType::kBf16:
      return {1, 2};
    case DType::kQ4_0:
    case DType::kIq4Nl:
      return {32, 18};
    case DType::kQ4_1:
      return {32, 20};
    case DType::kQ5_0:
      return {32, 22};
    case DType::kQ5_1:
      return {32, 24};
    case DType::kQ8_0:
      return {32, 34};
    case DType::kQ4K:
      return {256, 144};
    case DType::kQ5K:
      return {256, 176};
    case DType::kQ6K:
      return {256, 210};
    case DType::kI8:
      break;
  }
  return {1, 1};
}
constexpr bool IsQuantised(DType dtype) { return LayoutOf(dtype).quantised(); }

// Returns the bytes of `count` numbers, whole blocks.
constexpr uint64_t StoredBytes(DType dtype, uint64_t count) {
  return count / BlockOf(dtype).columns * BlockOf(dtype).bytes;
}

// Integers that stand for the quotients integer / scale in f32, as CTranslate2 stores weights.
struct ScaledIntegers {
  const std::byte* data = nullptr;    // of the first row; little endian; may be unaligned
  uint32_t bytes = 1;                 // of an integer: 1 or 2
  const std::byte* scales = nullptr;  // f32, not 0: of the first row, or of all rows
  bool is_scale_of_row = false;       // each row has one
};

struct TensorView {
  std::string name;  // in its file, for messages
  DType dtype = DType::kF32;
  std::vector<uint64_t> shape;      // row-major, outermost first: a weight is [out, in]
  const std::byte* data = nullptr;  // little endian; may be unaligned
  bool less_one = false;            // a norm whose weights are 1 + these numbers, rounded once
  // A matrix of integers, which are computed in f32 as dtype says; then data is nullptr.
  std::optional<ScaledIntegers> integers;
  uint64_t num_elements() const {
    uint64_t n = 1;
    for (uint64_t d : shape) n *= d;
    return n;
  }
  uint64_t num_bytes() const { return StoredBytes(dtype, num_elements()); }
  uint64_t row_bytes() const { return StoredBytes(dtype, shape.back()); }
};

// A tensor of a model, mostly a weight matrix [out, in], and how its rows are stored.
struct MatrixSource {
  TensorView view;
  // GGUF's `llama` stores rows of Wq, Wk so that RoPE pairs neighbours (2i, 2i+1) within a head:
  // true means that stored row 2i + j of a head is row i + j * head_dim/2 of ours. (Also for
  // biases.)
  bool interleaved_rope_rows = false;
  // Numbers between two neighbours of a row. More than 1: the tensor is stored as [in, out]
  // (GPT-2's Conv1D), and the view has our shape and begins at its first number.
  uint64_t column_stride = 1;
};

// Types that a weight matrix may have, for messages. Vectors are F32, F16 or BF16.
inline constexpr const char* kWeightTypes =
    "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K or IQ4_NL";

// A tensor as its file describes it, whatever its number type.
struct StoredTensor {
  std::string name;
  std::string type;             // in the file's words: "BF16", "Q4_K"
  std::optional<DType> dtype;   // absent: a type that weights cannot have
  std::vector<uint64_t> shape;  // row-major, outermost first
  std::span<const std::byte> bytes;
  std::string file;                        // for messages
  std::optional<ScaledIntegers> integers;  // TensorView::integers; then `bytes` is empty
};

}  // namespace kvasir
