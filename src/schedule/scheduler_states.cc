// What is waiting and running now, for GET /v1/cache/sequences and /metrics.
#include <algorithm>

#include "base/clock.h"
#include "schedule/scheduler.h"

namespace kvasir {
namespace {

const char* StateOf(const Request& request, bool follows) {
  if (request.resume.preempted) return "preempted";
  if (request.answer.sequences.empty()) return follows ? "following" : "waiting";
  if (request.load.waits) return "loading";
  return request.answer.prompt_done ? "decode" : "prefill";
}

}  // namespace

void Scheduler::AddStates(const Request& request, uint64_t now_ns,
                          std::vector<SequenceState>& states) const {
  SequenceState state{.id = request.spec.id,
                      .tenant = request.spec.tenant,
                      .state = StateOf(request, leaders_.Follows(request)),
                      .tokens = request.prompt_tokens(),
                      .prompt_tokens = request.prompt_tokens(),
                      .cached_tokens = request.receipt.cached_tokens(),
                      .priority = request.spec.priority,
                      .preemptions = request.receipt.preemptions,
                      .age_ns = now_ns - std::min(now_ns, request.times.submitted_ns)};
  if (request.answer.sequences.empty()) states.push_back(state);
  for (const auto& sequence : request.answer.sequences) {
    if (sequence->done) continue;
    const KvCache::Pins pins = cache_.PinsOf(sequence->kv);
    state.choice = sequence->choice;
    state.tokens = static_cast<uint32_t>(sequence->tokens.size());
    state.computed = sequence->kv.num_committed();
    state.blocks = pins.blocks;
    state.shared_blocks = pins.shared;
    states.push_back(state);
  }
}

std::vector<SequenceState> Scheduler::States(const std::optional<std::string>& tenant) const {
  std::vector<SequenceState> states;
  const uint64_t now_ns = MonotonicNs();
  const auto add = [&](const auto& requests) {
    for (const auto& request : requests) {
      if (request->spec.only_when_idle) continue;
      if (request->done() || (tenant && request->spec.tenant != *tenant)) continue;
      AddStates(*request, now_ns, states);
    }
  };
  add(requests_.running);
  add(requests_.waiting);
  return states;
}

}  // namespace kvasir
