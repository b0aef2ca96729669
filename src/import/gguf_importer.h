// GGUF files: metadata and tensors in one file.
#pragma once

#include <filesystem>
#include <string>

#include "import/gguf.h"
#include "import/importer.h"
#include "kvasir/status.h"

namespace kvasir {

// A part of a split model by the name of its file: STEM-00001-of-00003.gguf.
struct GgufPart {
  std::string stem;
  uint32_t number, count;  // number: from 1

  std::string FileName(uint32_t of_number) const;
};
// Absent for a file with another name.
std::optional<GgufPart> PartOf(const std::filesystem::path& path);

// As ImportModel, for a file.
Result<ImportedModel> ImportGgufFile(const std::filesystem::path& path, Need need);

// The config that a parsed file describes; `file` names it in errors.
Result<ModelConfig> GgufConfig(const GgufFile& gguf, const std::string& file);
// Config, tensors and chat template. The views borrow from what `gguf` was parsed from.
Result<ImportedModel> ModelFromGguf(GgufFile gguf, const std::string& file);

}  // namespace kvasir
