#include "import/hf_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/json_object.h"
#include "base/result.h"
#include "import/architecture.h"
#include "import/experts.h"
#include "import/hf_encoder.h"
#include "import/hf_fields.h"
#include "import/hf_rope.h"
#include "import/hf_windows.h"

namespace kvasir {
namespace {

using nlohmann::json;

Result<const Architecture*> FindArchitecture(const Fields& fields, const std::string& file) {
  std::string name = "none";
  std::string_view Architecture::*kind = &Architecture::hf_class;
  const json* classes = fields.Find("architectures");
  if (classes != nullptr && classes->is_array() && !classes->empty() &&
      classes->front().is_string()) {
    name = classes->front().get<std::string>();
    for (const Architecture& row : Architectures()) {
      if (row.hf_class == name) return &row;
    }
  } else if (classes != nullptr && !(classes->is_array() && classes->empty())) {
    return Fail(Code::kInvalidArgument, "{}: architectures must be a list of names", file);
  } else if (const json* type = fields.Find("model_type"); type != nullptr && type->is_string()) {
    name = type->get<std::string>();
    kind = &Architecture::hf_model_type;
    for (const Architecture& row : Architectures()) {
      if (row.hf_model_type == name) return &row;
    }
  }
  return UnsupportedArchitecture(file, name, kind);
}

// Returns which layers RoPE rotates: no_rope_layers has 1 where it does.
Result<std::vector<bool>> RotatedLayers(Fields& fields, const Architecture& row,
                                        const ModelConfig& config, const std::string& file) {
  std::vector<bool> rotated;
  if (row.no_rope_interval == 0) return rotated;
  const uint32_t interval =
      fields.Count("no_rope_layer_interval", ConfigLimits::kLayers, row.no_rope_interval);
  KV_TRY(fields.status());
  const json* list = fields.Find("no_rope_layers");
  if (list == nullptr) {
    for (uint32_t i = 0; i < config.num_layers; ++i) rotated.push_back((i + 1) % interval != 0);
    return rotated;
  }
  if (!list->is_array() || list->size() < config.num_layers) {
    return Fail(Code::kInvalidArgument,
                "{}: no_rope_layers must be a list of 0 and 1, one for each of {} layers", file,
                config.num_layers);
  }
  for (uint32_t i = 0; i < config.num_layers; ++i) {
    const json& value = (*list)[i];
    const bool is_bit = value.is_number_integer() && (value == 0 || value == 1);
    if (!is_bit && !value.is_boolean()) {
      return Fail(Code::kInvalidArgument, "{}: no_rope_layers has {} for layer {}, not 0 or 1",
                  file, Fields::Show(value), i);
    }
    rotated.push_back(value.is_boolean() ? value.get<bool>() : value == 1);
  }
  return rotated;
}

// Reads transformers' names of activations.
Result<Activation> ReadActivation(Fields& fields, const Architecture& row,
                                  const std::string& file) {
  static constexpr std::pair<std::string_view, Activation> kNames[] = {
      {"silu", Activation::kSilu},         {"swish", Activation::kSilu},
      {"gelu_new", Activation::kGeluTanh}, {"gelu_pytorch_tanh", Activation::kGeluTanh},
      {"gelu", Activation::kGelu},         {"relu", Activation::kRelu}};
  const std::string name = fields.Text(row.keys.activation, "");
  KV_TRY(fields.status());
  if (fields.Find(row.keys.activation) == nullptr) return row.activation;
  for (const auto& [known, activation] : kNames) {
    if (known == name) return activation;
  }
  return Fail(Code::kUnsupported,
              "{}: {} '{}' is not supported; supported: silu, gelu_new, gelu_pytorch_tanh, gelu, "
              "relu",
              file, row.keys.activation, name.substr(0, 80));
}

// Reads the root that q . k is divided by, the factor of the embedding, and soft-caps.
Status ReadScales(Fields& fields, const Architecture& row, const std::string& file,
                  ModelConfig& config) {
  if (row.scaled_embedding) {
    config.embedding_multiplier = __builtin_sqrtf(static_cast<float>(config.hidden_size));
  }
  if (row.defaults.query_scalar) {
    const double scalar = fields.Number("query_pre_attn_scalar", row.defaults.query_scalar);
    if (!(scalar >= 1e-6 && scalar <= 1e6)) {
      return Fail(Code::kInvalidArgument,
                  "{}: query_pre_attn_scalar is {}, it must be in [1e-6, 1e6]", file, scalar);
    }
    config.attention_multiplier = 1.0f / __builtin_sqrtf(static_cast<float>(scalar));
  }
  if (!row.softcaps) return fields.status();
  const auto cap = [&](const char* key, std::optional<double> fallback) {
    if (!fields.Names(key)) return fallback;
    return fields.Find(key) == nullptr ? std::nullopt : std::optional(fields.Number(key));
  };
  config.attention_softcap = cap("attn_logit_softcapping", row.defaults.attention_softcap);
  config.logits_softcap = cap("final_logit_softcapping", row.defaults.logits_softcap);
  return fields.status();
}

// Reads what only some families have.
Status ReadFamily(Fields& fields, const Architecture& row, const std::string& file,
                  ModelConfig& config) {
  if (row.multipliers) {
    config.embedding_multiplier = fields.Number("embedding_multiplier", 1.0);
    config.residual_multiplier = fields.Number("residual_multiplier", 1.0);
    config.logits_scaling = fields.Number("logits_scaling", 1.0);
    config.attention_multiplier = fields.Number("attention_multiplier", 1.0);
  }
  KV_TRY(ReadScales(fields, row, file, config));
  if (row.has_encoder()) KV_TRY(ReadHfEncoder(fields, row, file, config));
  const bool scaled = fields.Flag("scale_attn_weights", true);
  const bool by_layer = fields.Flag("scale_attn_by_inverse_layer_idx", false);
  const bool crossed = fields.Flag("add_cross_attention", false);
  KV_TRY(fields.status());
  if (row.learned_positions && (!scaled || by_layer || crossed)) {
    return Fail(Code::kUnsupported,
                "{}: {} with scale_attn_weights false, scale_attn_by_inverse_layer_idx or "
                "add_cross_attention is not supported",
                file, row.hf_class);
  }
  KV_ASSIGN(config.rotated_layers, RotatedLayers(fields, row, config, file));
  return {};
}

bool Bias(const BiasRule& rule, Fields& fields) {
  if (rule.presence == Presence::kAsConfigured) {
    return fields.Flag(std::string(rule.config_key).c_str(), false);
  }
  return rule.presence == Presence::kAlways;
}

// Refuses things that change what a model computes and that no row has.
Status RefuseUnknown(Fields& fields, const std::string& file) {
  if (fields.Find("quantization_config") != nullptr) {
    return Fail(Code::kUnsupported,
                "{}: quantization_config: quantised weights are not supported yet; use the model's "
                "original files in F32, F16 or BF16",
                file);
  }
  const bool both_ways = fields.Flag("use_bidirectional_attention", false);
  const bool is_causal = fields.Flag("is_causal", true);
  KV_TRY(fields.status());
  if (both_ways || !is_causal) {
    return Fail(Code::kUnsupported,
                "{}: {}: only models whose tokens see the tokens before them are supported", file,
                both_ways ? "use_bidirectional_attention" : "is_causal is false");
  }
  return {};
}

// Returns the figures of the language model, beside those of the whole.
Result<json> TextConfig(json object, const std::string& file) {
  const auto found = object.find("text_config");
  if (found == object.end() || !found->is_object()) {
    return Fail(Code::kInvalidArgument, "{}: text_config is missing or not an object", file);
  }
  const json text = *found;
  object.erase("text_config");
  object.update(text);
  return object;
}

Result<uint32_t> HeadDim(Fields& fields, const Architecture& row, const ModelConfig& config,
                         const std::string& file) {
  if (fields.Find("head_dim") != nullptr) return fields.Count("head_dim", ConfigLimits::kHeadDim);
  if (row.defaults.head_dim) return *row.defaults.head_dim;
  if (config.hidden_size % config.num_heads != 0) {
    return Fail(Code::kInvalidArgument,
                "{}: {} {} is not a multiple of {} {}, and head_dim is missing", file,
                row.keys.hidden, config.hidden_size, row.keys.heads, config.num_heads);
  }
  const uint32_t head_dim = config.hidden_size / config.num_heads;
  if (head_dim > ConfigLimits::kHeadDim) {
    return Fail(Code::kInvalidArgument,
                "{}: {} {} over {} {} gives head_dim {}; at most {} is supported", file,
                row.keys.hidden, config.hidden_size, row.keys.heads, config.num_heads, head_dim,
                ConfigLimits::kHeadDim);
  }
  return head_dim;
}

// Reads bos and eos from generation_config.json where it has them, else from config.json.
Status ReadIds(Fields& fields, std::optional<std::string_view> generation_json,
               const std::string& file, ModelConfig& config) {
  config.bos = fields.Ids("bos_token_id");
  config.eos = fields.Ids("eos_token_id");
  KV_TRY(fields.status());
  if (!generation_json) return {};
  const std::string where = file + " (generation_config.json beside it)";
  KV_ASSIGN(const json object, ParseJsonObject(*generation_json, where));
  Fields generation(object, where);
  if (generation.Find("bos_token_id") != nullptr) config.bos = generation.Ids("bos_token_id");
  if (generation.Find("eos_token_id") != nullptr) config.eos = generation.Ids("eos_token_id");
  if (config.encoder && generation.Find("decoder_start_token_id") != nullptr) {
    KV_ASSIGN(config.encoder->decoder_start, ReadDecoderStart(generation, where));
  }
  return generation.status();
}

}  // namespace

Result<DType> HfDtype(std::string_view config_json, const std::string& file) {
  static constexpr std::pair<std::string_view, DType> kNames[] = {
      {"float32", DType::kF32}, {"float16", DType::kF16}, {"bfloat16", DType::kBf16}};
  KV_ASSIGN(json object, ParseJsonObject(config_json, file));
  KV_ASSIGN(const Architecture* row, FindArchitecture(Fields(object, file), file));
  if (row->text_config) {
    KV_ASSIGN(object, TextConfig(std::move(object), file));
  }
  Fields fields(object, file);
  const char* key = fields.Find("dtype") != nullptr ? "dtype" : "torch_dtype";
  const std::string name = fields.Text(key, "float32");
  KV_TRY(fields.status());
  for (const auto& [known, dtype] : kNames) {
    if (known == name) return dtype;
  }
  return Fail(Code::kUnsupported,
              "{}: {} '{}' is not supported; supported: float32, float16, bfloat16", file, key,
              name.substr(0, 80));
}

Result<ModelConfig> ParseHfConfig(std::string_view config_json,
                                  std::optional<std::string_view> generation_config_json,
                                  const std::string& file) {
  KV_ASSIGN(json object, ParseJsonObject(config_json, file));
  KV_ASSIGN(const Architecture* row, FindArchitecture(Fields(object, file), file));
  if (row->text_config) {
    KV_ASSIGN(object, TextConfig(std::move(object), file));
  }
  Fields fields(object, file);
  ModelConfig config;
  config.architecture = row->name;
  config.vocab_size = fields.Count("vocab_size", ConfigLimits::kVocabSize, row->defaults.vocab);
  const HfKeys& keys = row->keys;
  config.hidden_size = fields.Count(keys.hidden, ConfigLimits::kHiddenSize);
  config.num_layers = fields.Count(keys.layers, ConfigLimits::kLayers);
  config.num_heads = fields.Count(keys.heads, ConfigLimits::kHeads, row->defaults.heads);
  config.num_kv_heads = config.num_heads;
  if (keys.kv_heads != nullptr) {
    const bool is_null = fields.Names(keys.kv_heads);  // where Count takes the fallback
    config.num_kv_heads = fields.Count(
        keys.kv_heads, ConfigLimits::kHeads,
        is_null ? config.num_heads : row->defaults.kv_heads.value_or(config.num_heads));
  }
  std::optional<uint32_t> ffn_size = row->defaults.ffn;
  if (row->defaults.ffn_of_hidden) ffn_size = *row->defaults.ffn_of_hidden * config.hidden_size;
  config.ffn_size = fields.Count(keys.ffn, ConfigLimits::kFfnSize, ffn_size);
  config.max_positions =
      fields.Count(keys.positions, ConfigLimits::kPositions, row->defaults.positions);
  config.rms_norm_eps =
      keys.eps == nullptr ? row->defaults.eps : fields.Number(keys.eps, row->defaults.eps);
  config.qkv_bias = Bias(row->qkv_bias, fields);
  config.o_bias = Bias(row->o_bias, fields);
  config.mlp_bias = Bias(row->mlp_bias, fields);
  config.tied_embeddings = fields.Flag("tie_word_embeddings", row->defaults.tied);
  KV_TRY(fields.status());
  KV_TRY(RefuseUnknown(fields, file));
  KV_ASSIGN(config.windows, ReadWindows(fields, *row, config, file));
  KV_ASSIGN(config.experts, ReadHfExperts(fields, *row, config, file));
  KV_ASSIGN(config.activation, ReadActivation(fields, *row, file));
  KV_ASSIGN(config.head_dim, HeadDim(fields, *row, config, file));
  KV_TRY(fields.status());
  if (row->learned_positions || row->has_encoder()) {
    config.rope.rotated_dims = 0;
  } else if (row->local_rope) {
    KV_TRY(ParseTwoRopes(object, *row, file, config));
  } else {
    KV_ASSIGN(config.rope, ParseRope(fields, *row, config, file));
  }
  KV_TRY(ReadFamily(fields, *row, file, config));
  KV_TRY(ReadIds(fields, generation_config_json, file, config));
  KV_TRY(ValidateConfig(config, file));
  return config;
}

}  // namespace kvasir
