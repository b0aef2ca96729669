#include "api/openai_writer.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "api/logprobs_json.h"
#include "api/openai_json.h"
#include "http/errors.h"
#include "http/json_body.h"

namespace kvasir {
namespace {

using nlohmann::json;

constexpr const char *kDelta = "delta", *kText = "text";
constexpr std::string_view kContent = "content", kThought = "reasoning_content";

// Returns what a stream says of a piece of a call; null: nothing. `index`: the call's.
json CallDelta(const AnswerEvent& event, size_t index) {
  switch (event.kind) {
    case AnswerEvent::Kind::kCallBegin: {
      json call = {{"index", index}, {"id", event.id}, {"type", "function"}};
      call["function"] = {{"name", event.text}, {"arguments", ""}};
      return {{"tool_calls", json::array({std::move(call)})}};
    }
    case AnswerEvent::Kind::kArguments: {
      json call = {{"index", index}, {"function", {{"arguments", event.text}}}};
      return {{"tool_calls", json::array({std::move(call)})}};
    }
    default:
      return {};
  }
}

}  // namespace

struct OpenAiWriter::Delta {
  std::string_view name;  // of its one member, a text; "": it is `object`
  std::string text;
  json object = json();  // of a call, or without members
};

void OpenAiWriter::Begin(const Answer& answer) {
  if (!answer.spec().stream) return;
  told_.resize(answer.choices().size());
  for (size_t i = 0; i < told_.size(); ++i) {
    told_[i].characters = CountCharacters(answer.EchoOf(i));
  }
}

uint64_t OpenAiWriter::held_bytes() const {
  uint64_t bytes = sizeof(*this) + told_.capacity() * sizeof(Told);
  for (const Told& one : told_) bytes += one.frame.held_bytes();
  if (!form_.verbosely) return bytes;
  bytes += form_.verbosely->settings.capacity();
  for (const std::string& text : form_.verbosely->prompts) bytes += sizeof(text) + text.capacity();
  return bytes;
}

std::string OpenAiWriter::StepEvents(const Answer& answer, const Answer::Step& step,
                                     const Event& event) {
  const uint32_t index = step.choice;
  const Answer::Choice& choice = answer.choice(index);
  Told& told = told_[index];
  std::string out, text = event.text;
  std::vector<GeneratedToken> scored;  // with the prompt's, in the first event
  if (answer.spec().logprobs) scored = event.tokens;
  uint64_t scored_at = told.characters;
  if (!told.started) {
    told.started = true;
    if (answer.scores_prompts()) {
      const auto own = answer.ScoredPrompt(answer.PromptOf(index));
      scored.insert(scored.begin(), own.begin(), own.end());
      scored_at = 0;
    }
    text = std::string(answer.EchoOf(index)) + text;
    if (form_.chat) {
      json first = Envelope(answer, true);
      json one = ChoiceOf(index);
      one["delta"] = {{"role", "assistant"}, {"content", ""}};
      first["choices"] = json::array({std::move(one)});
      out = SseEvent(first);
    }
  }
  bool first = true;  // it has what is known of the tokens
  for (Delta& delta : DeltasOf(answer, step, event, std::move(text))) {
    const bool is_text = !delta.name.empty();
    if (is_text && scored.empty() && shows_text_alone(answer.spec())) {
      out += TextEvent(answer, index, delta.name, delta.text);
      continue;
    }
    if (is_text) delta.object[std::string(delta.name)] = std::move(delta.text);
    json one = ChoiceOf(index);
    if (form_.chat) {
      one["delta"] = std::move(delta.object);
    } else {
      one.update(delta.object);
    }
    std::vector<TokenId> ids;
    if (first) {
      for (const GeneratedToken& token : event.tokens) ids.push_back(token.id);
    }
    AddTokenIds(ids, &one);
    if (!scored.empty() && first) {
      one["logprobs"] = form_.chat ? ChatLogprobs(scored, answer.tokenizer())
                                   : LegacyLogprobs(scored, scored_at, answer.tokenizer());
    }
    first = false;
    json chunk = ChunkOf(answer, choice, event);
    chunk["choices"] = json::array({std::move(one)});
    out += SseEvent(chunk);
  }
  for (const GeneratedToken& token : event.tokens) told.characters += CountCharacters(token.text);
  if (event.finish_reason == FinishReason::kNone) return out;
  json one = ChoiceOf(index);
  one["finish_reason"] = FinishOf(choice);
  if (first) AddTokenIds({}, &one);
  one["stop_reason"] = event.stop_match ? json(*event.stop_match) : json();
  json chunk = ChunkOf(answer, choice, event);
  chunk["choices"] = json::array({std::move(one)});
  if (answer.open_choices() > 0) return out + SseEvent(chunk);
  held_ = Dump(chunk);
  return out;
}

json OpenAiWriter::ChunkOf(const Answer& answer, const Answer::Choice& choice,
                           const Event& event) const {
  json chunk = Envelope(answer, true);
  if (event.progress && answer.spec().timings_per_token) {
    chunk["timings"] = TimingsJson(TimingsOf(*event.progress, choice.num_tokens));
  }
  return chunk;
}

std::string OpenAiWriter::TextEvent(const Answer& answer, uint32_t index, std::string_view name,
                                    std::string_view text) {
  Told& told = told_[index];
  if (told.framed != name) {
    json rest = ChoiceOf(index);
    rest.erase(form_.chat ? kDelta : kText);
    told.frame.begin =
        fmt::format("data: {}\"choices\":[{}{}\"{}\":", BeginObject(Envelope(answer, true)),
                    BeginObject(rest), form_.chat ? "\"delta\":{" : "", name);
    told.frame.end = form_.chat ? "}}]}\n\n" : "}]}\n\n";
    told.framed = name;
  }
  return told.frame.Around(text);
}

std::vector<OpenAiWriter::Delta> OpenAiWriter::DeltasOf(const Answer& answer,
                                                        const Answer::Step& step,
                                                        const Event& event, std::string text) {
  const bool finishes = event.finish_reason != FinishReason::kNone;
  std::vector<Delta> deltas;
  if (!answer.choice(step.choice).read) {
    if (finishes && text.empty() && event.tokens.empty()) return deltas;
    if (form_.chat && text.empty() && finishes) {
      deltas.push_back({"", "", json::object()});
    } else {
      deltas.push_back({form_.chat ? kContent : kText, std::move(text)});
    }
    return deltas;
  }
  Told& told = told_[step.choice];
  for (const AnswerEvent& piece : step.pieces) {
    if (piece.kind == AnswerEvent::Kind::kContent) {
      deltas.push_back({kContent, piece.text});
    } else if (piece.kind == AnswerEvent::Kind::kReasoning) {
      deltas.push_back({kThought, piece.text});
    } else {
      if (piece.kind == AnswerEvent::Kind::kCallBegin) ++told.calls;
      json delta = CallDelta(piece, told.calls - 1);
      if (!delta.is_null()) deltas.push_back({"", "", std::move(delta)});
    }
  }
  const bool shows_tokens = answer.spec().logprobs || form_.return_token_ids || form_.return_tokens;
  if (deltas.empty() && shows_tokens && !event.tokens.empty()) {
    deltas.push_back({kContent, ""});  // its text waits
  }
  return deltas;
}

json OpenAiWriter::ChoiceOf(uint32_t index) const {
  json one = {{"index", index}, {"logprobs", nullptr}, {"finish_reason", nullptr}};
  one[form_.chat ? kDelta : kText] = form_.chat ? json::object() : json("");
  return one;
}

std::string OpenAiWriter::ProgressEvent(const Answer& answer, uint32_t choice,
                                        const Progress& progress) {
  json chunk = Envelope(answer, true);
  chunk["choices"] = json::array({ChoiceOf(choice)});
  chunk["prompt_progress"] = ProgressJson(progress);
  return SseEvent(chunk);
}

std::string OpenAiWriter::EndEvents(const Answer& answer, size_t) {
  if (answer.open_prompts() > 0) return "";
  json last = json::parse(held_.empty() ? R"({"choices":[]})" : held_, nullptr, false);
  std::string out;
  if (form_.include_usage) {
    out = SseEvent(last);
    last = Envelope(answer, true);
    last["choices"] = json::array();
    last["usage"] = UsageJson(answer);
  }
  AddCacheDiagnostics(answer, &last);
  last["kvasir"] = FinalReceipt(answer);
  last["timings"] = TimingsJson(answer.timings());
  if (!form_.verbosely) return out + SseEvent(last) + "data: [DONE]\n\n";
  out += "data: " + BeginObject(last) + "\"__verbose\":";
  return out + VerboseText(answer).Rest() + "}\n\ndata: [DONE]\n\n";
}

std::string OpenAiWriter::ErrorEvent(const Error& error) const {
  return "data: {\"choices\":[],\"error\":" + ErrorObject(error) + "}\n\n";
}

json OpenAiWriter::Envelope(const Answer& answer, bool chunk) const {
  const AnswerSpec& spec = answer.spec();
  const char* object = !form_.chat ? "text_completion"
                       : chunk     ? "chat.completion.chunk"
                                   : "chat.completion";
  json envelope = {{"id", answer.id()},
                   {"object", object},
                   {"created", answer.created_unix_s()},
                   {"model", spec.model},
                   {"system_fingerprint", spec.fingerprint}};
  if (chunk && form_.include_usage) envelope["usage"] = nullptr;
  if (spec.session) {
    envelope["session"] = {{"id", spec.session->session}, {"index", spec.session->index}};
  }
  return envelope;
}

void OpenAiWriter::AddTokenIds(const std::vector<TokenId>& ids, json* choice) const {
  if (form_.return_token_ids) (*choice)["token_ids"] = ids;
  if (form_.return_tokens) (*choice)["tokens"] = ids;
}

}  // namespace kvasir
