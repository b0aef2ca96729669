#include "observe/receipt_json.h"

#include <cmath>
#include <nlohmann/json.hpp>

namespace kvasir {
namespace {

// The clock behind these figures is not more precise than microseconds.
double RoundMs(double ms) { return std::round(ms * 1000.0) / 1000.0; }

nlohmann::json MissJson(const std::optional<Miss>& miss) {
  if (!miss) return nullptr;
  nlohmann::json json = {{"reason", ToString(miss->reason)}, {"at_token", miss->at_token}};
  json["message_index"] = nullptr;
  if (miss->message_index) json["message_index"] = *miss->message_index;
  return json;
}

}  // namespace

nlohmann::json ReceiptJson(const Receipt& receipt) {
  return {{"prompt_tokens", receipt.prompt_tokens},
          {"computed", receipt.computed},
          {"reused",
           {{"pool", receipt.reused_pool},
            {"partial", receipt.reused_partial},
            {"disk", receipt.reused_disk},
            {"remote", receipt.reused_remote}}},
          {"preemptions", receipt.preemptions},
          {"recomputed", receipt.recomputed},
          {"miss", MissJson(receipt.miss)},
          {"ignored", receipt.ignored},
          {"saved_ms", RoundMs(receipt.saved_ms)},
          {"queue_ms", RoundMs(receipt.queue_ms)},
          {"ttft_ms", RoundMs(receipt.ttft_ms)},
          {"tpot_ms", RoundMs(receipt.tpot_ms)}};
}

}  // namespace kvasir
