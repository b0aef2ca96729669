// Adapters in folders, as PEFT (https://github.com/huggingface/peft) saves them.
#include <algorithm>
#include <cmath>
#include <map>

#include "base/json_object.h"
#include "base/mapped_file.h"
#include "base/result.h"
#include "import/hf_fields.h"
#include "import/importer.h"
#include "import/lora_parts.h"
#include "import/safetensors.h"
#include "text/regex.h"

namespace kvasir {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr uint64_t kMaxAdapterConfigBytes = uint64_t{1} << 20;
constexpr uint32_t kDefaultPeft = 8;  // of r and lora_alpha
constexpr std::string_view kPeftPrefix = "base_model.model.";

// What adapter_config.json says.
struct PeftConfig {
  uint32_t rank = kDefaultPeft;
  double alpha = kDefaultPeft;
  bool is_root = false;
  bool has_rank_pattern = false;
  std::vector<std::pair<Regex, double>> alpha_pattern;
};

// Refuses keys that change what is computed, unless they have the value that changes nothing.
Status CheckPlainPeft(const Fields& fields, const std::string& file) {
  const auto is_empty = [](const json& value) {
    return value == false || (value.is_structured() && value.empty()) || value == "none";
  };
  for (const char* key :
       {"use_dora", "lora_bias", "bias", "modules_to_save", "alora_invocation_tokens",
        "trainable_token_indices", "layer_replication", "use_qalora", "megatron_config",
        "corda_config", "target_parameters", "arrow_config", "use_bdlora"}) {
    const json* value = fields.Find(key);
    if (value == nullptr || is_empty(*value)) continue;
    return Fail(Code::kUnsupported, "{}: {} is {}; only adapters without it are supported", file,
                key, Fields::Show(*value));
  }
  // PEFT changes the model's own weights when it loads such an adapter.
  const json* start = fields.Find("init_lora_weights");
  const std::string kind = start != nullptr && start->is_string() ? start->get<std::string>() : "";
  for (const char* changing : {"pissa", "olora", "corda", "loftq"}) {
    if (!kind.starts_with(changing)) continue;
    return Fail(Code::kUnsupported,
                "{}: init_lora_weights is '{}', which changes the model's own weights; convert the "
                "adapter to LoRA (save_pretrained with path_initial_model_for_weight_conversion)",
                file, kind);
  }
  return {};
}

// Compiles a key of a pattern, which names modules by their ends, by parts between dots; or from
// the beginning, where it begins with ^ (PEFT's get_pattern_key).
Result<Regex> PeftModulesOf(const std::string& key, const std::string& file) {
  auto regex = Regex::Compile(key.starts_with('^') ? "(?:" + key + ")" : "^(.*\\.)?(" + key + ")$");
  if (regex) return regex;
  return Fail(Code::kUnsupported,
              "{}: alpha_pattern '{}': is not a regular expression that is supported", file, key);
}

Result<PeftConfig> ParsePeftConfig(const std::string& text, const std::string& file) {
  KV_ASSIGN(const json object, ParseJsonObject(text, file));
  Fields fields(object, file);
  const std::string type = fields.Text("peft_type", "");
  KV_TRY(fields.status());
  if (type != "LORA") {
    return Fail(Code::kUnsupported, "{}: peft_type is '{}'; only LORA is supported", file, type);
  }
  KV_TRY(CheckPlainPeft(fields, file));
  PeftConfig config;
  config.rank = fields.Count("r", kMaxLoraRank, kDefaultPeft);
  config.alpha = fields.Number("lora_alpha", kDefaultPeft);
  config.is_root = fields.Flag("use_rslora", false);
  KV_TRY(fields.status());
  const json* ranks = fields.Find("rank_pattern");
  if (ranks != nullptr && !ranks->is_object()) {
    return Fail(Code::kInvalidArgument, "{}: rank_pattern must be an object", file);
  }
  config.has_rank_pattern = ranks != nullptr && !ranks->empty();
  const json* alphas = fields.Find("alpha_pattern");
  if (alphas == nullptr) return config;
  if (!alphas->is_object()) {
    return Fail(Code::kInvalidArgument, "{}: alpha_pattern must be an object", file);
  }
  for (const auto& [key, value] : alphas->items()) {
    if (!value.is_number()) {
      return Fail(Code::kInvalidArgument, "{}: alpha_pattern '{}' is {}; it must be a number", file,
                  key, Fields::Show(value));
    }
    KV_ASSIGN(Regex regex, PeftModulesOf(key, file));
    config.alpha_pattern.emplace_back(std::move(regex), value.get<double>());
  }
  return config;
}

// Returns alpha of a module. PEFT takes the first key that fits; keys that contradict each other
// are refused, since JSON objects have no order.
Result<double> PeftAlphaOf(const PeftConfig& config, const std::string& module,
                           const std::string& file) {
  std::optional<double> alpha;
  for (const auto& [regex, value] : config.alpha_pattern) {
    KV_ASSIGN(const std::optional<TextMatch> match, Regex::Finder(regex, module).Next());
    if (!match || match->begin != 0) continue;
    if (alpha && *alpha != value) {
      return Fail(Code::kInvalidArgument,
                  "{}: two keys of alpha_pattern fit '{}', with {} and {}; give it one", file,
                  module, *alpha, value);
    }
    alpha = value;
  }
  return alpha.value_or(config.alpha);
}

// Returns the name in the architecture table of a tensor that PEFT calls `name`: without the
// family's prefix, which its names have; of a model that also sees images, the language model's.
std::string PeftTableName(std::string name, const Architecture& row) {
  constexpr std::string_view kOld = "language_model.", kNew = "model.language_model.";
  if (row.text_config && name.starts_with(kNew)) name = "model." + name.substr(kNew.size());
  if (row.text_config && name.starts_with(kOld)) name.erase(0, kOld.size());
  if (!row.hf_prefix.empty() && name.starts_with(row.hf_prefix))
    name.erase(0, row.hf_prefix.size());
  return name;
}

// "base_model.model.M.lora_A.weight" is half A of module M.
struct PeftName {
  std::string module;
  bool is_b;
};
Result<PeftName> ParsePeftName(const std::string& name, const std::string& file) {
  const auto refuse = [&](std::string_view what) {
    return Fail(Code::kUnsupported, "{}: tensor '{}': {}", file, name, what);
  };
  if (name.find("lora_magnitude_vector") != name.npos) return refuse("use_dora is not supported");
  if (name.find("lora_embedding_") != name.npos) {
    return refuse("adapters of the embedding are not supported");
  }
  if (name.ends_with(".bias")) return refuse("biases (lora_bias, bias) are not supported");
  for (const bool is_b : {false, true}) {
    const std::string_view end = is_b ? ".lora_B.weight" : ".lora_A.weight";
    if (!name.starts_with(kPeftPrefix) || !name.ends_with(end)) continue;
    if (name.size() <= kPeftPrefix.size() + end.size()) continue;
    return PeftName{name.substr(kPeftPrefix.size(), name.size() - kPeftPrefix.size() - end.size()),
                    is_b};
  }
  return refuse(
      "only base_model.model.*.lora_A.weight and .lora_B.weight are supported; whole modules "
      "(modules_to_save) are not");
}

Status CheckHasWeights(const fs::path& folder, const fs::path& weights) {
  KV_ASSIGN(const bool exists, Exists(weights));
  if (exists) return {};
  KV_ASSIGN(const bool has_bin, Exists(folder / "adapter_model.bin"));
  if (has_bin) {
    return Fail(Code::kUnsupported,
                "{}: has only adapter_model.bin; PyTorch files are not supported: save the adapter "
                "as safetensors",
                folder.string());
  }
  return Fail(Code::kNotFound, "{}: has no adapter_model.safetensors", folder.string());
}

}  // namespace

