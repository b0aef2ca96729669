// GGUF files: metadata and tensors in one file.
#pragma once

#include <filesystem>
#include <string>

#include "import/gguf.h"
#include "import/importer.h"
#include "kvasir/status.h"

namespace kvasir {

// Imports a file as ImportModel does.
Result<ImportedModel> ImportGgufFile(const std::filesystem::path& path, Need need);

// Returns the config that a parsed file describes; `file` names it in errors.
Result<ModelConfig> GgufConfig(const GgufFile& gguf, const std::string& file);
// Returns the config, tensors and chat template. The views borrow from what `gguf` was parsed from.
Result<ImportedModel> ModelFromGguf(GgufFile gguf, const std::string& file);

}  // namespace kvasir
