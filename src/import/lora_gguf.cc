// Adapters in GGUF files, as llama.cpp's convert_lora_to_gguf.py writes them.
#include "base/mapped_file.h"
#include "base/result.h"
#include "import/gguf_metadata.h"
#include "import/importer.h"
#include "import/lora_parts.h"

namespace kvasir {
namespace {

constexpr std::string_view kGgufA = ".lora_a", kGgufB = ".lora_b";

// Checks what the metadata must say: an adapter, of the kind LoRA, for the model's architecture.
Status CheckLoraKind(const GgufFile& gguf, const std::string& file, const ModelConfig& config) {
  Metadata metadata(gguf, "", file);
  const std::string type = metadata.Text("general.type").value_or("model");
  const std::string kind = metadata.Text("adapter.type").value_or("");
  const std::string name = metadata.Text("general.architecture").value_or("");
  KV_TRY(metadata.status());
  if (type != "adapter") {
    return Fail(Code::kInvalidArgument,
                "{}: is not an adapter: its general.type is '{}', not 'adapter'", file, type);
  }
  if (kind != "lora") {
    return Fail(Code::kUnsupported, "{}: adapter.type is '{}'; only 'lora' is supported", file,
                kind);
  }
  if (gguf.metadata.contains("adapter.alora.invocation_tokens")) {
    return Fail(Code::kUnsupported,
                "{}: adapter.alora.invocation_tokens: activated adapters are not supported", file);
  }
  const Architecture& row = ArchitectureOf(config);
  if (name == row.gguf_name && !name.empty()) return {};
  return Fail(Code::kInvalidArgument,
              "{}: is an adapter for the architecture '{}', but the model is '{}'", file, name,
              row.gguf_name.empty() ? row.name : row.gguf_name);
}

// Returns whether converters store rows of q and k interleaved, for all rows of the table of that
// name.
bool StoresInterleaved(const ModelConfig& config) {
  const std::string_view name = ArchitectureOf(config).gguf_name;
  for (const Architecture& row : Architectures()) {
    if (row.gguf_name == name) return row.gguf_interleaved_rope_rows;
  }
  return false;
}

// Absent: the scale is 1. llama.cpp takes an alpha of 0 so too.
Result<std::optional<double>> GgufAlphaOf(const GgufFile& gguf, const std::string& file) {
  Metadata metadata(gguf, "adapter.lora.", file);
  const double alpha = metadata.Number("alpha", 0.0);
  KV_TRY(metadata.status());
  if (alpha == 0) return std::nullopt;
  return alpha;
}

}  // namespace

Result<LoraAdapter> OpenGgufLora(const std::filesystem::path& path, const ModelConfig& config) {
  const std::string file = path.string();
  if (path.extension() == ".bin" || path.extension() == ".pt") {
    return Fail(Code::kUnsupported,
                "{}: PyTorch files are not supported: save the adapter as safetensors, and give "
                "its folder",
                file);
  }
  if (path.extension() == ".safetensors") {
    return Fail(Code::kInvalidArgument,
                "{}: give the folder of an adapter, with its adapter_config.json", file);
  }
  KV_ASSIGN(const std::shared_ptr<const MappedFile> mapped, MappedFile::Open(path));
  KV_TRY(CheckNoLfsPointer(mapped->bytes(), file));
  KV_ASSIGN(GgufFile gguf, ParseGguf(mapped->bytes(), file));
  KV_TRY(CheckLoraKind(gguf, file, config));
  KV_ASSIGN(const std::optional<double> alpha, GgufAlphaOf(gguf, file));
  StoredLoras loras;
  for (StoredTensor& tensor : gguf.tensors) {
    const bool is_b = tensor.name.ends_with(kGgufB);
    if (!is_b && !tensor.name.ends_with(kGgufA)) {
      return Fail(Code::kUnsupported,
                  "{}: tensor '{}': only tensors that end in .lora_a and .lora_b are supported",
                  file, tensor.name);
    }
    const std::string weight = tensor.name.substr(0, tensor.name.size() - kGgufA.size());
    KV_TRY(AddHalf(weight, weight, is_b, std::move(tensor), loras));
  }
  for (auto& [weight, lora] : loras) lora.alpha = alpha;
  KV_ASSIGN(LoraAdapter adapter,
            BindLoras(loras, NameStyle::kGguf, StoresInterleaved(config), file, config));
  adapter.file = mapped;
  return adapter;
}

}  // namespace kvasir
