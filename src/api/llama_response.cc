#include "api/llama_response.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "api/logprobs_json.h"
#include "http/json_fields.h"
#include "observe/receipt_json.h"

namespace kvasir {
namespace {

using nlohmann::json;

std::string QuotedText(std::string_view text) { return Dump(json(text)); }

std::string IdsText(const std::vector<GeneratedToken>& tokens) {
  std::string text = "[";
  for (const GeneratedToken& token : tokens) {
    if (text.size() > 1) text += ',';
    text += std::to_string(token.id);
  }
  return text + "]";
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

LlamaAnswer::LlamaAnswer(AnswerSpec spec, size_t num_prompts, std::string id,
                         const Tokenizer* tokenizer)
    : Answer(std::move(spec), num_prompts, std::move(id), 0, tokenizer),
      receipts_(num_prompts),
      timings_(num_prompts),
      has_new_line_(choices_.size()) {
  held_bytes_ += num_prompts * (sizeof(Receipt) + sizeof(Timings)) + llama().settings.size();
  for (const std::string& text : llama().prompts) held_bytes_ += sizeof(text) + text.capacity();
}

bool LlamaAnswer::Wants(std::string_view field) const {
  const auto& fields = llama().response_fields;
  return fields.empty() || std::ranges::find(fields, field) != fields.end();
}

std::string LlamaAnswer::OpenEvent(uint32_t index) const {
  return fmt::format(
      R"(data: {{"index":{},"id_slot":{},"stop":false,"tokens_predicted":{},"tokens_evaluated":{},"content":)",
      index, llama().id_slot, choices_[index].num_tokens, llama().prompt_tokens[index / spec_.n]);
}

std::string LlamaAnswer::StreamEvent(uint32_t index, const Event& event) {
  if (event.text.find('\n') != std::string::npos) has_new_line_[index] = true;
  if (event.text.empty() && event.tokens.empty()) return "";  // its end waits for the receipt
  std::string out = OpenEvent(index) + QuotedText(event.text) + ",\"tokens\":";
  out += IdsText(event.tokens);
  if (spec_.logprobs && !event.tokens.empty()) {
    out += ",\"completion_probabilities\":" +
           Dump(LlamaProbabilities(event.tokens, llama().probs(), tokenizer_));
  }
  if (event.progress && spec_.timings_per_token) {
    out +=
        ",\"timings\":" + Dump(TimingsJson(TimingsOf(*event.progress, choices_[index].num_tokens)));
  }
  return out + "}\n\n";
}

std::string LlamaAnswer::ProgressEvent(uint32_t index, const Progress& progress) {
  std::string out = OpenEvent(index) + R"("","tokens":[],"prompt_progress":)";
  out += Dump(ProgressJson(progress));
  if (spec_.timings_per_token) out += ",\"timings\":" + Dump(TimingsJson(TimingsOf(progress, 0)));
  return out + "}\n\n";
}

void LlamaAnswer::AddReceipt(size_t prompt, const Event& event) {
  Answer::AddReceipt(prompt, event);
  receipts_[prompt] = event.receipt;
  timings_[prompt] = TimingsOfLast(prompt, event);
}

std::string LlamaAnswer::EndEvents(size_t prompt) {
  std::string out;
  for (size_t i = 0; i < spec_.n; ++i) {
    out += "data: ";
    Parts text = FinalText(prompt * spec_.n + i);
    for (std::string part = text.Next(); !part.empty(); part = text.Next()) out += part;
    out += "\n\n";
  }
  return out;
}

std::string LlamaAnswer::ErrorEvent(const Error& error) const {
  return "data: {\"error\":" + ErrorObject(error) + "}\n\n";
}

Parts LlamaAnswer::Body() const {
  std::string out = choices_.size() > 1 ? "[" : "";
  for (size_t i = 0; i < choices_.size(); ++i) {
    if (i > 0) out += ',';
    Parts text = FinalText(i);
    for (std::string part = text.Next(); !part.empty(); part = text.Next()) {
      out += part;
      if (out.size() >= kPartBytes) co_yield out;
    }
  }
  if (choices_.size() > 1) out += ']';
  co_yield out;
}

json LlamaAnswer::FinalFields(size_t index) const {
  const Choice& choice = choices_[index];
  const size_t prompt = index / spec_.n;
  const uint64_t prompt_tokens = llama().prompt_tokens[prompt];
  const uint64_t tokens = prompt_tokens + choice.num_tokens;
  const bool is_length = choice.finish == FinishReason::kLength;
  const bool by_word = IsByWord(choice.finish, choice.stop_match);
  json fields = {
      {"index", index},
      {"id_slot", llama().id_slot},
      {"stop", true},
      {"model", spec_.model},
      {"tokens_predicted", choice.num_tokens},
      {"tokens_evaluated", prompt_tokens},
      // The last token of an answer has no KV.
      {"tokens_cached", tokens - (choice.num_tokens > 0 ? 1 : 0)},
      {"has_new_line", has_new_line_[index] || choice.text.find('\n') != choice.text.npos},
      {"truncated", is_length && tokens >= llama().ctx_size},
      {"stop_type", StopType(choice.finish, choice.stop_match)},
      {"stopping_word", by_word ? *choice.stop_match : ""},
      {"system_fingerprint", spec_.fingerprint},
      {"timings", TimingsJson(timings_[prompt])},
      {"kvasir", ReceiptJson(receipts_[prompt])}};
  const auto& paths = llama().response_fields;
  if (paths.empty()) return fields;
  fields["generation_settings"] = json::parse(llama().settings);
  return FieldsAt(paths, fields);
}

Parts LlamaAnswer::FinalText(size_t index) const {
  const Choice& choice = choices_[index];
  std::string out = Dump(FinalFields(index));
  out.pop_back();
  // Opens the value of a name.
  const auto open = [&out](std::string_view name) {
    if (out.back() != '{') out += ',';
    out += fmt::format("\"{}\":", name);
  };
  if (llama().response_fields.empty()) {
    open("generation_settings");
    out += llama().settings;
  }
  const std::pair<const char*, std::string_view> texts[] = {
      {"content", choice.text},
      {"prompt", llama().prompts.empty() ? std::string_view() : llama().prompts[index / spec_.n]}};
  for (auto [name, rest] : texts) {
    if (!Wants(name)) continue;
    open(name);
    out += '"';
    while (!rest.empty()) {
      AppendEscaped(&rest, &out);
      if (out.size() >= kPartBytes) co_yield out;
    }
    out += '"';
  }
  if (Wants("tokens")) {
    open("tokens");
    out += '[';
    for (size_t i = 0; i < choice.ids.size(); ++i) {
      if (i > 0) out += ',';
      out += std::to_string(choice.ids[i]);
      if (out.size() >= kPartBytes) co_yield out;
    }
    out += ']';
  }
  if (spec_.logprobs && !spec_.stream && Wants("completion_probabilities")) {
    open("completion_probabilities");
    Parts probabilities = choice.scored.LlamaText(llama().probs(), tokenizer_);
    for (std::string part = probabilities.Next(); !part.empty(); part = probabilities.Next()) {
      out += part;
      if (out.size() >= kPartBytes) co_yield out;
    }
  }
  out += '}';
  co_yield out;
}

}  // namespace kvasir
