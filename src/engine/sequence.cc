#include "engine/sequence.h"

#include <algorithm>

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
    event.scored.clear();
  }
  return event;
}

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
    if (const auto match = sequence.stop->Append(token.text, &event.text)) {
      event.stop_match = std::string(*match);
      return FinishReason::kStop;
    }
  }
  return answer == request.max_tokens ? FinishReason::kLength : FinishReason::kNone;
}

void FinishChoice(Request& request, uint32_t choice, FinishReason reason) {
  KV_CHECK(!request.choice_done[choice]);
  Event& event = EventOf(request, choice);
  if (choice < request.sequences.size() && request.sequences[choice]->text) {
    Sequence& sequence = *request.sequences[choice];
    const std::string rest = sequence.text->Finish();
    if (!event.tokens.empty()) event.tokens.back().text += rest;
    if (const auto match = sequence.stop->Append(rest, &event.text)) {
      event.stop_match = std::string(*match);
    }
    sequence.stop->Finish(&event.text);
  }
  event.finish_reason = reason;
  request.choice_done[choice] = true;
  ++request.num_done;
}

}  // namespace kvasir
