// OpenAiWriter::Body: a whole answer, piece by piece.
#include <nlohmann/json.hpp>

#include "api/openai_json.h"
#include "api/openai_writer.h"
#include "http/json_body.h"
#include "observe/receipt_json.h"

namespace kvasir {

using nlohmann::json;

json FinishOf(const Answer::Choice& choice) {
  if (choice.finish == FinishReason::kNone) return {};
  const bool calls = choice.read && choice.read->pieces.num_calls() > 0;
  return calls && choice.finish == FinishReason::kStop ? "tool_calls" : ToString(choice.finish);
}

json UsageJson(const Answer& answer) {
  const Receipt& receipt = answer.receipt();
  json usage = {{"prompt_tokens", receipt.prompt_tokens},
                {"completion_tokens", answer.completion_tokens()},
                {"total_tokens", receipt.prompt_tokens + answer.completion_tokens()},
                {"prompt_tokens_details", {{"cached_tokens", receipt.cached_tokens()}}}};
  if (receipt.kept) {
    usage["prompt_tokens_details"]["cache_write_tokens"] =
        *receipt.kept - std::min(*receipt.kept, receipt.cached_tokens());
  }
  if (const auto tokens = answer.reasoning_tokens()) {
    usage["completion_tokens_details"]["reasoning_tokens"] = *tokens;
  }
  if (answer.spec().predicts) {
    constexpr auto kPrediction = static_cast<size_t>(DraftSource::kPrediction);
    const uint32_t accepted = receipt.draft.accepted[kPrediction];
    json& details = usage["completion_tokens_details"];
    details["accepted_prediction_tokens"] = accepted;
    details["rejected_prediction_tokens"] = receipt.draft.drafted[kPrediction] - accepted;
  }
  return usage;
}

namespace {

json CacheDiagnostics(const HeadComparison& compared, uint32_t cached) {
  const auto missed = [&](const char* reason) -> json {
    return {{"type", "cache_miss"},
            {"reason", reason},
            {"cache_missed_tokens", compared.missed(cached)},
            {"comparison_reusable_tokens", compared.tokens}};
  };
  switch (compared.ChangeWith(cached)) {
    case HeadChange::kNone:
      if (cached > 0) return {{"type", "cache_hit"}};
      break;  // it has left the cache
    case HeadChange::kUnknown:
      return {{"type", "comparison_response_not_found"}};
    case HeadChange::kModel:
      return missed("model_changed");
    case HeadChange::kTools:
      return missed("tools_changed");
    case HeadChange::kSystem:
    case HeadChange::kMessages:
      return missed("input_changed");
    case HeadChange::kUnavailable:
      break;
  }
  return {{"type", "unavailable"}};
}

}  // namespace

void AddCacheDiagnostics(const Answer& answer, json* body) {
  const auto& compared = answer.spec().compared;
  if (!compared) return;
  (*body)["prompt_cache_diagnostics"] =
      CacheDiagnostics(*compared, answer.receipt().cached_tokens());
}

json FinalReceipt(const Answer& answer) {
  json receipt = ReceiptJson(answer.receipt());
  const auto& session = answer.spec().session;
  if (session && session->dropped_messages) {
    receipt["dropped_messages"] = *session->dropped_messages;
  }
  return receipt;
}

Parts OpenAiWriter::Body(const Answer& answer) const {
  json envelope = Envelope(answer, false);
  envelope["usage"] = UsageJson(answer);
  AddCacheDiagnostics(answer, &envelope);
  envelope["kvasir"] = FinalReceipt(answer);
  envelope["timings"] = TimingsJson(answer.timings());
  co_yield BeginObject(envelope) + "\"choices\":";
  for (size_t i = 0; i < answer.choices().size(); ++i) {
    co_yield i == 0 ? "[" : ",";
    co_yield ChoiceText(answer, i);
  }
  co_yield "]";
  if (form_.verbosely) {
    co_yield ",\"__verbose\":";
    co_yield VerboseText(answer);
  }
  co_yield "}";
}

Parts OpenAiWriter::VerboseText(const Answer& answer) const {
  const json counts = {{"tokens_evaluated", answer.receipt().prompt_tokens},
                       {"tokens_predicted", answer.completion_tokens()}};
  co_yield BeginObject(counts) + "\"generation_settings\":" + form_.verbosely->settings +
      ",\"prompt\":";
  const std::vector<std::string>& prompts = form_.verbosely->prompts;
  if (prompts.size() != 1) co_yield "[";
  for (const std::string& prompt : prompts) {
    if (&prompt != prompts.data()) co_yield ",";
    co_yield QuotedParts(prompt);
  }
  co_yield prompts.size() != 1 ? "]}" : "}";
}

Parts OpenAiWriter::ChoiceText(const Answer& answer, size_t index) const {
  const Answer::Choice& choice = answer.choice(index);
  const json head = {{"index", index},
                     {"finish_reason", FinishOf(choice)},
                     {"stop_reason", choice.stop_match ? json(*choice.stop_match) : json()}};
  co_yield BeginObject(head);
  const std::pair<const char*, bool> id_lists[] = {{"\"token_ids\":", form_.return_token_ids},
                                                   {"\"tokens\":", form_.return_tokens}};
  for (const auto& [key, wanted] : id_lists) {
    if (!wanted) continue;
    co_yield key;
    co_yield ListParts(choice.ids);
    co_yield ",";
  }
  co_yield "\"logprobs\":";
  if (!answer.spec().logprobs) {
    co_yield "null";
  } else if (form_.chat) {
    co_yield choice.scored.ChatText(answer.tokenizer());
  } else {
    const uint64_t offset = answer.scores_prompts() ? 0 : CountCharacters(answer.EchoOf(index));
    co_yield choice.scored.LegacyText(offset, answer.tokenizer());
  }
  const std::span<const ToolCall> calls =
      choice.read ? std::span<const ToolCall>(choice.read->calls) : std::span<const ToolCall>();
  co_yield form_.chat ? R"(,"message":{"role":"assistant","refusal":null,"content":)"
                      : R"(,"text":)";
  if (choice.text.empty() && !calls.empty()) {
    co_yield "null";
  } else {
    co_yield "\"";
    co_yield EscapedParts(answer.EchoOf(index));
    co_yield EscapedParts(choice.text);
    co_yield "\"";
  }
  if (choice.read && !choice.read->reasoning.empty()) {
    co_yield ",\"reasoning_content\":";
    co_yield QuotedParts(choice.read->reasoning);
  }
  for (const ToolCall& call : calls) {
    co_yield &call == &calls.front() ? ",\"tool_calls\":[" : ",";
    const json named = {{"id", call.id}, {"type", "function"}}, function = {{"name", call.name}};
    co_yield BeginObject(named) + "\"function\":" + BeginObject(function) + "\"arguments\":";
    co_yield QuotedParts(call.arguments);
    co_yield "}}";
  }
  if (!calls.empty()) co_yield "]";
  co_yield form_.chat ? "}}" : "}";
}

}  // namespace kvasir
