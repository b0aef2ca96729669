// OpenAiWriter::Body: a whole answer, piece by piece.
#include <nlohmann/json.hpp>

#include "api/openai_json.h"
#include "api/openai_writer.h"
#include "http/json_fields.h"
#include "observe/receipt_json.h"

namespace kvasir {
namespace {

using nlohmann::json;

// The text of an object without its closing brace.
std::string OpenObject(const json& object) {
  std::string text = Dump(object);
  text.back() = ',';
  return text;
}

}  // namespace

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
  if (const auto tokens = answer.reasoning_tokens()) {
    usage["completion_tokens_details"] = {{"reasoning_tokens", *tokens}};
  }
  return usage;
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
  envelope["kvasir"] = FinalReceipt(answer);
  envelope["timings"] = TimingsJson(answer.timings());
  std::string out = OpenObject(envelope) + "\"choices\":";
  for (size_t i = 0; i < answer.choices().size(); ++i) {
    out += i == 0 ? '[' : ',';
    Parts choice = ChoiceText(answer, i);
    for (std::string part = choice.Next(); !part.empty(); part = choice.Next()) {
      out += part;
      if (out.size() >= kPartBytes) co_yield out;
    }
  }
  out += ']';
  if (form_.verbosely) {
    out += ",\"__verbose\":";
    Parts verbose = VerboseText(answer);
    for (std::string part = verbose.Next(); !part.empty(); part = verbose.Next()) {
      out += part;
      if (out.size() >= kPartBytes) co_yield out;
    }
  }
  out += '}';
  co_yield out;
}

Parts OpenAiWriter::VerboseText(const Answer& answer) const {
  std::string out = OpenObject({{"tokens_evaluated", answer.receipt().prompt_tokens},
                                {"tokens_predicted", answer.completion_tokens()}});
  out += "\"generation_settings\":" + form_.verbosely->settings + ",\"prompt\":";
  const std::vector<std::string>& prompts = form_.verbosely->prompts;
  if (prompts.size() != 1) out += '[';
  for (size_t i = 0; i < prompts.size(); ++i) {
    out += i == 0 ? "\"" : ",\"";
    std::string_view rest = prompts[i];
    while (!rest.empty()) {
      AppendEscaped(&rest, &out);
      if (out.size() >= kPartBytes) co_yield out;
    }
    out += '"';
  }
  out += prompts.size() != 1 ? "]}" : "}";
  co_yield out;
}

Parts OpenAiWriter::ChoiceText(const Answer& answer, size_t index) const {
  const Answer::Choice& choice = answer.choice(index);
  std::string out =
      OpenObject({{"index", index},
                  {"finish_reason", FinishOf(choice)},
                  {"stop_reason", choice.stop_match ? json(*choice.stop_match) : json()}});
  const std::pair<const char*, bool> id_lists[] = {{"\"token_ids\":", form_.return_token_ids},
                                                   {"\"tokens\":", form_.return_tokens}};
  for (const auto& [key, wanted] : id_lists) {
    if (!wanted) continue;
    out += key;
    for (size_t i = 0; i < choice.ids.size(); ++i) {
      out += (i == 0 ? '[' : ',');
      out += std::to_string(choice.ids[i]);
      if (out.size() >= kPartBytes) co_yield out;
    }
    out += choice.ids.empty() ? "[]," : "],";
  }
  out += "\"logprobs\":";
  if (answer.spec().logprobs) {
    Parts logprobs = form_.chat
                         ? choice.scored.ChatText(answer.tokenizer())
                         : choice.scored.LegacyText(
                               answer.scores_prompts() ? 0 : CountCharacters(answer.EchoOf(index)),
                               answer.tokenizer());
    for (std::string part = logprobs.Next(); !part.empty(); part = logprobs.Next()) {
      out += part;
      if (out.size() >= kPartBytes) co_yield out;
    }
  } else {
    out += "null";
  }
  // Names and texts in turn.
  std::vector<std::pair<std::string, std::string_view>> texts;
  const std::string_view reasoning =
      choice.read ? std::string_view(choice.read->reasoning) : std::string_view();
  const std::span<const ToolCall> calls =
      choice.read ? std::span<const ToolCall>(choice.read->calls) : std::span<const ToolCall>();
  const bool no_content = choice.text.empty() && !calls.empty();
  std::string before =
      form_.chat ? R"(,"message":{"role":"assistant","refusal":null,"content":)" : R"(,"text":)";
  if (no_content) {
    before += "null";
  } else {
    texts.emplace_back(before + '"', answer.EchoOf(index));
    texts.emplace_back("", choice.text);
    before = "\"";
  }
  if (!reasoning.empty()) {
    texts.emplace_back(before + ",\"reasoning_content\":\"", reasoning);
    before = "\"";
  }
  for (const ToolCall& call : calls) {
    before += &call == &calls.front() ? ",\"tool_calls\":[" : "\"}},";
    json named = {{"id", call.id}, {"type", "function"}};
    before += OpenObject(named) + "\"function\":" + OpenObject({{"name", call.name}}) +
              "\"arguments\":\"";
    texts.emplace_back(std::move(before), call.arguments);
    before.clear();
  }
  for (auto& [name, rest] : texts) {
    out += name;
    while (!rest.empty()) {
      AppendEscaped(&rest, &out);
      if (out.size() >= kPartBytes) co_yield out;
    }
  }
  out += calls.empty() ? before : "\"}}]";
  out += form_.chat ? "}}" : "}";
  co_yield out;
}

}  // namespace kvasir
