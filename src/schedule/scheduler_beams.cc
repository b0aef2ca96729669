// Beam search in the scheduler: how a search's steps become events.
#include "base/check.h"
#include "schedule/request_answer.h"
#include "schedule/scheduler.h"

namespace kvasir {

void Scheduler::UseBeams(const BeamBatch::Step& step) {
  Request& request = *step.request;
  if (request.done()) return;
  if (!step.finite) {
    const Error error = NotFinite(request, "a logit is");
    return EndRequest(request, FinishReason::kError, &error);
  }
  NoteToken(request, request.times.last_token_ns);
  BeamSearch& search = *request.answer.search;
  request.answer.longest = search.length() + 1 - request.prompt_tokens();
  // A quota may have been lowered since the search began.
  if (!search.done() && request.answer.longest >= request.max_tokens) search.End();
  if (!search.done()) {
    const Status followed = figures_.TimedCache([&] { return beams_.Follow(request); });
    if (!followed) EndRequest(request, FinishReason::kError, &followed.error());
    return;
  }
  EndSearch(request, AddHypotheses(request));
}

// Into the events of its choices.
std::vector<BeamSearch::Hypothesis> Scheduler::AddHypotheses(Request& request) {
  std::vector<BeamSearch::Hypothesis> best = request.answer.search->best();
  for (uint32_t choice = 0; choice < best.size(); ++choice) {
    Event& event = request.events.Of(choice);
    const auto tokens = best[choice].tokens.subspan(request.prompt_tokens());
    AddAnswer(tokens, best[choice].ended, options_.tokenizer, request.spec, event);
    event.score = best[choice].score;
    request.answer.completion_tokens += static_cast<uint32_t>(tokens.size());
    figures_.stats().generated_tokens += tokens.size();
  }
  return best;
}

void Scheduler::EndSearch(Request& request, std::span<const BeamSearch::Hypothesis> best) {
  ReleaseSequences(request);
  for (uint32_t choice = 0; choice < request.spec.n; ++choice) {
    const bool ended = choice < best.size() && best[choice].ended;
    const FinishReason reason = ended ? FinishReason::kStop : FinishReason::kLength;
    FinishChoice(request, choice, reason);
    if (choice >= best.size()) continue;
    const auto tokens = static_cast<uint32_t>(best[choice].tokens.size());
    figures_.AddChoice(tokens, reason);
    tenants_.lengths().Add(request.tenant, tokens - request.prompt_tokens());
  }
  FinishRequest(request, request.events.Of(0).finish_reason);
}

}  // namespace kvasir
