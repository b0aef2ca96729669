#include "schedule/match_receipt.h"

#include <algorithm>

namespace kvasir {

void ExplainMatch(Request& request, const MatchResult& match) {
  const GenerateRequest& spec = request.spec;
  Receipt& receipt = request.receipt;
  receipt.prompt_tokens = request.prompt_tokens();
  receipt.reused_pool = match.num_pool();
  receipt.reused_partial = match.num_partial();
  receipt.computed = receipt.prompt_tokens - match.num_reused();
  receipt.ignored = spec.ignored;
  receipt.clock_in_prompt = spec.clock_in_prompt;
  receipt.cured = spec.cured;
  receipt.source_tokens = static_cast<uint32_t>(spec.source.size());
  receipt.source_reused = match.source_miss ? 0 : receipt.source_tokens;
  const bool has_no_reason = match.miss && (match.miss->reason == MissReason::kCold ||
                                            match.miss->reason == MissReason::kDiverged);
  if (spec.identity_changed && has_no_reason) {
    SetReceiptMiss(request, MissReason::kIdentityChanged,
                   match.source_miss ? 0 : match.miss->at_token);
  } else if (match.source_miss) {
    SetReceiptMiss(request, *match.source_miss, 0);
  } else if (match.miss) {
    SetReceiptMiss(request, match.miss->reason, match.miss->at_token);
  }
}

void SetReceiptMiss(Request& request, MissReason reason, uint32_t at_token) {
  Miss& miss = request.receipt.miss.emplace(Miss{reason, at_token, std::nullopt});
  const auto& ends = request.spec.message_ends;
  const auto message = std::upper_bound(ends.begin(), ends.end(), at_token);
  if (message != ends.end()) miss.message_index = static_cast<uint32_t>(message - ends.begin());
}

}  // namespace kvasir
