#include "import/hf_rope.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/result.h"
#include "simd/math.h"

namespace kvasir {
namespace {

using nlohmann::json;

// Reads figures that only RoPE type yarn has, with transformers' defaults.
void ReadYarn(Fields& rope_fields, RopeConfig& rope) {
  rope.factor = rope_fields.Number("factor");
  rope.beta_fast = rope_fields.Number("beta_fast", rope.beta_fast);
  rope.beta_slow = rope_fields.Number("beta_slow", rope.beta_slow);
  rope.truncate = rope_fields.Flag("truncate", rope.truncate);
  const auto grown = [&](double scale) {
    return rope.factor > 1 ? 0.1 * scale * Log(rope.factor) + 1 : 1.0;
  };
  const double scale = rope_fields.Number("mscale", 0.0);
  const double all_dims = rope_fields.Number("mscale_all_dim", 0.0);
  const double inferred = scale != 0 && all_dims != 0 ? grown(scale) / grown(all_dims) : grown(1);
  rope.attention_factor = rope_fields.Number("attention_factor", inferred);
}

// Reads a list of numbers, rounded to f32 as in transformers.
Result<std::vector<float>> ReadFactors(const Fields& rope_fields, const char* key,
                                       const std::string& where) {
  const json* list = rope_fields.Find(key);
  const bool numbers =
      list != nullptr && list->is_array() &&
      std::ranges::all_of(*list, [](const json& number) { return number.is_number(); });
  if (!numbers) {
    return Fail(Code::kInvalidArgument,
                "{}: {} must be a list of numbers, one for each pair of rotated numbers", where,
                key);
  }
  return list->get<std::vector<float>>();
}

// `su` is the older name of longrope. Phi-3 has original_max_position_embeddings beside the RoPE
// parameters, and there it counts first.
Status ReadLongRope(Fields& fields, Fields& rope_fields, const ModelConfig& config,
                    const std::string& where, RopeConfig& rope) {
  constexpr const char* kOriginal = "original_max_position_embeddings";
  if (fields.Find(kOriginal) == nullptr && rope_fields.Find(kOriginal) == nullptr) {
    return Fail(Code::kInvalidArgument,
                "{}: RoPE longrope needs {}, the context before it was extended; give it in "
                "config.json",
                where, kOriginal);
  }
  rope.type = RopeType::kLongRope;
  Fields& holder = fields.Find(kOriginal) != nullptr ? fields : rope_fields;
  rope.original_max_positions = holder.Count(kOriginal, ConfigLimits::kPositions);
  const double factor =
      rope_fields.Number("factor", config.max_positions / rope.original_max_positions);
  rope.attention_factor = rope_fields.Number(
      "attention_factor", LongRopeAttentionFactor(factor, rope.original_max_positions));
  KV_ASSIGN(rope.freq_factors, ReadFactors(rope_fields, "short_factor", where));
  KV_ASSIGN(rope.long_freq_factors, ReadFactors(rope_fields, "long_factor", where));
  return {};
}

}  // namespace

Result<RopeConfig> ParseRope(Fields& fields, const Architecture& row, const ModelConfig& config,
                             const std::string& file) {
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
      "rope_theta",
      fields.Number("rope_theta", nested_fields.Number("rope_theta", row.defaults.theta)));
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
  } else if (type == "longrope" || type == "su" || (type == "yarn" && row.partial_rotary)) {
    // Phi-3's `yarn` is longrope, as in transformers.
    KV_TRY(ReadLongRope(fields, rope_fields, config, where, rope));
  } else if (type == "yarn") {
    rope.type = RopeType::kYarn;
    ReadYarn(rope_fields, rope);
    rope.original_max_positions = rope_fields.Count("original_max_position_embeddings",
                                                    ConfigLimits::kPositions, config.max_positions);
  } else if (type != "default" &&
             type != "dynamic") {  // contexts where dynamic differs are refused
    return Fail(Code::kUnsupported,
                "{}: RoPE type '{}' is not supported yet for {}; supported: default, dynamic, "
                "linear, llama3, yarn, longrope",
                file, type.substr(0, 80), row.hf_class);
  }
  const double partial =
      rope_fields.Number("partial_rotary_factor", fields.Number("partial_rotary_factor", 1.0));
  KV_TRY(fields.status());
  KV_TRY(rope_fields.status());
  KV_TRY(nested_fields.status());
  if (partial == 1.0) return rope;
  if (!row.partial_rotary) {
    return Fail(Code::kUnsupported, "{}: partial_rotary_factor {} is not supported for {}, only 1",
                file, partial, row.hf_class);
  }
  if (!(partial > 0 && partial < 1)) {
    return Fail(Code::kInvalidArgument, "{}: partial_rotary_factor is {}, it must be in (0, 1]",
                file, partial);
  }
  rope.rotated_dims = static_cast<uint32_t>(config.head_dim * partial);
  return rope;
}

Status ParseTwoRopes(const json& object, const Architecture& row, const std::string& file,
                     ModelConfig& config) {
  json full = object, local = json::object();
  if (const auto both = object.find("rope_parameters");
      both != object.end() && both->is_object() &&
      (both->contains("full_attention") || both->contains("sliding_attention"))) {
    full["rope_parameters"] = both->value("full_attention", json());
    local["rope_parameters"] = both->value("sliding_attention", json());
  }
  Fields full_fields(full, file), local_fields(local, file), fields(object, file);
  KV_ASSIGN(config.rope, ParseRope(full_fields, row, config, file));
  local["rope_theta"] = fields.Number("rope_local_base_freq", kLocalTheta);
  KV_TRY(fields.status());
  KV_ASSIGN(config.local_rope, ParseRope(local_fields, row, config, file));
  return {};
}

}  // namespace kvasir
