#include "cli/sampling_flags.h"

#include <limits>

#include "base/result.h"
#include "kvasir/sampling_ranges.h"

namespace kvasir::cli {

std::vector<Flag> SamplingFlags() {
  return {{"max-tokens", "N", "at most N tokens of answer (default: the room that is left)"},
          {"temperature", "T",
           "0 (default without a generation_config.json): always the likeliest token, so runs "
           "repeat"},
          {"seed", "S", "the same seed gives the same text"},
          {"top-k", "N", "only the N likeliest tokens (default 0: all)"},
          {"top-p", "P", "only the likeliest tokens that make up P (default 1)"},
          {"min-p", "P", "only tokens at least P times as likely as the likeliest (default 0)"},
          {"repetition-penalty", "X", "over prompt and answer (default 1: none)"},
          {"presence-penalty", "X", "over the answer (default 0)"},
          {"frequency-penalty", "X", "over the answer (default 0)"},
          {"stop", "TEXT", "end before TEXT; may be given several times", FlagKind::kList}};
}

std::vector<Flag> GenerationConfigFlags() {
  return {{"generation-config", "auto|none",
           "auto (default): the model folder's generation_config.json says how to sample where "
           "nothing else does; none: it is not looked at"}};
}

Status ReadSampling(const Args& args, GenerateRequest& request) {
  SamplingParams& sampling = request.sampling;
  const auto number = [&args](const char* name, SamplingRange range, float otherwise) {
    return args.Float(name, {range.least, range.most}, otherwise);
  };
  KV_ASSIGN(sampling.temperature, number("temperature", kTemperatureRange, 0));
  KV_ASSIGN(const uint64_t top_k, args.Uint("top-k", 0, UINT32_MAX, 0));
  sampling.top_k = static_cast<uint32_t>(top_k);
  KV_ASSIGN(sampling.top_p, number("top-p", kProbabilityRange, 1));
  KV_ASSIGN(sampling.min_p, number("min-p", kProbabilityRange, 0));
  KV_ASSIGN(sampling.repetition_penalty, number("repetition-penalty", kRepetitionPenaltyRange, 1));
  KV_ASSIGN(sampling.presence_penalty, number("presence-penalty", kAnswerPenaltyRange, 0));
  KV_ASSIGN(sampling.frequency_penalty, number("frequency-penalty", kAnswerPenaltyRange, 0));
  if (args.Has("seed")) {
    KV_ASSIGN(sampling.seed, args.Uint("seed", 0, std::numeric_limits<uint64_t>::max(), 0));
  }
  request.stop = args.List("stop");
  for (const std::string& stop : request.stop) {
    if (stop.empty()) {
      return Fail(Code::kInvalidArgument,
                  "--stop: an empty string would stop every answer at once; leave it out");
    }
  }
  KV_ASSIGN(const uint64_t max_tokens, args.Uint("max-tokens", 0, UINT32_MAX, request.max_tokens));
  request.max_tokens = static_cast<uint32_t>(max_tokens);
  return {};
}

void TakeDefaults(const Args& args, const SamplingDefaults& defaults, SamplingParams& sampling) {
  SamplingDefaults left = defaults;
  if (args.Has("temperature")) left.temperature.reset();
  if (args.Has("top-k")) left.top_k.reset();
  if (args.Has("top-p")) left.top_p.reset();
  if (args.Has("min-p")) left.min_p.reset();
  if (args.Has("repetition-penalty")) left.repetition_penalty.reset();
  sampling = left.Over(sampling);
}

Result<std::vector<TokenId>> ParseIds(const std::string& text, const std::string& flag) {
  Args args;
  args.Set(flag, {text});
  constexpr uint64_t kMax = std::numeric_limits<TokenId>::max();
  KV_ASSIGN(const std::vector<uint64_t> values, args.UintList(flag, 0, kMax, {}));
  return std::vector<TokenId>(values.begin(), values.end());
}

}  // namespace kvasir::cli
