// The index of a folder of safetensors: which files its weights lie in.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/status.h"

namespace kvasir::hub {

inline constexpr std::string_view kSingleFile = "model.safetensors";  // has no index
inline constexpr std::string_view kIndexFile = "model.safetensors.index.json";
inline constexpr uint64_t kMaxIndexBytes = uint64_t{64} << 20;  // 500,000 tensors

// The files that weight_map names, in order, each once. kCorruption: the file is not such an index,
// or names a file that is not safe (IsSafeFile) or not called *.safetensors. kIoError: it cannot be
// read. O(n log n).
Result<std::vector<std::string>> ReadShardNames(const std::filesystem::path& index);

}  // namespace kvasir::hub
