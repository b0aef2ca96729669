#include "schedule/sequence.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include "base/check.h"

namespace kvasir {

Event& EventOf(Request& request, uint32_t choice) {
  Event& event = request.events[choice];
  if (!request.has_event[choice]) {
    request.has_event[choice] = true;
    event.choice = choice;
    event.tokens.clear();
    event.text.clear();
    event.progress.reset();
    event.score.reset();
    event.scored.clear();
  }
  return event;
}

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
  ++request.completion_tokens;
  const auto answer = static_cast<uint32_t>(sequence.tokens.size()) - request.prompt_tokens();
  request.longest_answer = std::max(request.longest_answer, answer);
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
  KV_CHECK(!request.choice_done[choice]);
  Event& event = EventOf(request, choice);
  if (choice < request.sequences.size() && request.sequences[choice]->text) {
    Sequence& sequence = *request.sequences[choice];
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
  event.finish_reason = reason;
  request.choice_done[choice] = true;
  ++request.num_done;
}

}  // namespace kvasir
