#include "schedule/sequence_states.h"

#include <algorithm>

#include "base/clock.h"

namespace kvasir {
namespace {

const char* StateOf(const Request& request, bool follows) {
  if (request.resume.preempted) return "preempted";
  if (request.answer.sequences.empty()) return follows ? "following" : "waiting";
  if (request.load.waits) return "loading";
  return request.answer.prompt_done ? "decode" : "prefill";
}

void AddStates(const Request& request, bool follows, const KvCache& cache, uint64_t now_ns,
               std::vector<SequenceState>& states) {
  SequenceState state{.id = request.spec.id,
                      .tenant = request.spec.tenant,
                      .state = StateOf(request, follows),
                      .tokens = request.prompt_tokens(),
                      .prompt_tokens = request.prompt_tokens(),
                      .cached_tokens = request.receipt.cached_tokens(),
                      .priority = request.spec.priority,
                      .preemptions = request.receipt.preemptions,
                      .age_ns = now_ns - std::min(now_ns, request.times.submitted_ns)};
  if (request.answer.sequences.empty()) states.push_back(state);
  for (const auto& sequence : request.answer.sequences) {
    if (sequence->done) continue;
    const KvCache::Pins pins = cache.PinsOf(sequence->kv);
    state.choice = sequence->choice;
    state.tokens = static_cast<uint32_t>(sequence->tokens.size());
    state.computed = sequence->kv.num_committed();
    state.blocks = pins.blocks;
    state.shared_blocks = pins.shared;
    states.push_back(state);
  }
}

}  // namespace

std::vector<SequenceState> StatesOf(const RequestQueues& requests, const Leaders& leaders,
                                    const KvCache& cache,
                                    const std::optional<std::string>& tenant) {
  std::vector<SequenceState> states;
  const uint64_t now_ns = MonotonicNs();
  const auto add = [&](const auto& queue) {
    for (const auto& request : queue) {
      if (request->spec.only_when_idle) continue;
      if (request->done() || (tenant && request->spec.tenant != *tenant)) continue;
      AddStates(*request, leaders.Follows(*request), cache, now_ns, states);
    }
  };
  add(requests.running);
  add(requests.waiting);
  return states;
}

}  // namespace kvasir
