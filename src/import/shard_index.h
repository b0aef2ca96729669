// The index of a folder of safetensors: which file holds which tensor.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/status.h"

namespace kvasir {

inline constexpr std::string_view kShardIndexFile = "model.safetensors.index.json";
inline constexpr uint64_t kMaxShardIndexBytes = uint64_t{64} << 20;  // 500,000 tensors

using ShardIndex = std::map<std::string, std::vector<std::string>>;  // file -> its tensors

// Reads its weight_map. kCorruption: the file is not such an index, or names a file that is not
// safe (IsSafeFile) or not called *.safetensors. kNotFound, kIoError: as ReadTextFile. O(n log n).
Result<ShardIndex> ReadShardIndex(const std::filesystem::path& index);

}  // namespace kvasir
