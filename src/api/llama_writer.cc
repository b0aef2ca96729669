#include "api/llama_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "api/logprobs_json.h"
#include "http/errors.h"
#include "http/json_body.h"
#include "observe/receipt_json.h"

namespace kvasir {
namespace {

using nlohmann::json;

std::string IdsText(const std::vector<GeneratedToken>& tokens) {
  return ListParts(tokens, [](const GeneratedToken& token) { return std::to_string(token.id); })
      .Rest();
}

// "a/b" of each path, where the object has it, under the path as its name.
json FieldsAt(const std::vector<std::string>& paths, const json& object) {
  json found = json::object();
  for (const std::string& path : paths) {
    const json* at = &object;
    for (size_t begin = 0; at != nullptr && begin <= path.size();) {
      const size_t end = std::min(path.find('/', begin), path.size());
      const auto next = at->is_object() ? at->find(path.substr(begin, end - begin)) : at->end();
      at = at->is_object() && next != at->end() ? &*next : nullptr;
      begin = end + 1;
    }
    if (at != nullptr) found[path] = *at;
  }
  return found;
}

bool IsByWord(FinishReason finish, const std::optional<std::string>& match) {
  return finish == FinishReason::kStop && match.has_value();
}

const char* StopType(FinishReason finish, const std::optional<std::string>& match) {
  if (finish == FinishReason::kLength) return "limit";
  if (finish != FinishReason::kStop) return "none";
  return match ? "word" : "eos";
}

}  // namespace

void LlamaWriter::See(const Answer&, const Answer::Step& step, const Event& event) {
  if (event.text.find('\n') != std::string::npos) has_new_line_[step.choice] = true;
}

uint64_t LlamaWriter::held_bytes() const {
  uint64_t bytes = sizeof(*this) + spec_.settings.size();
  for (const std::string& text : spec_.prompts) bytes += sizeof(text) + text.capacity();
  return bytes;
}

bool LlamaWriter::Wants(std::string_view field) const {
  const auto& fields = spec_.response_fields;
  return fields.empty() || std::ranges::find(fields, field) != fields.end();
}

std::string LlamaWriter::BeginEvent(const Answer& answer, uint32_t index) const {
  return fmt::format(
      R"(data: {{"index":{},"id_slot":{},"stop":false,"tokens_predicted":{},"tokens_evaluated":{},"content":)",
      index, spec_.id_slot, answer.choice(index).num_tokens,
      spec_.prompt_tokens[answer.PromptOf(index)]);
}

std::string LlamaWriter::StepEvents(const Answer& answer, const Answer::Step& step,
                                    const Event& event) {
  const uint32_t index = step.choice;
  if (event.text.empty() && event.tokens.empty()) return "";  // its end waits for the receipt
  std::string out = BeginEvent(answer, index) + Quoted(event.text) + ",\"tokens\":";
  out += IdsText(event.tokens);
  if (answer.spec().logprobs && !event.tokens.empty()) {
    out += ",\"completion_probabilities\":" +
           Dump(LlamaProbabilities(event.tokens, spec_.probs(), answer.tokenizer()));
  }
  if (event.progress && answer.spec().timings_per_token) {
    out += ",\"timings\":" +
           Dump(TimingsJson(TimingsOf(*event.progress, answer.choice(index).num_tokens)));
  }
  return out + "}\n\n";
}

std::string LlamaWriter::ProgressEvent(const Answer& answer, uint32_t index,
                                       const Progress& progress) {
  std::string out = BeginEvent(answer, index) + R"("","tokens":[],"prompt_progress":)";
  out += Dump(ProgressJson(progress));
  if (answer.spec().timings_per_token)
    out += ",\"timings\":" + Dump(TimingsJson(TimingsOf(progress, 0)));
  return out + "}\n\n";
}

std::string LlamaWriter::EndEvents(const Answer& answer, size_t prompt) {
  std::string out;
  for (size_t i = 0; i < answer.spec().n; ++i) {
    out += "data: " + FinalText(answer, prompt * answer.spec().n + i).Rest() + "\n\n";
  }
  return out;
}

std::string LlamaWriter::ErrorEvent(const Error& error) const {
  return "data: {\"error\":" + ErrorObject(error) + "}\n\n";
}

Parts LlamaWriter::Body(const Answer& answer) const {
  const bool is_list = answer.choices().size() > 1;
  if (is_list) co_yield "[";
  for (size_t i = 0; i < answer.choices().size(); ++i) {
    if (i > 0) co_yield ",";
    co_yield FinalText(answer, i);
  }
  if (is_list) co_yield "]";
}

json LlamaWriter::FinalFields(const Answer& answer, size_t index) const {
  const Answer::Choice& choice = answer.choice(index);
  const size_t prompt = answer.PromptOf(index);
  const uint64_t prompt_tokens = spec_.prompt_tokens[prompt];
  const uint64_t tokens = prompt_tokens + choice.num_tokens;
  const bool is_length = choice.finish == FinishReason::kLength;
  const bool by_word = IsByWord(choice.finish, choice.stop_match);
  const auto& retention = answer.ReceiptOf(prompt).retention;
  const bool is_cut = retention ? retention->dropped > 0 : is_length && tokens >= spec_.ctx_size;
  json fields = {{"index", index},
                 {"id_slot", spec_.id_slot},
                 {"stop", true},
                 {"model", answer.spec().model},
                 {"tokens_predicted", choice.num_tokens},
                 {"tokens_evaluated", prompt_tokens},
                 // The last token of an answer has no KV.
                 {"tokens_cached", tokens - (choice.num_tokens > 0 ? 1 : 0)},
                 {"has_new_line", static_cast<bool>(has_new_line_[index])},
                 {"truncated", is_cut},
                 {"stop_type", StopType(choice.finish, choice.stop_match)},
                 {"stopping_word", by_word ? *choice.stop_match : ""},
                 {"system_fingerprint", answer.spec().fingerprint},
                 {"timings", TimingsJson(answer.TimingsOf(prompt))},
                 {"kvasir", ReceiptJson(answer.ReceiptOf(prompt))}};
  const auto& paths = spec_.response_fields;
  if (paths.empty()) return fields;
  fields["generation_settings"] = json::parse(spec_.settings);
  return FieldsAt(paths, fields);
}

Parts LlamaWriter::FinalText(const Answer& answer, size_t index) const {
  const Answer::Choice& choice = answer.choice(index);
  std::string fields = Dump(FinalFields(answer, index));
  fields.pop_back();  // not BeginObject: the request may name no field here, and none that follows
  // Makes the beginning of a member.
  auto key = [is_first = fields == "{"](std::string_view name) mutable {
    return fmt::format("{}\"{}\":", std::exchange(is_first, false) ? "" : ",", name);
  };
  co_yield fields;
  if (spec_.response_fields.empty()) {
    co_yield key("generation_settings") + spec_.settings;
  }
  const std::pair<const char*, std::string_view> texts[] = {
      {"content", choice.text},
      {"prompt",
       spec_.prompts.empty() ? std::string_view() : spec_.prompts[answer.PromptOf(index)]}};
  for (const auto& [name, text] : texts) {
    if (!Wants(name)) continue;
    co_yield key(name);
    co_yield QuotedParts(text);
  }
  if (Wants("tokens")) {
    co_yield key("tokens");
    co_yield ListParts(choice.ids);
  }
  if (answer.spec().logprobs && !answer.spec().stream && Wants("completion_probabilities")) {
    co_yield key("completion_probabilities");
    co_yield choice.scored.LlamaText(spec_.probs(), answer.tokenizer());
  }
  co_yield "}";
}

}  // namespace kvasir
