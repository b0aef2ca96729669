#include "engine/generation_config.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "base/json_object.h"
#include "base/result.h"
#include "kvasir/sampling_ranges.h"

namespace kvasir {
namespace {

// Reads numbers and keeps the first error.
class Values {
 public:
  Values(const nlohmann::json& object, const std::string& file) : object_(object), file_(file) {}

  const Status& status() const { return status_; }
  std::optional<float> Number(const char* key, SamplingRange range) {
    const auto [low, high] = range;
    const auto found = object_.find(key);
    if (found == object_.end() || found->is_null()) return std::nullopt;
    const double value = found->is_number() ? found->get<double>() : high + 1;
    if (value >= low && value <= high) return static_cast<float>(value);
    if (status_) {
      status_ = Fail(Code::kInvalidArgument,
                     "{}: {} is no number within {} and {}; correct it, or start with "
                     "--generation-config none",
                     file_, key, low, high);
    }
    return std::nullopt;
  }

 private:
  const nlohmann::json& object_;
  const std::string& file_;
  Status status_;
};

}  // namespace

Result<SamplingDefaults> ParseGenerationConfig(std::string_view text, const std::string& file) {
  SamplingDefaults defaults;
  if (text.empty()) return defaults;
  KV_ASSIGN(const nlohmann::json object, ParseJsonObject(text, file));
  Values values(object, file);
  defaults.temperature = values.Number("temperature", kTemperatureRange);
  defaults.top_p = values.Number("top_p", kProbabilityRange);
  defaults.min_p = values.Number("min_p", kProbabilityRange);
  defaults.repetition_penalty = values.Number("repetition_penalty", kRepetitionPenaltyRange);
  const std::optional<float> top_k = values.Number("top_k", {-1, 1 << 24});
  KV_TRY(values.status());
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
