// A GGUF file that may be split into parts, which lie in one folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "base/mapped_file.h"
#include "base/part_name.h"
#include "import/gguf.h"
#include "kvasir/status.h"

namespace kvasir {

// Returns the name of a part of a split model, without its folder. Absent for a file with another
// name.
std::optional<PartName> PartOf(const std::filesystem::path& path);

// The metadata of the first part, with the tensors of all parts, which borrow from `files`.
struct OpenedGguf {
  GgufFile gguf;
  uint32_t num_parts = 1;  // 1: the file is not split
  std::vector<std::shared_ptr<const MappedFile>> files;
};
// `path`: the first part. Errors name the part that is missing or wrong.
Result<OpenedGguf> OpenGguf(const std::filesystem::path& path, GgufExtent extent);

}  // namespace kvasir
