#include "observe/receipt_json.h"

#include <cmath>
#include <nlohmann/json.hpp>

namespace kvasir {
namespace {

// Rounds to microseconds: the clock of these figures is not more precise.
double RoundMs(double ms) { return std::round(ms * 1000.0) / 1000.0; }

nlohmann::json EstimateJson(const std::optional<double>& estimate_ms) {
  if (!estimate_ms) return nullptr;
  return RoundMs(*estimate_ms);
}

nlohmann::json MissJson(const std::optional<Miss>& miss) {
  if (!miss) return nullptr;
  nlohmann::json json = {{"reason", ToString(miss->reason)}, {"at_token", miss->at_token}};
  json["message_index"] = nullptr;
  if (miss->message_index) json["message_index"] = *miss->message_index;
  return json;
}

nlohmann::json DraftJson(const DraftReceipt& draft) {
  if (draft.steps == 0) return nullptr;
  return {{"steps", draft.steps},
          {"drafted", draft.all_drafted()},
          {"accepted", draft.all_accepted()},
          {"sources",
           {{"memory", draft.accepted[static_cast<size_t>(DraftSource::kMemory)]},
            {"prediction", draft.accepted[static_cast<size_t>(DraftSource::kPrediction)]},
            {"model", draft.accepted[static_cast<size_t>(DraftSource::kModel)]}}}};
}

nlohmann::json InexactJson(const Receipt& receipt) {
  const auto json = [](const auto& part, const char* why) -> nlohmann::json {
    if (!part || !part->inexact_from) return nullptr;
    return {{"from", *part->inexact_from}, {"why", why}};
  };
  return receipt.spans ? json(receipt.spans, "spans") : json(receipt.retention, "retention");
}

nlohmann::json SpansJson(const std::optional<SpansReceipt>& spans) {
  if (!spans) return nullptr;
  return {{"count", spans->count},
          {"plain", spans->plain},
          {"reused_tokens", spans->reused_tokens},
          {"computed_tokens", spans->computed_tokens},
          {"seam_tokens", spans->seam_tokens}};
}

nlohmann::json RetentionJson(const std::optional<RetentionReceipt>& retention) {
  if (!retention) return nullptr;
  nlohmann::json json = {{"policy", ToString(retention->policy)},
                         {"budget", retention->budget},
                         {"sinks", retention->sinks},
                         {"recent", retention->recent},
                         {"kept", retention->kept},
                         {"dropped", retention->dropped},
                         {"decisions", retention->decisions},
                         {"inexact_from", nullptr}};
  if (retention->inexact_from) json["inexact_from"] = *retention->inexact_from;
  return json;
}

nlohmann::json AdaptersJson(const std::vector<UsedAdapter>& adapters) {
  nlohmann::json list = nlohmann::json::array();
  for (const UsedAdapter& used : adapters) {
    list.push_back({{"name", used.name}, {"scale", used.scale}, {"digest", used.digest}});
  }
  return list;
}

nlohmann::json VolatileJson(const std::vector<VolatileLine>& lines) {
  nlohmann::json list = nlohmann::json::array();
  const auto number = [](const std::optional<uint32_t>& value) {
    return value ? nlohmann::json(*value) : nlohmann::json();
  };
  for (const VolatileLine& line : lines) {
    list.push_back({{"message_index", number(line.message_index)},
                    {"line", number(line.line)},
                    {"repeated_tokens", line.repeated_tokens}});
  }
  return list;
}

}  // namespace

nlohmann::json ReceiptJson(const Receipt& receipt) {
  nlohmann::json json = {{"prompt_tokens", receipt.prompt_tokens},
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
                         {"adapters", AdaptersJson(receipt.adapters)},
                         {"saved_ms", RoundMs(receipt.saved_ms)},
                         {"queue_ms", RoundMs(receipt.queue_ms)},
                         {"shared_ms", RoundMs(receipt.shared_ms)},
                         {"cache_ms", RoundMs(receipt.cache_ms)},
                         {"load_ms", RoundMs(receipt.load_ms)},
                         {"compute_ms", RoundMs(receipt.compute_ms)},
                         {"estimate_ms", EstimateJson(receipt.estimate_ms)},
                         {"ttft_ms", RoundMs(receipt.ttft_ms)},
                         {"tpot_ms", RoundMs(receipt.tpot_ms)},
                         {"draft", DraftJson(receipt.draft)},
                         {"inexact", InexactJson(receipt)},
                         {"retention", RetentionJson(receipt.retention)},
                         {"spans", SpansJson(receipt.spans)}};
  if (receipt.clock_in_prompt) json["clock_in_prompt"] = true;
  if (receipt.kept) json["kept"] = *receipt.kept;
  if (receipt.cured.dropped > 0 || receipt.cured.moved > 0) {
    json["cured"] = {{"dropped", receipt.cured.dropped}, {"moved", receipt.cured.moved}};
  }
  if (!receipt.volatile_lines.empty()) json["volatile"] = VolatileJson(receipt.volatile_lines);
  if (receipt.source_tokens > 0) {
    json["source_tokens"] = receipt.source_tokens;
    json["source_reused"] = receipt.source_reused;
  }
  return json;
}

}  // namespace kvasir
