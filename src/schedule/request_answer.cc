#include "schedule/request_answer.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include "base/clock.h"

namespace kvasir {

namespace {

// Adds what is certain of the answer's text, up to its end.
std::optional<std::string_view> AddText(TextState& state, std::string_view text, Event& event) {
  const size_t before = event.text.size();
  auto match = state.stop.Append(text, &event.text);
  if (!state.indent) return match;
  event.text.resize(before + state.indent->Keep(std::string_view(event.text).substr(before)));
  if (state.indent->has_ended()) match.reset();
  return match;
}

}  // namespace

FinishReason AppendToken(Request& request, Sequence& sequence, TokenRole role, Event& event) {
  GeneratedToken& token = event.tokens.back();
  sequence.tokens.push_back(token.id);
  ++request.answer.completion_tokens;
  const auto answer = static_cast<uint32_t>(sequence.tokens.size()) - request.prompt_tokens();
  request.answer.longest = std::max(request.answer.longest, answer);
  if (role == TokenRole::kEnd) return FinishReason::kStop;
  if (sequence.text) {
    TextState& state = *sequence.text;
    token.text = state.stream.Append(token.id);
    state.has_line_end |= token.text.find('\n') != std::string::npos;
    if (const auto match = AddText(state, token.text, event)) {
      event.stop_match = std::string(*match);
      return FinishReason::kStop;
    }
    if (state.indent && state.indent->has_ended()) return FinishReason::kLength;
  }
  return answer == request.max_tokens ? FinishReason::kLength : FinishReason::kNone;
}

TextStream TextStreamFor(const Tokenizer& tokenizer, const GenerateRequest& spec) {
  if (!spec.echo_special && !spec.shown_special.empty()) {
    return TextStream(tokenizer, spec.shown_special);
  }
  return TextStream(tokenizer, spec.echo_special ? SpecialTokens::kShow : SpecialTokens::kSkip);
}

namespace {

// Starts counting the thought's tokens against max_thought_tokens.
void BeginThought(const Request& request, Sequence& sequence) {
  const AnswerFormat& format = *request.spec.format;
  if (format.begins_inside_thought && format.max_thought_tokens == 0) {
    sequence.BeginFormat(request.format.closing);
    return;
  }
  AnswerReading reading;
  reading.think = format.think;
  reading.begins_inside_thought = format.begins_inside_thought;
  sequence.thought.emplace(std::make_shared<const AnswerReading>(std::move(reading)));
}

}  // namespace

Sequence& AddSequence(Request& request, KvSequence kv, const Tokenizer* tokenizer) {
  const GenerateRequest& spec = request.spec;
  auto sequence = std::make_unique<Sequence>();
  sequence->choice = static_cast<uint32_t>(request.answer.sequences.size());
  sequence->tokens.reserve(spec.prompt.size() + request.max_tokens);
  sequence->tokens.assign(spec.prompt.begin(), spec.prompt.end());
  sequence->kv = std::move(kv);
  // Only choice 0 passes the logits of the prompt to on_logits.
  if (sequence->choice > 0) sequence->next_logits = request.prompt_tokens();
  if (tokenizer != nullptr && !request.answer.search) {
    sequence->text.emplace(TextState{TextStreamFor(*tokenizer, spec), StopMatcher(spec.stop)});
    const uint32_t indent = spec.llama_quirks.min_indent;
    if (indent > 0) sequence->text->indent.emplace(indent);
  }
  if (request.format.whole) sequence->BeginFormat(request.format.whole);
  if (request.format.closing) BeginThought(request, *sequence);
  request.answer.sequences.push_back(std::move(sequence));
  return *request.answer.sequences.back();
}

void AddAnswer(std::span<const TokenId> tokens, bool ended, const Tokenizer* tokenizer,
               const GenerateRequest& spec, Event& event) {
  std::optional<TextStream> text;
  if (tokenizer != nullptr) text.emplace(TextStreamFor(*tokenizer, spec));
  for (size_t i = 0; i < tokens.size(); ++i) {
    GeneratedToken& token = event.tokens.emplace_back();
    token.id = tokens[i];
    const bool is_last = i + 1 == tokens.size();
    if (text && !(is_last && ended)) token.text = text->Append(token.id);
    if (text && is_last) token.text += text->Finish();
    event.text += token.text;
  }
}

void FinishChoice(Request& request, uint32_t choice, FinishReason reason) {
  Event& event = request.events.Of(choice);
  if (choice < request.answer.sequences.size() && request.answer.sequences[choice]->text) {
    TextState& state = *request.answer.sequences[choice]->text;
    const std::string rest = state.stream.Finish();
    if (!event.tokens.empty()) event.tokens.back().text += rest;
    if (const auto match = AddText(state, rest, event)) event.stop_match = std::string(*match);
    const size_t before = event.text.size();
    state.stop.Finish(&event.text);
    if (state.indent) {
      event.text.resize(before + state.indent->Keep(std::string_view(event.text).substr(before)));
    }
  }
  request.events.End(choice, reason);
}

void NoteProgress(Request& request, uint32_t processed) {
  constexpr double kMsPerNs = 1e-6;
  if (!request.spec.reports_progress) return;
  const uint64_t now = MonotonicNs();
  const uint64_t first = request.times.first_token_ns == 0 ? now : request.times.first_token_ns;
  processed = std::min(processed, request.prompt_tokens());
  request.events.Of(0).progress = {
      .total = request.prompt_tokens(),
      .processed = processed,
      .cached = processed - std::min(processed, request.answer.prefilled_tokens),
      .prompt_ms = static_cast<double>(first - request.times.admitted_ns) * kMsPerNs,
      .answer_ms = static_cast<double>(now - first) * kMsPerNs};
}

}  // namespace kvasir
