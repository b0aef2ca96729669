// Answer::Body: a whole answer, piece by piece.
#include <nlohmann/json.hpp>

#include "api/openai_response.h"
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

Parts Answer::Body() const {
  json envelope = Envelope(false);
  envelope["usage"] = Usage();
  envelope["kvasir"] = FinalReceipt();
  envelope["timings"] = TimingsJson(timings_);
  std::string out = OpenObject(envelope) + "\"choices\":";
  for (size_t i = 0; i < choices_.size(); ++i) {
    out += i == 0 ? '[' : ',';
    Parts choice = ChoiceText(i);
    for (std::string part = choice.Next(); !part.empty(); part = choice.Next()) {
      out += part;
      if (out.size() >= kPartBytes) co_yield out;
    }
  }
  out += ']';
  if (spec_.verbosely) {
    out += ",\"__verbose\":";
    Parts verbose = VerboseText();
    for (std::string part = verbose.Next(); !part.empty(); part = verbose.Next()) {
      out += part;
      if (out.size() >= kPartBytes) co_yield out;
    }
  }
  out += '}';
  co_yield out;
}

Parts Answer::VerboseText() const {
  std::string out = OpenObject(
      {{"tokens_evaluated", receipt_.prompt_tokens}, {"tokens_predicted", completion_tokens_}});
  out += "\"generation_settings\":" + spec_.verbosely->settings + ",\"prompt\":";
  const std::vector<std::string>& prompts = spec_.verbosely->prompts;
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

Parts Answer::ChoiceText(size_t index) const {
  const Choice& choice = choices_[index];
  std::string out =
      OpenObject({{"index", index},
                  {"finish_reason", FinishOf(choice)},
                  {"stop_reason", choice.stop_match ? json(*choice.stop_match) : json()}});
  const std::pair<const char*, bool> id_lists[] = {{"\"token_ids\":", spec_.return_token_ids},
                                                   {"\"tokens\":", spec_.return_tokens}};
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
  if (spec_.logprobs) {
    Parts logprobs =
        spec_.chat ? choice.scored.ChatText(tokenizer_)
                   : choice.scored.LegacyText(scored_.empty() ? choice.characters : 0, tokenizer_);
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
      spec_.chat ? R"(,"message":{"role":"assistant","refusal":null,"content":)" : R"(,"text":)";
  if (no_content) {
    before += "null";
  } else {
    texts.emplace_back(before + '"', EchoOf(index));
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
  out += spec_.chat ? "}}" : "}";
  co_yield out;
}

}  // namespace kvasir
