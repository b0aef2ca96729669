#include "schedule/scheduling_policy.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <tuple>

namespace kvasir {
namespace {

using State = RequestView::State;

bool IsRunning(const RequestView& request) { return request.state == State::kRunning; }

// Returns whether it was just brought back, or was preempted too often.
bool IsProtected(const RequestView& request) {
  return request.preemptions >= SchedulingPolicy::kMaxPreemptions ||
         (request.preemptions > 0 &&
          request.tokens_since_resume < SchedulingPolicy::kCooldownTokens);
}

// Returns the running request that `may` allows and that costs least to bring back; of equals the
// one that came last.
template <typename F>
std::optional<uint32_t> Cheapest(const View& view, F&& may) {
  std::optional<uint32_t> best;
  for (uint32_t i = 0; i < view.requests.size(); ++i) {
    const RequestView& request = view.requests[i];
    if (!IsRunning(request) || IsProtected(request) || !may(i)) continue;
    if (!best || request.recompute_tokens <= view.requests[*best].recompute_tokens) best = i;
  }
  return best;
}

// Returns the running request that came first, of an account or of all.
std::optional<uint32_t> Oldest(const View& view, std::optional<AccountId> account) {
  std::optional<uint32_t> oldest;
  for (uint32_t i = 0; i < view.requests.size(); ++i) {
    const RequestView& request = view.requests[i];
    if (!IsRunning(request) || (account && request.account != *account)) continue;
    if (!oldest || request.arrival_ns < view.requests[*oldest].arrival_ns) oldest = i;
  }
  return oldest;
}

// Returns the request that gives way to a starved one. The oldest running one never does: it always
// ends. Where an account has its maximum, only its own requests help.
std::optional<uint32_t> MemoryVictim(const View& view, const RequestView& starved) {
  const AccountId account = starved.account;
  const bool own = starved.over_quota;
  const auto oldest = Oldest(view, own ? std::optional(account) : std::nullopt);
  return Cheapest(view, [&](uint32_t i) {
    const RequestView& request = view.requests[i];
    if (i == oldest) return false;
    return request.account == account || (!own && request.above_guarantee);
  });
}

// Returns the running choices of `tenant`, or of all.
uint32_t RunningChoices(const View& view, std::optional<uint32_t> tenant = std::nullopt) {
  uint32_t running = 0;
  for (const RequestView& request : view.requests) {
    if (IsRunning(request) && (!tenant || request.tenant == *tenant)) running += request.choices;
  }
  return running;
}

// Returns how much more a tenant must be charged: one whole step may always come between.
double UnfairNs(const View& view) {
  return SchedulingPolicy::kUnfairNs + view.cost->PredictNs({.prefill_rows = view.max_rows});
}

class FifoPolicy final : public SchedulingPolicy {
  bool GoesBefore(const View& view, uint32_t a, uint32_t b) const override {
    const auto key = [&](uint32_t i) {
      return std::tuple(view.requests[i].state != State::kPreempted, i);
    };
    return key(a) < key(b);
  }
  bool IsFair() const override { return false; }
};

class FairPolicy final : public SchedulingPolicy {
  bool GoesBefore(const View& view, uint32_t a, uint32_t b) const override {
    const auto key = [&](uint32_t i) {
      const RequestView& request = view.requests[i];
      const double waited =
          static_cast<double>(view.now_ns - std::min(view.now_ns, request.arrival_ns));
      return std::tuple(view.tenants[request.tenant].charge_ns, request.tenant,
                        request.state != State::kPreempted, request.priority - waited / kAgingNs,
                        i);
    };
    return key(a) < key(b);
  }
  bool IsFair() const override { return true; }
};

}  // namespace

uint32_t RowsWithin(const StepCost& cost, double target_ns, const StepWork& work, uint32_t most,
                    double row_bytes) {
  if (work.decode_rows == 0 || target_ns == 0 || !cost.knows_anything()) return most;
  const auto fits = [&](uint32_t rows) {
    StepWork all = work;
    all.prefill_rows += rows;
    all.prefill_kv_bytes += rows * row_bytes;
    return cost.PredictNs(all) <= target_ns;
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

namespace {

constexpr uint32_t kMostDraftRows = 128;  // of a step: the most rows of logits

// Returns the sequence whose next drafted token is most likely to be right, those before it
// included; of equals the one with fewer draft rows.
std::optional<size_t> LikeliestDraft(const View& view, const StepPlan& plan, double* chance) {
  std::optional<size_t> best;
  for (size_t i = 0; i < view.sequences.size(); ++i) {
    const SequenceView& sequence = view.sequences[i];
    if (plan.rows[i] != 1 || !sequence.decodes) continue;
    const uint32_t num = plan.draft_rows[i];
    if (num == sequence.drafted) continue;
    const double next = std::pow(sequence.draft_chance, num + 1);
    if (best && (next < *chance || (next == *chance && num >= plan.draft_rows[*best]))) continue;
    best = i;
    *chance = next;
  }
  return best;
}

}  // namespace

void PlanDrafts(const View& view, uint32_t most, StepPlan& plan, StepWork& work) {
  plan.draft_rows.assign(view.sequences.size(), 0);
  most = std::min({most, view.max_draft_rows, kMostDraftRows});
  if (most == 0 || (!view.drafts_always && !view.cost->knows_anything())) return;
  std::array<uint32_t, kMostDraftRows> picked;  // sequences, in the order of their chances
  double tokens = work.decode_rows;
  double best_rate = tokens / std::max(view.cost->PredictNs(work), 1.0);
  uint32_t num = 0, best = 0;
  for (double chance = 0; num < most;) {
    const std::optional<size_t> next = LikeliestDraft(view, plan, &chance);
    if (!next) break;
    picked[num++] = static_cast<uint32_t>(*next);
    ++plan.draft_rows[*next];
    if (view.drafts_always) continue;
    ++work.draft_rows;
    tokens += chance;
    const double step_ns = view.cost->PredictNs(work);
    if (view.target_step_ns > 0 && step_ns > static_cast<double>(view.target_step_ns)) break;
    if (tokens / std::max(step_ns, 1.0) <= best_rate) continue;
    best_rate = tokens / std::max(step_ns, 1.0);
    best = num;
  }
  if (view.drafts_always) best = num;
  for (uint32_t i = best; i < num; ++i) --plan.draft_rows[picked[i]];
  work.draft_rows = best;
}

bool SchedulingPolicy::IsReady(const View& view, uint32_t i) {
  const RequestView& request = view.requests[i];
  return !IsRunning(request) && !request.follows && !(request.has_no_room && request.over_quota) &&
         view.tenants[request.tenant].may_run(request.choices);
}

// Returns the request with most resident tokens of the first few that wait like this one, in the
// order in which they came.
uint32_t SchedulingPolicy::MostResident(const View& view, uint32_t first) {
  const RequestView& head = view.requests[first];
  if (head.state != State::kWaiting || head.is_owed) return first;
  uint32_t most = first, compared = 1;
  for (uint32_t i = first + 1; i < view.requests.size() && compared < kMaxCompared; ++i) {
    const RequestView& request = view.requests[i];
    if (request.state != State::kWaiting || request.tenant != head.tenant ||
        request.priority != head.priority || request.has_no_room || !IsReady(view, i)) {
      continue;
    }
    ++compared;
    if (request.resident_tokens > view.requests[most].resident_tokens) most = i;
    if (request.overtaken >= kMaxOvertaken) break;
  }
  return head.overtaken >= kMaxOvertaken ? first : most;
}

// Returns the next one that may start. First those to whom a guarantee owes their room: others gave
// it up for them. The next one passes those without room that go before it, if these are few and
// were not passed too often. (Others it need not wait for: else a tenant that was given less could
// take the place of running requests, without ever starting.)
std::optional<uint32_t> SchedulingPolicy::Next(const View& view) const {
  std::optional<uint32_t> next;
  for (uint32_t i = 0; i < view.requests.size(); ++i) {
    if (view.requests[i].has_no_room || !IsReady(view, i)) continue;
    const bool owed = view.requests[i].is_owed;
    const bool next_owed = next && view.requests[*next].is_owed;
    if (!next || owed > next_owed || (owed == next_owed && GoesBefore(view, i, *next))) next = i;
  }
  if (!next) return std::nullopt;
  if (IsFair()) next = MostResident(view, *next);
  uint32_t passed = 0;
  for (uint32_t i = 0; i < view.requests.size() && !view.requests[*next].is_owed; ++i) {
    const RequestView& request = view.requests[i];
    if (!request.has_no_room || !IsReady(view, i) || !GoesBefore(view, i, *next)) continue;
    passed += request.overtaken >= kMaxOvertaken ? kMaxPassed : 1;
    if (passed >= kMaxPassed) return std::nullopt;
  }
  const RequestView& candidate = view.requests[*next];
  if (candidate.choices > view.parallel - RunningChoices(view)) return std::nullopt;
  // One that was preempted goes first: others of its tenant would take the blocks that it needs.
  for (const RequestView& request : view.requests) {
    if (request.state != State::kPreempted || !request.has_no_room) continue;
    if (request.tenant == candidate.tenant || (!IsFair() && !request.over_quota)) {
      return std::nullopt;
    }
  }
  return next;
}

// Returns a request of an account that has more than its guarantee, if another one waits for room
// that is guaranteed to it.
std::optional<uint32_t> SchedulingPolicy::OwedVictim(const View& view) const {
  std::optional<AccountId> account;
  for (uint32_t i = 0; i < view.requests.size() && !account; ++i) {
    const RequestView& request = view.requests[i];
    if (request.is_owed && request.has_no_room && IsReady(view, i)) account = request.account;
  }
  if (!account) return std::nullopt;
  const auto oldest = Oldest(view, std::nullopt);
  return Cheapest(view, [&](uint32_t i) {
    return i != oldest && view.requests[i].account != *account && view.requests[i].above_guarantee;
  });
}

// Returns a request of the tenant that was given most, if another tenant that was given far less
// waits and has far fewer choices running.
std::optional<uint32_t> SchedulingPolicy::UnfairVictim(const View& view) const {
  const auto charge = [&](uint32_t i) { return view.tenants[view.requests[i].tenant].charge_ns; };
  std::optional<uint32_t> poor, rich;
  for (uint32_t i = 0; i < view.requests.size(); ++i) {
    if (IsRunning(view.requests[i])) {
      if (!rich || charge(i) > charge(*rich)) rich = i;
    } else if (IsReady(view, i) && (!poor || charge(i) < charge(*poor))) {
      poor = i;
    }
  }
  if (!poor || !rich || charge(*rich) - charge(*poor) < UnfairNs(view)) return std::nullopt;
  const uint32_t tenant = view.requests[*rich].tenant;
  const uint32_t running = RunningChoices(view, view.requests[*poor].tenant);
  if (running * kUnfairShare >= RunningChoices(view, tenant)) return std::nullopt;
  return Cheapest(view, [&](uint32_t i) { return view.requests[i].tenant == tenant; });
}

// Returns one of a tenant's running requests with the worst priority, if a better one waits.
// What a request has waited counts for its turn, but takes no other request's place. At most
// `parallel` preempted requests wait, because their tokens stay in memory.
std::optional<uint32_t> SchedulingPolicy::PriorityVictim(const View& view) const {
  const auto ran = std::ranges::count_if(view.requests, [](const RequestView& request) {
    return !IsRunning(request) && (request.state == State::kPreempted || request.preemptions > 0);
  });
  if (ran >= view.parallel) return std::nullopt;
  int32_t best = std::numeric_limits<int32_t>::max(), lowest = std::numeric_limits<int32_t>::min();
  for (uint32_t i = 0; i < view.requests.size(); ++i) {
    const int32_t priority = view.requests[i].priority;
    if (IsRunning(view.requests[i])) lowest = std::max(lowest, priority);
    if (IsReady(view, i)) best = std::min(best, priority);
  }
  if (best >= lowest) return std::nullopt;  // as nearly always
  std::optional<uint32_t> worst;            // of those that may give way
  for (uint32_t i = 0; i < view.requests.size(); ++i) {
    const RequestView& waiting = view.requests[i];
    if (!IsReady(view, i)) continue;
    for (uint32_t j = 0; j < view.requests.size(); ++j) {
      const RequestView& request = view.requests[j];
      if (!IsRunning(request) || IsProtected(request) || request.tenant != waiting.tenant) continue;
      if (request.priority <= waiting.priority) continue;
      if (!worst || request.priority > view.requests[*worst].priority) worst = j;
    }
  }
  if (!worst) return std::nullopt;
  return Cheapest(view, [&](uint32_t i) {
    return view.requests[i].tenant == view.requests[*worst].tenant &&
           view.requests[i].priority == view.requests[*worst].priority;
  });
}

void SchedulingPolicy::PlanRows(const View& view, StepPlan& plan) const {
  constexpr uint32_t kUndecided = std::numeric_limits<uint32_t>::max();
  plan.rows.assign(view.sequences.size(), 0);
  plan.source_rows.assign(view.sequences.size(), 0);
  StepWork work;
  uint32_t free_rows = view.max_rows;
  // Sources are read by steps of the encoder, whose rows take no room from the decoder's. The first
  // one always fits, so that a long one does not wait for ever; it holds others up for one step.
  uint32_t free_source_rows = view.max_rows, num_sources = 0;
  const auto takes_source = [&](const SequenceView& sequence) {
    if (num_sources == 0) return true;
    return num_sources < kMaxSources && sequence.source_tokens <= free_source_rows &&
           RowsWithin(*view.cost, static_cast<double>(view.target_step_ns), work,
                      sequence.source_tokens, 0) == sequence.source_tokens;
  };
  for (size_t i = 0; i < view.sequences.size(); ++i) {
    const SequenceView& sequence = view.sequences[i];
    if (view.requests[sequence.request].is_starved) continue;
    if (!sequence.decodes) {
      plan.rows[i] = kUndecided;
      continue;
    }
    plan.rows[i] = 1;
    --free_rows;
    ++work.decode_rows;
    work.decode_kv_bytes += sequence.kv_bytes;
  }
  // Drafts leave rows to the prompts that wait for them.
  const bool has_prompts = std::ranges::count(plan.rows, kUndecided) > 0;
  PlanDrafts(view, free_rows - (has_prompts ? std::min(free_rows, kLeastPrefillRows) : 0), plan,
             work);
  free_rows -= work.draft_rows;
  while (true) {
    std::optional<size_t> next;
    for (size_t i = 0; i < view.sequences.size(); ++i) {
      if (plan.rows[i] != kUndecided) continue;
      const uint32_t request = view.sequences[i].request;
      if (!next || GoesBefore(view, request, view.sequences[*next].request)) next = i;
    }
    if (!next) return;
    const SequenceView& sequence = view.sequences[*next];
    if (sequence.source_tokens > 0) {
      if (!takes_source(sequence)) {
        plan.rows[*next] = 0;
        continue;
      }
      ++num_sources;
      plan.source_rows[*next] = sequence.source_tokens;
      free_source_rows -= sequence.source_tokens;
      work.prefill_rows += sequence.source_tokens;
    }
    const uint32_t most = std::min(sequence.pending, free_rows);
    const uint32_t rows = RowsWithin(*view.cost, static_cast<double>(view.target_step_ns), work,
                                     most, sequence.kv_bytes);
    plan.rows[*next] = rows;
    free_rows = rows < most ? 0 : free_rows - rows;  // 0: the step is as long as it may be
    work.prefill_rows += rows;
    work.prefill_kv_bytes += rows * sequence.kv_bytes;
  }
}

void SchedulingPolicy::Decide(const View& view, StepPlan& plan) const {
  plan.preempt.reset();
  plan.admit.reset();
  plan.cause = PreemptCause::kMemory;
  bool needs_pool = false;  // what is released must not go to a newcomer
  for (const RequestView& request : view.requests) {
    if (!request.is_starved) continue;
    needs_pool |= !request.over_quota;
    if (!plan.preempt) plan.preempt = MemoryVictim(view, request);
  }
  if (!plan.preempt && !needs_pool) {
    plan.admit = Next(view);
    if (!plan.admit) {
      plan.cause = PreemptCause::kFairness;
      plan.preempt = OwedVictim(view);
      if (!plan.preempt && IsFair()) plan.preempt = UnfairVictim(view);
      if (!plan.preempt && IsFair()) {
        plan.cause = PreemptCause::kPriority;
        plan.preempt = PriorityVictim(view);
      }
    }
  }
  if (!plan.preempt && !plan.admit) PlanRows(view, plan);
}

std::unique_ptr<const SchedulingPolicy> MakeSchedulingPolicy(Schedule schedule) {
  if (schedule == Schedule::kFifo) return std::make_unique<FifoPolicy>();
  return std::make_unique<FairPolicy>();
}

}  // namespace kvasir
