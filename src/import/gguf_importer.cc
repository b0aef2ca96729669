#include "import/gguf_importer.h"

#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "base/result.h"
#include "import/architecture.h"
#include "import/experts.h"
#include "import/gguf_metadata.h"
#include "import/gguf_vocabulary.h"
#include "import/tensor_binding.h"
#include "import/tokenizer_files.h"
#include "simd/math.h"

namespace kvasir {
namespace {

namespace fs = std::filesystem;

const StoredTensor* FindTensor(const GgufFile& gguf, const std::string& name) {
  const auto found = std::ranges::find(gguf.tensors, name, &StoredTensor::name);
  return found == gguf.tensors.end() ? nullptr : &*found;
}

Result<const Architecture*> FindArchitecture(const GgufFile& gguf, const std::string& file) {
  Metadata general(gguf, "general.", file);
  const std::string name = general.Text("architecture", "none");
  KV_TRY(general.status());
  Metadata keys(gguf, name + ".", file);
  const GgufValue* count = keys.Find("expert_count");
  const bool experts = count != nullptr && WholeNumber(*count) != 0;
  const Architecture* dense = nullptr;
  for (const Architecture& row : Architectures()) {
    if (row.gguf_name != name) continue;
    if (row.experts == experts) return &row;
    dense = &row;
  }
  if (dense != nullptr) {
    return Fail(Code::kUnsupported, "{}: architecture '{}' {} experts is not supported", file, name,
                experts ? "with" : "without");
  }
  return Fail(Code::kUnsupported, "{}: architecture '{}' is not supported yet; supported: {}", file,
              name.substr(0, 80), SupportedArchitectures());
}

// Frequency factors, [rotated numbers / 2] f32. `rope_freqs.weight`: llama.cpp's converter computes
// them for llama3 scaling.
Result<std::vector<float>> ReadFreqFactors(const GgufFile& gguf, const std::string& name,
                                           const std::string& file) {
  const StoredTensor* tensor = FindTensor(gguf, name);
  if (tensor == nullptr) return std::vector<float>();
  if (tensor->dtype != DType::kF32 || tensor->shape.size() != 1 ||
      tensor->shape[0] > ConfigLimits::kHeadDim) {
    return Fail(Code::kUnsupported, "{}: tensor '{}' must be a list of at most {} F32 numbers",
                file, name, ConfigLimits::kHeadDim);
  }
  if (tensor->bytes.empty()) return std::vector<float>(tensor->shape[0], 1.0f);  // only the header
  std::vector<float> factors(tensor->bytes.size() / sizeof(float));
  if (!factors.empty()) std::memcpy(factors.data(), tensor->bytes.data(), tensor->bytes.size());
  return factors;
}

// Figures that only yarn has. The attention factor is the one that the file names; llama.cpp has
// always 1 + log(factor) / 10 times rope.scaling.attn_factor.
void ReadYarn(Metadata& keys, double factor, const ModelConfig& config, RopeConfig& rope) {
  rope.type = RopeType::kYarn;
  rope.factor = factor;
  rope.beta_fast = keys.Number("rope.scaling.yarn_beta_fast", rope.beta_fast);
  rope.beta_slow = keys.Number("rope.scaling.yarn_beta_slow", rope.beta_slow);
  rope.original_max_positions = keys.Count("rope.scaling.original_context_length",
                                           ConfigLimits::kPositions, config.max_positions);
  const double inferred = factor > 1 ? 0.1 * Log(factor) + 1 : 1.0;
  rope.attention_factor = keys.Number("rope.scaling.yarn_attn_factor", inferred) *
                          keys.Number("rope.scaling.attn_factor", 1.0);
}

constexpr const char* kShortFactors = "rope_factors_short.weight";
constexpr const char* kLongFactors = "rope_factors_long.weight";

// The files name the type only by these tensors.
Status ReadLongRope(const GgufFile& gguf, Metadata& keys, const ModelConfig& config,
                    const std::string& file, RopeConfig& rope) {
  for (const char* name : {kShortFactors, kLongFactors}) {
    if (FindTensor(gguf, name) != nullptr) continue;
    return Fail(Code::kInvalidArgument,
                "{}: RoPE longrope needs the tensors '{}' and '{}'; '{}' is missing", file,
                kShortFactors, kLongFactors, name);
  }
  rope.type = RopeType::kLongRope;
  rope.original_max_positions =
      keys.Count("rope.scaling.original_context_length", ConfigLimits::kPositions);
  KV_TRY(keys.status());
  const double factor = config.max_positions / rope.original_max_positions;
  rope.attention_factor = keys.Number("rope.scaling.attn_factor",
                                      LongRopeAttentionFactor(factor, rope.original_max_positions));
  KV_ASSIGN(rope.freq_factors, ReadFreqFactors(gguf, kShortFactors, file));
  KV_ASSIGN(rope.long_freq_factors, ReadFreqFactors(gguf, kLongFactors, file));
  return keys.status();
}

// Scaling as llama.cpp reads it: linear where a factor is given, llama3 as frequency factors.
Result<RopeConfig> ReadRope(const GgufFile& gguf, Metadata& keys, const ModelConfig& config,
                            const std::string& file) {
  RopeConfig rope;
  rope.theta = keys.Number("rope.freq_base", 10000.0);
  const uint32_t rotated =
      keys.Count("rope.dimension_count", ConfigLimits::kHeadDim, config.head_dim);
  if (rotated != config.head_dim) rope.rotated_dims = rotated;
  const std::string type = keys.Text("rope.scaling.type", "linear");
  const double factor = keys.Number("rope.scaling.factor", keys.Number("rope.scale_linear", 0.0));
  KV_TRY(keys.status());
  if (FindTensor(gguf, kShortFactors) != nullptr || FindTensor(gguf, kLongFactors) != nullptr) {
    KV_TRY(ReadLongRope(gguf, keys, config, file, rope));
    return rope;
  }
  if (type == "linear") {
    if (factor != 0 && factor != 1) {  // 0: llama.cpp's word for none
      rope.type = RopeType::kLinear;
      rope.factor = factor;
    }
  } else if (type == "yarn") {
    ReadYarn(keys, factor == 0 ? 1 : factor, config, rope);
    KV_TRY(keys.status());
  } else if (type != "none") {
    return Fail(Code::kUnsupported,
                "{}: RoPE scaling '{}' is not supported yet; supported: none, linear, yarn, "
                "llama3 as rope_freqs.weight, and longrope as {} and {}",
                file, type.substr(0, 80), kShortFactors, kLongFactors);
  }
  KV_ASSIGN(rope.freq_factors, ReadFreqFactors(gguf, "rope_freqs.weight", file));
  return rope;
}

// Things that change what a model computes and that no row has.
Status RefuseUnknown(const Metadata& keys, const Architecture& row, const GgufFile& gguf,
                     const std::string& file) {
  for (const char* key :
       {"rope.scaling.yarn_ext_factor", "rope.scaling.yarn_log_multiplier", "deepstack_mapping"}) {
    if (keys.Has(key)) {
      return Fail(Code::kUnsupported, "{}: metadata '{}.{}' is not supported", file, row.gguf_name,
                  key);
    }
  }
  const std::pair<const char*, bool> known[] = {
      {"attn_logit_softcapping", row.softcaps},
      {"final_logit_softcapping", row.softcaps},
      {"rope.freq_base_swa", row.local_rope},
      {"attention.sliding_window_pattern", row.gguf_windows == WindowRule::kPattern}};
  for (const auto& [key, read] : known) {
    if (keys.Has(key) && !read) {
      return Fail(Code::kUnsupported, "{}: metadata '{}.{}' is not supported for this architecture",
                  file, row.gguf_name, key);
    }
  }
  for (const char* key : {"attention.scale", "embedding_scale", "residual_scale", "logit_scale"}) {
    if (keys.Has(key) && !row.multipliers) {
      return Fail(Code::kUnsupported, "{}: metadata '{}.{}' is not supported for this architecture",
                  file, row.gguf_name, key);
    }
  }
  // Of Granite alone this key says whether there is RoPE at all.
  const GgufValue* finetuned = keys.Find("rope.scaling.finetuned");
  const bool* has_rope = finetuned == nullptr ? nullptr : std::get_if<bool>(finetuned);
  if (row.multipliers && has_rope != nullptr && !*has_rope) {
    return Fail(Code::kUnsupported,
                "{}: metadata '{}.rope.scaling.finetuned' is false: {} without RoPE is not "
                "supported",
                file, row.gguf_name, row.hf_class);
  }
  return {};
}

Status ReadHeadDim(Metadata& keys, const std::string& file, ModelConfig& config) {
  if (!keys.Has("attention.key_length") && config.hidden_size % config.num_heads != 0) {
    return Fail(Code::kInvalidArgument,
                "{}: embedding_length {} is not a multiple of attention.head_count {}, and "
                "attention.key_length is missing",
                file, config.hidden_size, config.num_heads);
  }
  config.head_dim = keys.Count("attention.key_length", ConfigLimits::kHeadDim,
                               config.hidden_size / config.num_heads);
  const uint32_t value_dim =
      keys.Count("attention.value_length", ConfigLimits::kHeadDim, config.head_dim);
  KV_TRY(keys.status());
  if (config.head_dim > ConfigLimits::kHeadDim) {
    return Fail(Code::kInvalidArgument, "{}: head_dim {} is too large; at most {} is supported",
                file, config.head_dim, ConfigLimits::kHeadDim);
  }
  if (value_dim != config.head_dim) {
    return Fail(Code::kUnsupported,
                "{}: heads have {} key and {} value dimensions; only equal numbers are supported",
                file, config.head_dim, value_dim);
  }
  return {};
}

// ModelConfig::windows. 0 tokens: llama.cpp's word for none.
Result<std::vector<uint32_t>> ReadWindows(Metadata& keys, const Architecture& row,
                                          const ModelConfig& config, const std::string& file) {
  const GgufValue* found = keys.Find("attention.sliding_window");
  uint32_t window = row.gguf_window;
  if (found != nullptr) {
    window = WholeNumber(*found) == 0 ? 0 : keys.Count("attention.sliding_window", UINT32_MAX);
  }
  uint32_t pattern = UINT32_MAX;  // no layer is full
  if (row.gguf_windows == WindowRule::kPattern) {
    pattern =
        keys.Count("attention.sliding_window_pattern", ConfigLimits::kLayers, row.window_pattern);
  }
  KV_TRY(keys.status());
  const bool hides = window < config.max_positions;
  if (window == 0 || (!hides && !row.local_rope)) return std::vector<uint32_t>();
  if (row.gguf_windows == WindowRule::kNone) {
    return Fail(Code::kUnsupported,
                "{}: architecture '{}' with a sliding window of {} tokens, which is shorter than "
                "the context ({}), is not supported",
                file, row.gguf_name, window, config.max_positions);
  }
  std::vector<uint32_t> windows(config.num_layers, window);
  for (uint32_t i = 0; i < config.num_layers; ++i) {
    if ((i + 1) % pattern == 0) windows[i] = 0;
  }
  return windows;
}

// The factor of the embedding, the root that q . k is divided by, and soft-caps.
Status ReadScales(Metadata& keys, const Architecture& row, ModelConfig& config) {
  const auto hidden = static_cast<float>(config.hidden_size);
  if (row.scaled_embedding) config.embedding_multiplier = __builtin_sqrtf(hidden);
  if (row.gguf_hidden_scale_layers != 0 && row.gguf_hidden_scale_layers == config.num_layers) {
    const uint32_t part = config.hidden_size / config.num_heads;
    config.attention_multiplier = 1.0f / __builtin_sqrtf(static_cast<float>(part));
  }
  if (!row.softcaps) return {};
  const auto cap = [&](const char* key, std::optional<double> fallback) {
    const double number = keys.Number(key, fallback.value_or(0));
    return number == 0 ? std::nullopt : std::optional(number);  // 0: llama.cpp's word for none
  };
  config.attention_softcap = cap("attn_logit_softcapping", row.defaults.attention_softcap);
  config.logits_softcap = cap("final_logit_softcapping", row.defaults.logits_softcap);
  return keys.status();
}

// What only some families have.
Status ReadFamily(const GgufFile& gguf, Metadata& keys, const Architecture& row,
                  const std::string& file, ModelConfig& config) {
  config.activation = row.activation;
  if (row.multipliers) {
    config.embedding_multiplier = keys.Number("embedding_scale", 1.0);
    config.residual_multiplier = keys.Number("residual_scale", 1.0);
    config.logits_scaling = keys.Number("logit_scale", 1.0);
    const double scale = keys.Number("attention.scale", 0.0);
    if (scale != 0)
      config.attention_multiplier = scale;  // 0: llama.cpp's word for 1/sqrt(head_dim)
    KV_TRY(keys.status());
  }
  KV_TRY(ReadScales(keys, row, config));
  for (uint32_t i = 0; row.no_rope_interval != 0 && i < config.num_layers; ++i) {
    config.rotated_layers.push_back((i + 1) % row.no_rope_interval != 0);
  }
  if (row.learned_positions) {
    config.rope.rotated_dims = 0;
    return {};
  }
  KV_ASSIGN(config.rope, ReadRope(gguf, keys, config, file));
  if (row.local_rope) {
    config.local_rope = RopeConfig{.theta = keys.Number("rope.freq_base_swa", kLocalTheta),
                                   .rotated_dims = config.rope.rotated_dims};
    KV_TRY(keys.status());
  }
  if (config.rope.rotated_dims && row.gguf_interleaved_rope_rows) {
    return Fail(Code::kUnsupported,
                "{}: {} of {} numbers of each head are rotated: architecture '{}' is supported "
                "with all of them",
                file, *config.rope.rotated_dims, config.head_dim, row.gguf_name);
  }
  return {};
}

Result<GgufFile> OpenPart(const fs::path& path, GgufExtent extent,
                          std::vector<std::shared_ptr<const MappedFile>>& files) {
  KV_ASSIGN(auto mapped, MappedFile::Open(path));
  KV_TRY(CheckNoLfsPointer(mapped->bytes(), path.string()));
  KV_ASSIGN(GgufFile gguf, ParseGguf(mapped->bytes(), path.string(), extent));
  files.push_back(std::move(mapped));
  return gguf;
}

// A whole number of a part's own metadata; absent: it has none.
std::optional<uint64_t> SplitNumber(const GgufFile& gguf, const char* key) {
  const auto found = gguf.metadata.find(key);
  return found == gguf.metadata.end() ? std::nullopt : WholeNumber(found->second);
}

// Adds the tensors of the other parts to those of the first one, which is `path`. Returns how many
// parts there are; 1: the file is not split.
Result<uint32_t> AddParts(const fs::path& path, GgufExtent extent, GgufFile& gguf,
                          std::vector<std::shared_ptr<const MappedFile>>& files) {
  const uint64_t count = SplitNumber(gguf, "split.count").value_or(1);
  if (count <= 1) return 1;
  const std::optional<GgufPart> name = PartOf(path);
  if (!name || name->count != count) {
    return Fail(Code::kInvalidArgument,
                "{}: is one of {} parts of a model, but its name does not say so; parts are called "
                "NAME-00001-of-{:05}.gguf",
                path.string(), count, count);
  }
  if (name->number != 1 || SplitNumber(gguf, "split.no").value_or(0) != 0) {
    return Fail(Code::kInvalidArgument, "{}: is part {} of {} of a model; give the first one, {}",
                path.string(), SplitNumber(gguf, "split.no").value_or(name->number - 1) + 1, count,
                name->FileName(1));
  }
  for (uint32_t number = 2; number <= count; ++number) {
    const fs::path other = path.parent_path() / name->FileName(number);
    KV_ASSIGN(const bool exists, Exists(other));
    if (!exists) {
      return Fail(Code::kNotFound, "{}: part {} of {} is missing; all parts must lie in one folder",
                  other.string(), number, count);
    }
    KV_ASSIGN(GgufFile part, OpenPart(other, extent, files));
    if (SplitNumber(part, "split.no") != number - 1 || SplitNumber(part, "split.count") != count) {
      return Fail(Code::kCorruption, "{}: does not say that it is part {} of {}", other.string(),
                  number, count);
    }
    std::ranges::move(part.tensors, std::back_inserter(gguf.tensors));
  }
  if (const auto all = SplitNumber(gguf, "split.tensors.count");
      all && *all != gguf.tensors.size()) {
    return Fail(Code::kCorruption, "{}: the {} parts have {} tensors, but the first says {}",
                path.string(), count, gguf.tensors.size(), *all);
  }
  std::unordered_map<std::string_view, const StoredTensor*> by_name;
  for (const StoredTensor& tensor : gguf.tensors) {
    const auto [other, is_new] = by_name.emplace(tensor.name, &tensor);
    if (is_new) continue;
    return Fail(Code::kCorruption, "{}: tensor '{}' is in {} too", tensor.file, tensor.name,
                other->second->file);
  }
  return static_cast<uint32_t>(count);
}

}  // namespace

std::string GgufPart::FileName(uint32_t of_number) const {
  return fmt::format("{}-{:05}-of-{:05}.gguf", stem, of_number, count);
}

std::optional<GgufPart> PartOf(const fs::path& path) {
  const std::string name = path.filename().string();
  static constexpr std::string_view kPattern = "-00000-of-00000.gguf";
  if (name.size() <= kPattern.size()) return std::nullopt;
  const std::string_view end = std::string_view(name).substr(name.size() - kPattern.size());
  GgufPart part{.stem = name.substr(0, name.size() - kPattern.size()), .number = 0, .count = 0};
  for (size_t i = 0; i < kPattern.size(); ++i) {
    if (kPattern[i] != '0') {
      if (end[i] != kPattern[i]) return std::nullopt;
      continue;
    }
    if (end[i] < '0' || end[i] > '9') return std::nullopt;
    uint32_t& number = i < 6 ? part.number : part.count;
    number = number * 10 + static_cast<uint32_t>(end[i] - '0');
  }
  if (part.number < 1 || part.number > part.count) return std::nullopt;
  return part;
}

Result<ModelConfig> GgufConfig(const GgufFile& gguf, const std::string& file) {
  KV_ASSIGN(const Architecture* row, FindArchitecture(gguf, file));
  Metadata keys(gguf, std::string(row->gguf_name) + ".", file);
  KV_TRY(RefuseUnknown(keys, *row, gguf, file));
  const StoredTensor* table = FindTensor(gguf, std::string(row->NamesOf(Slot::kEmbedding).gguf));
  if (table == nullptr || table->shape.size() != 2) {
    return Fail(Code::kNotFound, "{}: has no two-dimensional tensor '{}'; is it a language model?",
                file, row->NamesOf(Slot::kEmbedding).gguf);
  }
  ModelConfig config;
  config.architecture = row->name;
  config.hidden_size = keys.Count("embedding_length", ConfigLimits::kHiddenSize);
  config.num_layers = keys.Count("block_count", ConfigLimits::kLayers);
  config.num_heads = keys.Count("attention.head_count", ConfigLimits::kHeads);
  config.num_kv_heads =
      keys.Count("attention.head_count_kv", ConfigLimits::kHeads, config.num_heads);
  config.ffn_size = keys.Count("feed_forward_length", ConfigLimits::kFfnSize);
  config.max_positions = keys.Count("context_length", ConfigLimits::kPositions);
  config.rms_norm_eps = keys.Number(row->gguf_eps);
  const uint64_t table_rows = table->shape[0];
  if (table_rows < 1 || table_rows > ConfigLimits::kVocabSize) {
    return Fail(Code::kInvalidArgument, "{}: tensor '{}' has {} rows; 1 to {} are supported", file,
                table->name, table_rows, ConfigLimits::kVocabSize);
  }
  config.vocab_size =
      keys.Count("vocab_size", ConfigLimits::kVocabSize, static_cast<uint32_t>(table_rows));
  KV_TRY(keys.status());
  KV_TRY(ReadHeadDim(keys, file, config));
  KV_ASSIGN(config.experts, ReadGgufExperts(keys, *row, config, file));
  KV_ASSIGN(config.windows, ReadWindows(keys, *row, config, file));
  KV_TRY(ReadFamily(gguf, keys, *row, file, config));
  const auto has = [&](Slot slot) {
    const SlotNames* names = row->Find(slot);
    return names != nullptr && FindTensor(gguf, TensorName(names->gguf, 0)) != nullptr;
  };
  const auto has_bias = [&](const BiasRule& rule, Slot slot) {
    return rule.presence == Presence::kAlways || has(slot);
  };
  config.qkv_bias = has_bias(row->qkv_bias, Slot::kQBias);
  config.o_bias = has_bias(row->o_bias, Slot::kOBias);
  config.mlp_bias = has_bias(row->mlp_bias, Slot::kDownBias);
  config.tied_embeddings = !has(Slot::kLmHead);
  Metadata tokenizer(gguf, "tokenizer.ggml.", file);
  tokenizer.AddId("bos_token_id", config.bos);
  for (const char* key : {"eos_token_id", "eot_token_id", "eom_token_id"}) {
    tokenizer.AddId(key, config.eos);
  }
  KV_TRY(tokenizer.status());
  KV_TRY(ValidateConfig(config, file));
  return config;
}

Result<ImportedModel> ModelFromGguf(GgufFile gguf, const std::string& file) {
  ImportedModel model;
  KV_ASSIGN(model.config, GgufConfig(gguf, file));
  Metadata tokenizer(gguf, "tokenizer.", file);
  model.chat_template = tokenizer.Text("chat_template", "");
  KV_TRY(tokenizer.status());
  model.special_tokens_json = GgufSpecialTokens(gguf);
  model.vocabulary = ReadGgufVocabulary(gguf, file);
  model.ends_by_name = EndsByName(gguf);
  TensorCatalog catalog = CatalogOf(std::move(gguf.tensors));
  KV_TRY(SplitGgufExperts(model.config, catalog));
  KV_TRY(BindTensors(catalog, NameStyle::kGguf, file, model));
  return model;
}

Result<ImportedModel> ImportGgufFile(const fs::path& path, Need need) {
  const GgufExtent extent = need == Need::kShapes ? GgufExtent::kHeader : GgufExtent::kWhole;
  std::vector<std::shared_ptr<const MappedFile>> files;
  KV_ASSIGN(GgufFile gguf, OpenPart(path, extent, files));
  KV_ASSIGN(const uint32_t count, AddParts(path, extent, gguf, files));
  KV_ASSIGN(ImportedModel model, ModelFromGguf(std::move(gguf), path.string()));
  model.path = path;
  model.name = count > 1 ? PartOf(path)->stem : path.stem().string();
  model.mapped_files = std::move(files);
  KV_TRY(ReadTokenizerFiles(path.parent_path(), model));
  return model;
}

}  // namespace kvasir
