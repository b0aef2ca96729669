#include "hub/shard_index.h"

#include "base/result.h"

namespace kvasir::hub {

Result<std::vector<std::string>> ReadShardNames(const std::filesystem::path& index) {
  KV_ASSIGN(const ShardIndex tensors_of_shard, ReadShardIndex(index));
  std::vector<std::string> names;
  for (const auto& [name, tensors] : tensors_of_shard) names.push_back(name);
  return names;
}

}  // namespace kvasir::hub
