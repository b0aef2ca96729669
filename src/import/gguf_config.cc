// The shape of a model from a GGUF file's metadata.
#include <algorithm>
#include <utility>

#include "base/result.h"
#include "import/architecture.h"
#include "import/experts.h"
#include "import/gguf_importer.h"
#include "import/gguf_metadata.h"
#include "import/gguf_rope.h"

namespace kvasir {
namespace {

Result<const Architecture*> FindArchitecture(const GgufFile& gguf, const std::string& file) {
  Metadata general(gguf, "general.", file);
  const std::string name = general.Text("architecture").value_or("none");
  KV_TRY(general.status());
  Metadata keys(gguf, name + ".", file);
  const GgufValue* count = keys.Find("expert_count");
  const bool experts = count != nullptr && WholeNumber(*count) != 0;
  const Architecture* dense = nullptr;
  for (const Architecture& row : Architectures()) {
    if (row.gguf_name.empty() || row.gguf_name != name) continue;
    if (row.experts == experts) return &row;
    dense = &row;
  }
  if (dense != nullptr) {
    return Fail(Code::kUnsupported, "{}: architecture '{}' {} experts is not supported", file, name,
                experts ? "with" : "without");
  }
  return UnsupportedArchitecture(file, name, &Architecture::gguf_name);
}

// Refuses things that change what a model computes and that no row has.
Status RefuseUnknown(const Metadata& keys, const Architecture& row, const std::string& file) {
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
  const GgufValue* causal = keys.Find("attention.causal");
  const bool* is_causal = causal == nullptr ? nullptr : std::get_if<bool>(causal);
  if (is_causal != nullptr && !*is_causal) {
    return Fail(Code::kUnsupported,
                "{}: metadata '{}.attention.causal' is false: only models whose tokens see the "
                "tokens before them are supported",
                file, row.gguf_name);
  }
  // Only in files of Granite does this key say whether there is RoPE at all.
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

// Reads ModelConfig::windows. 0 tokens: llama.cpp's word for none.
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

// Reads the factor of the embedding, the root that q . k is divided by, and soft-caps.
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

// Reads what only some families have.
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
  KV_ASSIGN(config.rope, ReadGgufRope(gguf, keys, config, file));
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

FimTokens ReadFimTokens(Metadata& keys, size_t num_tokens) {
  // Each under its name and the one of old files.
  const auto id = [&](const std::string& name, const char* old_name = nullptr) {
    auto found = keys.Id("fim_" + name + "_token_id", num_tokens);
    if (!found && old_name != nullptr) found = keys.Id(old_name, num_tokens);
    return found;
  };
  return {.prefix = id("pre", "prefix_token_id"),
          .suffix = id("suf", "suffix_token_id"),
          .middle = id("mid", "middle_token_id"),
          .repo = id("rep"),
          .file = id("sep"),
          .pad = id("pad")};
}

}  // namespace

Result<ModelConfig> GgufConfig(const GgufFile& gguf, const std::string& file) {
  KV_ASSIGN(const Architecture* row, FindArchitecture(gguf, file));
  Metadata keys(gguf, std::string(row->gguf_name) + ".", file);
  KV_TRY(RefuseUnknown(keys, *row, file));
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
  tokenizer.AddId("bos_token_id", config.vocab_size, config.bos);
  for (const char* key : {"eos_token_id", "eot_token_id", "eom_token_id"}) {
    tokenizer.AddId(key, config.vocab_size, config.eos);
  }
  config.fim = ReadFimTokens(tokenizer, config.vocab_size);
  KV_TRY(tokenizer.status());
  KV_TRY(ValidateConfig(config, file));
  return config;
}

}  // namespace kvasir
