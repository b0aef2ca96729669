#include "import/pooling_files.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "base/json_object.h"
#include "base/mapped_file.h"
#include "base/result.h"
#include "import/gguf_metadata.h"

namespace kvasir {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr uint64_t kMaxPoolingBytes = 64 << 10;
constexpr std::string_view kMode = "pooling_mode";

tl::unexpected<Error> OtherPooling(const std::string& file, std::string_view name) {
  return Fail(Code::kUnsupported,
              "{}: the pooling '{}' is not supported (supported: last, mean); --pooling takes "
              "another one",
              file, name.substr(0, 80));
}

// Finds a pooling by its names in sentence-transformers.
Result<Pooling> PoolingNamed(std::string_view name, const std::string& file) {
  if (name == "lasttoken" || name == "last_token") return Pooling::kLast;
  if (name == "mean" || name == "mean_tokens") return Pooling::kMean;
  return OtherPooling(file, name);
}

}  // namespace

// Parses newer files, which have one "pooling_mode", and older ones, which have a flag
// "pooling_mode_X" for each kind.
Result<Pooling> ParsePoolingConfig(std::string_view text, const std::string& file) {
  KV_ASSIGN(const json object, ParseJsonObject(text, file));
  std::vector<std::string> names;
  for (const auto& [key, value] : object.items()) {
    if (key == kMode && value.is_string()) names.push_back(value.get<std::string>());
    const bool is_flag = key.starts_with(kMode) && key.size() > kMode.size() + 1;
    if (is_flag && value.is_boolean() && value.get<bool>()) {
      names.push_back(key.substr(kMode.size() + 1));
    }
  }
  if (names.empty()) return Fail(Code::kCorruption, "{}: names no pooling", file);
  if (names.size() > 1) return OtherPooling(file, names[0] + " and " + names[1]);
  return PoolingNamed(names[0], file);
}

Result<std::optional<Pooling>> FolderPooling(const fs::path& folder) {
  const fs::path path = folder / "1_Pooling" / "config.json";
  KV_ASSIGN(const bool exists, Exists(path));
  if (!exists) return std::nullopt;
  KV_ASSIGN(const std::string text, ReadTextFile(path, kMaxPoolingBytes));
  return ParsePoolingConfig(text, "1_Pooling/config.json");
}

Result<std::optional<Pooling>> GgufPooling(const GgufFile& gguf, const std::string& file) {
  static constexpr const char* kNames[] = {"none", "mean", "cls", "last", "rank"};
  Metadata general(gguf, "general.", file);
  Metadata keys(gguf, general.Text("architecture").value_or("") + ".", file);
  const GgufValue* value = keys.Find("pooling_type");
  const std::optional<uint64_t> kind = value == nullptr ? 0 : WholeNumber(*value);
  if (!kind || *kind == 0) return std::nullopt;  // -1: unspecified
  if (*kind == 1) return Pooling::kMean;
  if (*kind == 3) return Pooling::kLast;
  return OtherPooling(file, *kind < std::size(kNames) ? kNames[*kind] : std::to_string(*kind));
}

}  // namespace kvasir
