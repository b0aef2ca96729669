// GGUF: metadata and tensor table of a file, checked as untrusted input.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "import/tensor_view.h"
#include "kvasir/status.h"

namespace kvasir {

// Elements of an array, in the file's encoding (checked to be whole), to be decoded by who needs
// them: a vocabulary has 128,000 strings that most callers never look at.
struct GgufArray {
  uint32_t element_type = 0;
  uint64_t count = 0;
  std::span<const std::byte> bytes;
  uint32_t count_bytes = 8;  // of a count inside: 4 in version 1
};

// u8-u64 are uint64_t, i8-i64 int64_t, f32 and f64 double.
using GgufValue = std::variant<uint64_t, int64_t, double, bool, std::string, GgufArray>;

struct GgufFile {
  uint32_t version = 0;
  std::map<std::string, GgufValue, std::less<>> metadata;
  std::vector<StoredTensor> tensors;  // by ascending offset
};

// The format (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md), little endian:
//   file   := "GGUF" u32 version  count num_tensors  count num_pairs  pair*  tensor*  padding  data
//   pair   := string key  u32 type  value
//   tensor := string name  u32 rank  count dims[rank] (innermost first)  u32 type  u64 offset
//   string := count bytes;  array value := u32 type  count values*
//   count  := u32 in version 1, u64 in versions 2 and 3
// Offsets count from the start of data and are multiples of general.alignment (32 if absent).
//
// Returns views into `bytes`. `file` names it in errors: kCorruption when the file lies,
// kUnsupported for big-endian files, other versions and unknown tensor types. O(header).
// kHeader: tensors whose bytes are not in the file have none.
enum class GgufExtent { kWhole, kHeader };
Result<GgufFile> ParseGguf(std::span<const std::byte> bytes, const std::string& file,
                           GgufExtent extent = GgufExtent::kWhole);

// Returns a string of an array of strings; absent where the index is beyond its end. O(index).
std::optional<std::string> StringAt(const GgufArray& array, uint64_t index);

// Returns all strings of an array of them; absent: it is another array. O(bytes).
std::optional<std::vector<std::string>> StringsOf(const GgufArray& array);
// Returns all numbers of an array of any numeric type; absent: it is another array. O(count).
std::optional<std::vector<double>> NumbersOf(const GgufArray& array);

}  // namespace kvasir
