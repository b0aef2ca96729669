// The index of a folder of safetensors: which files its weights lie in.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "import/shard_index.h"
#include "kvasir/status.h"

namespace kvasir::hub {

inline constexpr std::string_view kSingleFile = "model.safetensors";  // has no index
inline constexpr std::string_view kIndexFile = kShardIndexFile;
inline constexpr uint64_t kMaxIndexBytes = kMaxShardIndexBytes;

// Returns the files that weight_map names, in order, each once. Errors as ReadShardIndex. O(n log
// n).
Result<std::vector<std::string>> ReadShardNames(const std::filesystem::path& index);

}  // namespace kvasir::hub
