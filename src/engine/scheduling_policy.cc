#include "engine/scheduling_policy.h"

#include <algorithm>
#include <optional>

namespace kvasir {
namespace {

using State = RequestView::State;

// The running request that costs least to bring back. Never the oldest one: it always finishes.
std::optional<uint32_t> Victim(const View& view) {
  std::optional<uint32_t> oldest, victim;
  for (uint32_t i = 0; i < view.requests.size(); ++i) {
    const RequestView& request = view.requests[i];
    if (request.state != State::kRunning) continue;
    if (!oldest || request.arrival_ns < view.requests[*oldest].arrival_ns) oldest = i;
  }
  for (uint32_t i = 0; i < view.requests.size(); ++i) {
    const RequestView& request = view.requests[i];
    if (request.state != State::kRunning || i == *oldest) continue;
    if (request.preemptions >= SchedulingPolicy::kMaxPreemptions) continue;
    if (request.preemptions > 0 &&
        request.tokens_since_resume < SchedulingPolicy::kCooldownTokens) {
      continue;
    }
    // Of equals the one that came last.
    if (!victim || request.recompute_tokens <= view.requests[*victim].recompute_tokens) victim = i;
  }
  return victim;
}

// The next one that may start: the first that waits, or one after it while those that have no room
// were not overtaken too often.
std::optional<uint32_t> Next(const View& view) {
  uint32_t running = 0;
  for (const RequestView& request : view.requests) {
    if (request.state == State::kRunning) running += request.choices;
  }
  for (uint32_t i = 0; i < view.requests.size(); ++i) {
    const RequestView& request = view.requests[i];
    if (request.state == State::kRunning || request.follows) continue;
    if (request.choices > view.parallel - running) return std::nullopt;
    if (!request.has_no_room) return i;
    // One that was preempted goes first: others would take the blocks that it needs.
    if (request.state == State::kPreempted) return std::nullopt;
    if (request.overtaken >= SchedulingPolicy::kMaxOvertaken) return std::nullopt;
  }
  return std::nullopt;
}

// Rows of prompts that this step has room for beside its decode rows.
uint32_t PrefillRows(const View& view, const StepWork& work, uint32_t most, double kv_bytes) {
  if (work.decode_rows == 0 || view.target_step_ns == 0 || !view.cost->knows_anything()) {
    return most;
  }
  const auto fits = [&](uint32_t rows) {
    StepWork all = work;
    all.prefill_rows += rows;
    all.prefill_kv_bytes += rows * kv_bytes;
    return view.cost->PredictNs(all) <= static_cast<double>(view.target_step_ns);
  };
  const uint32_t least = SchedulingPolicy::kLeastPrefillRows;
  uint32_t low = std::min(most, least - std::min(least, work.prefill_rows)), high = most;
  while (low < high) {
    const uint32_t middle = low + (high - low + 1) / 2;
    if (fits(middle)) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

bool IsStarved(const View& view, const SequenceView& sequence) {
  return view.requests[sequence.request].is_starved;
}

void PlanRows(const View& view, StepPlan& plan) {
  plan.rows.assign(view.sequences.size(), 0);
  StepWork work;
  uint32_t free_rows = view.max_rows;
  for (size_t i = 0; i < view.sequences.size() && free_rows > 0; ++i) {
    const SequenceView& sequence = view.sequences[i];
    if (!sequence.decodes || IsStarved(view, sequence)) continue;
    plan.rows[i] = 1;
    --free_rows;
    ++work.decode_rows;
    work.decode_kv_bytes += sequence.kv_bytes;
  }
  for (size_t i = 0; i < view.sequences.size() && free_rows > 0; ++i) {
    const SequenceView& sequence = view.sequences[i];
    if (sequence.decodes || IsStarved(view, sequence)) continue;
    const uint32_t most = std::min(sequence.pending, free_rows);
    plan.rows[i] = PrefillRows(view, work, most, sequence.kv_bytes);
    free_rows -= plan.rows[i];
    if (plan.rows[i] < most) return;  // the step is as long as it may be
    work.prefill_rows += plan.rows[i];
    work.prefill_kv_bytes += plan.rows[i] * sequence.kv_bytes;
  }
}

}  // namespace

void FifoPolicy::Decide(const View& view, StepPlan& plan) const {
  plan.preempt.clear();
  plan.admit.clear();
  const bool starved =
      std::ranges::any_of(view.requests, [](const RequestView& request) { return request.is_starved; });
  if (starved) {
    if (const auto victim = Victim(view)) {
      plan.preempt.push_back(*victim);
      return;
    }
  } else if (const auto next = Next(view)) {
    plan.admit.push_back(*next);
    return;
  }
  PlanRows(view, plan);
}

}  // namespace kvasir
