#include "import/hf_config.h"

#include <nlohmann/json.hpp>

#include "base/json_object.h"
#include "base/result.h"
#include "import/architecture.h"

namespace kvasir {
namespace {

using nlohmann::json;

// Reads typed fields of one JSON object and keeps the first error. A null counts as absent, as
// transformers has it.
class Fields {
 public:
  Fields(const json& object, const std::string& file) : object_(object), file_(file) {}

  const Status& status() const { return status_; }
  const json* Find(const char* key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  // A whole number in [1, max]. Without a fallback it must be there.
  uint32_t Count(const char* key, uint32_t max, std::optional<uint32_t> fallback = {}) {
    const json* value = Find(key);
    if (value == nullptr) {
      if (!fallback) Wrong("{} is missing", key);
      return fallback.value_or(1);
    }
    if (!value->is_number_unsigned() || value->get<uint64_t>() < 1 ||
        value->get<uint64_t>() > max) {
      Wrong("{} is {}; it must be a whole number from 1 to {}", key, Show(*value), max);
      return 1;
    }
    return static_cast<uint32_t>(value->get<uint64_t>());
  }
  double Number(const char* key, std::optional<double> fallback = {}) {
    const json* value = Find(key);
    if (value == nullptr) {
      if (!fallback) Wrong("{} is missing", key);
      return fallback.value_or(1);
    }
    if (!value->is_number()) Wrong("{} is {}; it must be a number", key, Show(*value));
    return value->is_number() ? value->get<double>() : 1;
  }
  bool Flag(const char* key, bool fallback) {
    const json* value = Find(key);
    if (value == nullptr) return fallback;
    if (!value->is_boolean()) Wrong("{} is {}; it must be true or false", key, Show(*value));
    return value->is_boolean() && value->get<bool>();
  }
  std::string Text(const char* key, std::string fallback) {
    const json* value = Find(key);
    if (value == nullptr) return fallback;
    if (!value->is_string()) Wrong("{} is {}; it must be a string", key, Show(*value));
    return value->is_string() ? value->get<std::string>() : fallback;
  }
  // A token id or a list of them.
  std::vector<TokenId> Ids(const char* key) {
    const json* value = Find(key);
    std::vector<TokenId> ids;
    if (value == nullptr) return ids;
    const auto add = [&](const json& id) {
      if (id.is_number_unsigned() && id.get<uint64_t>() < ConfigLimits::kVocabSize) {
        ids.push_back(static_cast<TokenId>(id.get<uint64_t>()));
      } else {
        Wrong("{} holds {}, which is not a token id", key, Show(id));
      }
    };
    if (value->is_array()) {
      for (const json& id : *value) add(id);
    } else {
      add(*value);
    }
    return ids;
  }
  // For messages: scalars as they are, the rest by kind (never a deep or long dump).
  static std::string Show(const json& value) {
    if (value.is_structured()) return value.is_array() ? "an array" : "an object";
    return value.dump(-1, ' ', false, json::error_handler_t::replace).substr(0, 80);
  }

 private:
  template <typename... Args>
  void Wrong(fmt::format_string<Args...> format, Args&&... args) {
    if (!status_) return;
    status_ = Fail(Code::kInvalidArgument, "{}: {}", file_,
                   fmt::format(format, std::forward<Args>(args)...));
  }

  const json& object_;
  const std::string& file_;
  Status status_;
};

Result<const Architecture*> FindArchitecture(const Fields& fields, const std::string& file) {
  std::string name = "none";
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
    for (const Architecture& row : Architectures()) {
      if (row.hf_model_type == name) return &row;
    }
  }
  return Fail(Code::kUnsupported, "{}: architecture '{}' is not supported yet; supported: {}", file,
              name.substr(0, 80), SupportedArchitectures());
}

// transformers 4: rope_theta and rope_scaling ("rope_type", or "type" before 4.43).
// transformers 5: rope_parameters holds both; it still reads rope_scaling first where that is set.
Result<RopeConfig> ParseRope(Fields& fields, const std::string& file) {
  static const json kNone = json::object();
  const json* parameters = fields.Find("rope_scaling");
  if (parameters == nullptr) parameters = fields.Find("rope_parameters");
  if (parameters == nullptr) parameters = &kNone;
  if (!parameters->is_object()) {
    return Fail(Code::kInvalidArgument, "{}: rope_scaling or rope_parameters is not an object",
                file);
  }
  const std::string where = file + ": RoPE parameters";
  Fields rope_fields(*parameters, where);
  const json* nested = fields.Find("rope_parameters");
  Fields nested_fields(nested != nullptr && nested->is_object() ? *nested : kNone, where);

  RopeConfig rope;
  rope.theta = rope_fields.Number(
      "rope_theta", fields.Number("rope_theta", nested_fields.Number("rope_theta", 10000.0)));
  const std::string type = rope_fields.Text("rope_type", rope_fields.Text("type", "default"));
  if (type == "linear") {
    rope.type = RopeType::kLinear;
    rope.factor = rope_fields.Number("factor");
  } else if (type == "llama3") {
    rope.type = RopeType::kLlama3;
    rope.factor = rope_fields.Number("factor");
    rope.low_freq_factor = rope_fields.Number("low_freq_factor");
    rope.high_freq_factor = rope_fields.Number("high_freq_factor");
    rope.original_max_positions =
        rope_fields.Count("original_max_position_embeddings", ConfigLimits::kPositions);
  } else if (type != "default") {
    return Fail(Code::kUnsupported,
                "{}: RoPE type '{}' is not supported yet; supported: default, linear, llama3", file,
                type.substr(0, 80));
  }
  const double partial =
      rope_fields.Number("partial_rotary_factor", fields.Number("partial_rotary_factor", 1.0));
  KV_TRY(fields.status());
  KV_TRY(rope_fields.status());
  KV_TRY(nested_fields.status());
  if (partial != 1.0) {
    return Fail(Code::kUnsupported, "{}: partial_rotary_factor {} is not supported, only 1", file,
                partial);
  }
  return rope;
}

bool Bias(const BiasRule& rule, Fields& fields) {
  if (rule.presence == Presence::kAsConfigured) {
    return fields.Flag(std::string(rule.config_key).c_str(), false);
  }
  return rule.presence == Presence::kAlways;
}

// Things that change what a model computes and that no row has.
Status RefuseUnknown(Fields& fields, const Architecture& row, const std::string& file) {
  const std::string activation = fields.Text("hidden_act", std::string(row.activation));
  KV_TRY(fields.status());
  if (activation != row.activation) {
    return Fail(Code::kUnsupported, "{}: hidden_act '{}' is not supported for {}, only '{}'", file,
                activation.substr(0, 80), row.hf_class, row.activation);
  }
  if (fields.Find("quantization_config") != nullptr) {
    return Fail(Code::kUnsupported,
                "{}: quantization_config: quantised weights are not supported yet; use the model's "
                "original files in F32, F16 or BF16",
                file);
  }
  return {};
}

Result<uint32_t> HeadDim(Fields& fields, const ModelConfig& config, const std::string& file) {
  if (fields.Find("head_dim") != nullptr) return fields.Count("head_dim", ConfigLimits::kHeadDim);
  if (config.hidden_size % config.num_heads != 0) {
    return Fail(Code::kInvalidArgument,
                "{}: hidden_size {} is not a multiple of num_attention_heads {}, and head_dim is "
                "missing",
                file, config.hidden_size, config.num_heads);
  }
  const uint32_t head_dim = config.hidden_size / config.num_heads;
  if (head_dim > ConfigLimits::kHeadDim) {
    return Fail(
        Code::kInvalidArgument,
        "{}: hidden_size {} over num_attention_heads {} gives head_dim {}; at most {} is supported",
        file, config.hidden_size, config.num_heads, head_dim, ConfigLimits::kHeadDim);
  }
  return head_dim;
}

// bos and eos from generation_config.json where it has them, else from config.json.
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
  return generation.status();
}

}  // namespace

