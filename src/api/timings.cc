#include "api/timings.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace kvasir {
namespace {

double PerSecond(uint64_t tokens, double ms) {
  return ms > 0 ? static_cast<double>(tokens) * 1e3 / ms : 0;
}

double MsPerToken(double ms, uint64_t tokens) {
  return tokens > 0 ? ms / static_cast<double>(tokens) : 0;
}

}  // namespace

void Timings::Add(const Timings& other) {
  cached += other.cached;
  computed += other.computed;
  predicted += other.predicted;
  later += other.later;
  drafted += other.drafted;
  accepted += other.accepted;
  prompt_ms = std::max(prompt_ms, other.prompt_ms);
  predicted_ms = std::max(predicted_ms, other.predicted_ms);
}

Timings TimingsOf(const Receipt& receipt, uint64_t completion_tokens, uint32_t choices,
                  uint32_t longest) {
  return {.cached = receipt.cached_tokens(),
          .computed = receipt.computed,
          .predicted = completion_tokens,
          .later = completion_tokens - std::min<uint64_t>(completion_tokens, choices),
          .prompt_ms = receipt.cache_ms + receipt.load_ms + receipt.compute_ms,
          .predicted_ms = receipt.tpot_ms * (std::max(longest, 1u) - 1),
          .drafted = receipt.draft.all_drafted(),
          .accepted = receipt.draft.all_accepted()};
}

Timings TimingsOf(const Progress& progress, uint64_t completion_tokens) {
  return {.cached = progress.cached,
          .computed = progress.processed - progress.cached,
          .predicted = completion_tokens,
          .later = completion_tokens - std::min<uint64_t>(completion_tokens, 1),
          .prompt_ms = progress.prompt_ms,
          .predicted_ms = progress.answer_ms};
}

nlohmann::json TimingsJson(const Timings& timings) {
  nlohmann::json json = {
      {"cache_n", timings.cached},
      {"prompt_n", timings.computed},
      {"prompt_ms", timings.prompt_ms},
      {"prompt_per_token_ms", MsPerToken(timings.prompt_ms, timings.computed)},
      {"prompt_per_second", PerSecond(timings.computed, timings.prompt_ms)},
      {"predicted_n", timings.predicted},
      {"predicted_ms", timings.predicted_ms},
      {"predicted_per_token_ms", MsPerToken(timings.predicted_ms, timings.later)},
      {"predicted_per_second", PerSecond(timings.later, timings.predicted_ms)}};
  if (timings.drafted == 0) return json;
  json["draft_n"] = timings.drafted;
  json["draft_n_accepted"] = timings.accepted;
  return json;
}

nlohmann::json ProgressJson(const Progress& progress) {
  return {{"total", progress.total},
          {"cache", progress.cached},
          {"processed", progress.processed},
          {"time_ms", progress.prompt_ms}};
}

}  // namespace kvasir
