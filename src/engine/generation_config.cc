#include "engine/generation_config.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "base/json_object.h"
#include "base/result.h"
#include "import/hf_fields.h"
#include "kvasir/sampling_ranges.h"

namespace kvasir {

Result<SamplingDefaults> ParseGenerationConfig(std::string_view text, const std::string& file) {
  SamplingDefaults defaults;
  if (text.empty()) return defaults;
  KV_ASSIGN(const nlohmann::json object, ParseJsonObject(text, file));
  Fields fields(object, file);
  const auto number = [&fields](const char* key, SamplingRange range) -> std::optional<float> {
    const std::optional<double> value = fields.NumberWithin(key, range.least, range.most);
    if (!value) return std::nullopt;
    return static_cast<float>(*value);
  };
  defaults.temperature = number("temperature", kTemperatureRange);
  defaults.top_p = number("top_p", kProbabilityRange);
  defaults.min_p = number("min_p", kProbabilityRange);
  defaults.repetition_penalty = number("repetition_penalty", kRepetitionPenaltyRange);
  const std::optional<float> top_k = number("top_k", {-1, 1 << 24});
  if (!fields.status()) {
    return Fail(Code::kInvalidArgument, "{}; correct it, or start with --generation-config none",
                fields.status().error().message);
  }
  if (top_k) defaults.top_k = *top_k < 0 ? 0 : static_cast<uint32_t>(*top_k);
  return defaults;
}

SamplingParams SamplingDefaults::Over(SamplingParams params) const {
  params.temperature = temperature.value_or(params.temperature);
  params.top_k = top_k.value_or(params.top_k);
  params.top_p = top_p.value_or(params.top_p);
  params.min_p = min_p.value_or(params.min_p);
  params.repetition_penalty = repetition_penalty.value_or(params.repetition_penalty);
  return params;
}

std::optional<std::string> SamplingDefaults::Text() const {
  std::string text;
  const auto add = [&text](const char* name, const auto& value) {
    if (value) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, *value);
  };
  add("temperature", temperature);
  add("top_k", top_k);
  add("top_p", top_p);
  add("min_p", min_p);
  add("repetition_penalty", repetition_penalty);
  if (text.empty()) return std::nullopt;
  return text;
}

}  // namespace kvasir
