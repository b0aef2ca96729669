// Hugging Face folders: config.json, safetensors in one or many files, tokenizer files.
#pragma once

#include <filesystem>

#include "import/importer.h"
#include "kvasir/status.h"

namespace kvasir {

// As ImportModel, for a folder.
Result<ImportedModel> ImportHfFolder(const std::filesystem::path& folder);

}  // namespace kvasir
