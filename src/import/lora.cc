#include "import/lora.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/mapped_file.h"
#include "base/result.h"
#include "import/lora_parts.h"

namespace kvasir {
namespace {

namespace fs = std::filesystem;

std::span<const std::byte> BytesOfNumbers(const std::vector<float>& numbers) {
  return std::as_bytes(std::span(numbers));
}

// Removes the changes whose scale in the file is 0.
Status DropWithoutScale(const std::string& where, std::vector<LoraPair>& pairs) {
  std::erase_if(pairs, [](const LoraPair& pair) { return pair.scale == 0; });
  if (!pairs.empty()) return {};
  return Fail(Code::kInvalidArgument, "{}: the adapter changes no matrix: {}", where,
              "it has no lora_A and lora_B with an alpha other than 0");
}

}  // namespace

Digest LoraNumbersDigest(const std::vector<LoraPair>& pairs) {
  Sha256 sha;
  sha.Update("kvasir adapter numbers 1\n").UpdateU64(pairs.size());
  for (const LoraPair& pair : pairs) {
    sha.UpdateU64(pair.layer).UpdateU64(static_cast<uint64_t>(pair.target));
    sha.UpdateU64(pair.rank).UpdateU64(pair.in).UpdateU64(pair.out);
    sha.Update(BytesOfNumbers(pair.a)).Update(BytesOfNumbers(pair.b));
  }
  return sha.Finish();
}

uint32_t LoraAdapter::max_rank() const {
  uint32_t rank = 0;
  for (const LoraPair& pair : pairs) rank = std::max(rank, pair.rank);
  return rank;
}

Digest LoraDigest(const LoraAdapter& adapter, double scale) {
  Sha256 sha;
  sha.Update("kvasir adapter 1\n").Update(std::as_bytes(std::span(adapter.numbers)));
  for (const LoraPair& pair : adapter.pairs) {
    sha.UpdateU64(std::bit_cast<uint32_t>(LoraFactor(pair.scale, scale)));
  }
  return sha.Finish();
}

Result<LoraAdapter> ReadLora(const fs::path& path, const ModelConfig& config) {
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
            is_folder ? ReadPeftLora(path, config) : ReadGgufLora(path, config));
  KV_TRY(DropWithoutScale(path.string(), adapter.pairs));
  std::ranges::sort(adapter.pairs, {}, [](const LoraPair& pair) {
    return std::pair(pair.layer, static_cast<uint32_t>(pair.target));
  });
  adapter.numbers = LoraNumbersDigest(adapter.pairs);
  return adapter;
}

}  // namespace kvasir
