#include "hub/shard_index.h"

#include <set>

#include "base/json_tree.h"
#include "base/mapped_file.h"
#include "base/result.h"
#include "hub/repo_ref.h"

namespace kvasir::hub {

Result<std::vector<std::string>> ReadShardNames(const std::filesystem::path& index) {
  KV_ASSIGN(const std::string text, ReadTextFile(index, kMaxIndexBytes));
  JsonTree tree;
  const std::optional<JsonValue> root = tree.Parse(text);
  const JsonValue* map = root ? root->Find("weight_map") : nullptr;
  if (map == nullptr || !map->is_object()) {
    return Fail(Code::kCorruption, "{}: weight_map is missing or not an object", index.string());
  }
  std::set<std::string, std::less<>> names;
  for (const auto& [tensor, shard] : map->members()) {
    if (shard.is_string() && names.contains(shard.text())) continue;
    if (!shard.is_string() || !IsSafeFile(shard.text()) ||
        !shard.text().ends_with(".safetensors")) {
      return Fail(Code::kCorruption,
                  "{}: tensor '{}' must name a .safetensors file in the same folder (no absolute "
                  "path, no '..')",
                  index.string(), Printable(tensor));
    }
    names.emplace(shard.text());
  }
  return std::vector<std::string>(names.begin(), names.end());
}

}  // namespace kvasir::hub
