#include "import/shard_index.h"

#include <nlohmann/json.hpp>

#include "base/file_name.h"
#include "base/json_object.h"
#include "base/mapped_file.h"
#include "base/result.h"

namespace kvasir {

Result<ShardIndex> ReadShardIndex(const std::filesystem::path& index) {
  KV_ASSIGN(const std::string text, ReadTextFile(index, kMaxShardIndexBytes));
  KV_ASSIGN(const nlohmann::json object, ParseJsonObject(text, index.string()));
  const auto map = object.find("weight_map");
  if (map == object.end() || !map->is_object()) {
    return Fail(Code::kCorruption, "{}: weight_map is missing or not an object", index.string());
  }
  ShardIndex tensors_of_shard;
  for (const auto& [tensor, shard] : map->items()) {
    const auto* name = shard.get_ptr<const std::string*>();
    if (name == nullptr || !IsSafeFile(*name) || !name->ends_with(".safetensors")) {
      return Fail(Code::kCorruption,
                  "{}: tensor '{}' must name a .safetensors file in the same folder (no absolute "
                  "path, no '..')",
                  index.string(), Printable(tensor));
    }
    tensors_of_shard[*name].push_back(tensor);
  }
  return tensors_of_shard;
}

}  // namespace kvasir
