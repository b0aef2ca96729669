// StoredTensor: a tensor as its file describes it, whatever its number type.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/tensor_view.h"

namespace kvasir {

// Types that a weight matrix may have, for messages. Vectors are F32, F16 or BF16.
inline constexpr const char* kWeightTypes =
    "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K or IQ4_NL";

struct StoredTensor {
  std::string name;
  std::string type;             // in the file's words: "BF16", "Q4_K"
  std::optional<DType> dtype;   // absent: a type that weights cannot have
  std::vector<uint64_t> shape;  // row-major, outermost first
  std::span<const std::byte> bytes;
  std::string file;  // for messages
};

}  // namespace kvasir
