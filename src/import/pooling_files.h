// What a model's files say of pooling: how the rows of a text become its embedding.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "import/gguf.h"
#include "kvasir/pooling.h"
#include "kvasir/status.h"

namespace kvasir {

// Reads 1_Pooling/config.json of a folder, as sentence-transformers writes it. Absent: the folder
// has none. kUnsupported: another kind of pooling; kCorruption: the file is damaged.
Result<std::optional<Pooling>> FolderPooling(const std::filesystem::path& folder);
// Parses the text of such a file.
Result<Pooling> ParsePoolingConfig(std::string_view text, const std::string& file);

// Reads `*.pooling_type` of a GGUF file. Absent: the file does not say. kUnsupported: another kind.
Result<std::optional<Pooling>> GgufPooling(const GgufFile& gguf, const std::string& file);

}  // namespace kvasir
