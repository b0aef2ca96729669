#include "import/lora.h"

#include <algorithm>

#include "base/mapped_file.h"
#include "base/result.h"
#include "import/lora_parts.h"

namespace kvasir {
namespace {

namespace fs = std::filesystem;

// Removes the changes whose scale in the file is 0.
Status DropWithoutScale(const std::string& where, std::vector<LoraPair>& pairs) {
  std::erase_if(pairs, [](const LoraPair& pair) { return pair.scale == 0; });
  if (!pairs.empty()) return {};
  return Fail(Code::kInvalidArgument, "{}: the adapter changes no matrix: {}", where,
              "it has no lora_A and lora_B with an alpha other than 0");
}

}  // namespace

uint32_t LoraAdapter::max_rank() const {
  uint32_t rank = 0;
  for (const LoraPair& pair : pairs) rank = std::max(rank, pair.rank);
  return rank;
}

Result<LoraAdapter> OpenLora(const fs::path& path, const ModelConfig& config) {
  if (config.encoder) {
    return Fail(Code::kUnsupported,
                "{}: adapters of encoder-decoder models are not supported; leave --lora out",
                path.string());
  }
  KV_ASSIGN(const bool exists, Exists(path));
  if (!exists) {
    return Fail(Code::kNotFound,
                "{}: does not exist; an adapter is a folder with adapter_config.json and "
                "adapter_model.safetensors, or a GGUF file",
                path.string());
  }
  std::error_code error;
  const bool is_folder = fs::is_directory(path, error);
  KV_ASSIGN(LoraAdapter adapter,
            is_folder ? OpenPeftLora(path, config) : OpenGgufLora(path, config));
  KV_TRY(DropWithoutScale(path.string(), adapter.pairs));
  std::ranges::sort(adapter.pairs, {}, [](const LoraPair& pair) {
    return std::pair(pair.layer, static_cast<uint32_t>(pair.target));
  });
  return adapter;
}

}  // namespace kvasir
