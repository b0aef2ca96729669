#include "schedule/request_answer.h"

#include <algorithm>
#include <optional>
#include <string_view>

namespace kvasir {

namespace {

// Adds what is certain of the answer's text, up to its end.
std::optional<std::string_view> AddText(Sequence& sequence, std::string_view text, Event& event) {
  const size_t before = event.text.size();
  auto match = sequence.stop->Append(text, &event.text);
  if (!sequence.indent) return match;
  event.text.resize(before + sequence.indent->Keep(std::string_view(event.text).substr(before)));
  if (sequence.indent->has_ended()) match.reset();
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
    token.text = sequence.text->Append(token.id);
    sequence.has_line_end |= token.text.find('\n') != std::string::npos;
    if (const auto match = AddText(sequence, token.text, event)) {
      event.stop_match = std::string(*match);
      return FinishReason::kStop;
    }
    if (sequence.indent && sequence.indent->has_ended()) return FinishReason::kLength;
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
    sequence->text.emplace(TextStreamFor(*tokenizer, spec));
    sequence->stop.emplace(spec.stop);
    if (spec.llama_quirks.min_indent > 0) sequence->indent.emplace(spec.llama_quirks.min_indent);
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
    Sequence& sequence = *request.answer.sequences[choice];
    const std::string rest = sequence.text->Finish();
    if (!event.tokens.empty()) event.tokens.back().text += rest;
    if (const auto match = AddText(sequence, rest, event)) event.stop_match = std::string(*match);
    const size_t before = event.text.size();
    sequence.stop->Finish(&event.text);
    if (sequence.indent) {
      event.text.resize(before +
                        sequence.indent->Keep(std::string_view(event.text).substr(before)));
    }
  }
  request.events.End(choice, reason);
}

}  // namespace kvasir