Result<LoraAdapter> OpenPeftLora(const fs::path& folder, const ModelConfig& config) {
  const fs::path config_path = folder / "adapter_config.json";
  const fs::path weights_path = folder / "adapter_model.safetensors";
  KV_ASSIGN(const bool exists, Exists(config_path));
  if (!exists) {
    return Fail(Code::kNotFound,
                "{}: has no adapter_config.json; an adapter is a folder with that and "
                "adapter_model.safetensors, or a GGUF file",
                folder.string());
  }
  KV_ASSIGN(const std::string text, ReadTextFile(config_path, kMaxAdapterConfigBytes));
  KV_ASSIGN(const PeftConfig peft, ParsePeftConfig(text, config_path.string()));
  KV_TRY(CheckHasWeights(folder, weights_path));
  const std::string file = weights_path.string();
  KV_ASSIGN(const std::shared_ptr<const MappedFile> mapped, MappedFile::Open(weights_path));
  KV_TRY(CheckNoLfsPointer(mapped->bytes(), file));
  KV_ASSIGN(std::vector<StoredTensor> tensors, ParseSafetensors(mapped->bytes(), file));
  const Architecture& row = ArchitectureOf(config);
  StoredLoras loras;
  for (StoredTensor& tensor : tensors) {
    KV_ASSIGN(PeftName name, ParsePeftName(tensor.name, file));
    const std::string weight = PeftTableName(name.module, row) + ".weight";
    KV_TRY(AddHalf(weight, std::move(name.module), name.is_b, std::move(tensor), loras));
  }
  for (auto& [weight, lora] : loras) {
    KV_ASSIGN(lora.alpha, PeftAlphaOf(peft, lora.shown, config_path.string()));
    lora.is_root = peft.is_root;
    if (!peft.has_rank_pattern) lora.rank = peft.rank;
  }
  KV_ASSIGN(LoraAdapter adapter, BindLoras(loras, NameStyle::kHuggingFace, false, file, config));
  adapter.file = mapped;
  return adapter;
}

}  // namespace kvasir
