// safetensors: the header of a weight file, checked as untrusted input.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "import/tensor_view.h"
#include "kvasir/status.h"

namespace kvasir {

// Reads the format (https://github.com/huggingface/safetensors):
//   file   := u64 header_bytes (little endian)  header  data
//   header := JSON object {name: {"dtype": D, "shape": [n...], "data_offsets": [begin, end]}}
//             with an optional "__metadata__": {string: string}
// header_bytes is at most 100 MB; offsets count from the start of data, and the tensors cover data
// without gaps, overlaps or a rest; end - begin == product(shape) * bytes of D.
//
// Returns the tensors by ascending offset, views into `bytes`. `file` names it in errors:
// kCorruption when the header is wrong, kUnsupported for an unknown dtype. O(header).
Result<std::vector<StoredTensor>> ParseSafetensors(std::span<const std::byte> bytes,
                                                   const std::string& file);

}  // namespace kvasir
