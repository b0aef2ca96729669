// Hugging Face folders: config.json, safetensors in one or many files, tokenizer files.
#pragma once

#include <filesystem>

#include "kvasir/status.h"
#include "model/importer.h"

namespace kvasir {

// As ImportModel, for a folder.
Result<ImportedModel> ImportHfFolder(const std::filesystem::path& folder);

}  // namespace kvasir
