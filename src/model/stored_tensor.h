// StoredTensor: a tensor as its file describes it, whatever its number type.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/tensor_view.h"

namespace kvasir {

struct StoredTensor {
  std::string name;
  std::string type;             // in the file's words: "BF16", "Q4_K"
  std::optional<DType> dtype;   // absent: a type that weights cannot have (yet)
  std::vector<uint64_t> shape;  // row-major, outermost first
  std::span<const std::byte> bytes;
  std::string file;  // for messages
};

}  // namespace kvasir
