#include "base/result.h"
#include "kvasir/sampling_params.h"
#include "kvasir/sampling_ranges.h"

namespace kvasir {
namespace {

Status InRange(const char* field, float value, SamplingRange range) {
  const auto least = static_cast<float>(range.least), most = static_cast<float>(range.most);
  if (value >= least && value <= most) return {};  // false for NaN
  return FailField(Code::kInvalidArgument, field, "{} is not in [{}, {}]", value, least, most);
}

}  // namespace

Status ValidateSampling(const SamplingParams& params, uint32_t vocab_size) {
  KV_TRY(InRange("temperature", params.temperature, kTemperatureRange));
  KV_TRY(InRange("top_p", params.top_p, kProbabilityRange));
  KV_TRY(InRange("min_p", params.min_p, kProbabilityRange));
  KV_TRY(InRange("repetition_penalty", params.repetition_penalty, kRepetitionPenaltyRange));
  KV_TRY(InRange("presence_penalty", params.presence_penalty, kAnswerPenaltyRange));
  KV_TRY(InRange("frequency_penalty", params.frequency_penalty, kAnswerPenaltyRange));
  for (const auto& [id, bias] : params.logit_bias) {
    if (id < 0 || static_cast<uint32_t>(id) >= vocab_size) {
      return FailField(Code::kInvalidArgument, "logit_bias",
                       "token {} is outside the vocabulary [0, {})", id, vocab_size);
    }
    if (bias != kForbidden) KV_TRY(InRange("logit_bias", bias, kLogitBiasRange));
  }
  if (params.infill && (params.top_k == 0 || params.top_k > kMaxInfillCandidates)) {
    return FailField(Code::kInvalidArgument, "samplers",
                     "infill needs top_k before it, of 1 to {}; it is {}", kMaxInfillCandidates,
                     params.top_k);
  }
  return {};
}

}  // namespace kvasir