Result<ModelConfig> ParseHfConfig(std::string_view config_json,
                                  std::optional<std::string_view> generation_config_json,
                                  const std::string& file) {
  KV_ASSIGN(const json object, ParseJsonObject(config_json, file));
  Fields fields(object, file);
  KV_ASSIGN(const Architecture* row, FindArchitecture(fields, file));
  ModelConfig config;
  config.architecture = row->name;
  config.vocab_size = fields.Count("vocab_size", ConfigLimits::kVocabSize);
  config.hidden_size = fields.Count("hidden_size", ConfigLimits::kHiddenSize);
  config.num_layers = fields.Count("num_hidden_layers", ConfigLimits::kLayers);
  config.num_heads = fields.Count("num_attention_heads", ConfigLimits::kHeads);
  config.num_kv_heads = fields.Count("num_key_value_heads", ConfigLimits::kHeads, config.num_heads);
  config.ffn_size = fields.Count("intermediate_size", ConfigLimits::kFfnSize);
  config.max_positions = fields.Count("max_position_embeddings", ConfigLimits::kPositions, 2048);
  config.rms_norm_eps = fields.Number("rms_norm_eps", 1e-6);  // LlamaConfig's default
  config.qkv_bias = Bias(row->qkv_bias, fields);
  config.o_bias = Bias(row->o_bias, fields);
  config.mlp_bias = Bias(row->mlp_bias, fields);
  config.tied_embeddings = fields.Flag("tie_word_embeddings", false);
  KV_TRY(fields.status());
  KV_TRY(RefuseUnknown(fields, *row, file));
  KV_ASSIGN(config.head_dim, HeadDim(fields, config, file));
  KV_TRY(fields.status());
  KV_ASSIGN(config.rope, ParseRope(fields, file));
  KV_TRY(ReadIds(fields, generation_config_json, file, config));
  KV_TRY(ValidateConfig(config, file));
  return config;
}

}  // namespace kvasir
