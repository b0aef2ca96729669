// Hugging Face folders: config.json, safetensors in one or many files, tokenizer files.
#pragma once

#include <filesystem>

#include "kvasir/status.h"
#include "model/importer.h"

namespace kvasir {

// As ImportModel and ReadModelConfig, for a folder.
Result<ImportedModel> ImportHfFolder(const std::filesystem::path& folder);
Result<ModelConfig> ReadHfFolderConfig(const std::filesystem::path& folder);

}  // namespace kvasir
