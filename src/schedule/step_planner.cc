#include "schedule/step_planner.h"

#include <algorithm>

#include "base/clock.h"

namespace kvasir {
namespace {

// Returns whether the only token to compute was just sampled.
bool Decodes(const Request& request, const Sequence& sequence) {
  return request.answer.prompt_done && sequence.num_pending() == 1;
}

// Returns whether a choice has more to compute than its next token.
bool IsBehind(const Request& request) {
  return std::ranges::any_of(request.answer.sequences, [](const auto& sequence) {
    return !sequence->done && sequence->num_pending() > 1;
  });
}

}  // namespace

StepPlanner::StepPlanner(const SchedulerOptions& options, KvCache& cache,
                         const RequestQueues& requests, TenantBook& tenants, StepFigures& figures,
                         const TierLoads& loads, const Leaders& leaders, const Drafter& drafter)
    : options_(options),
      cache_(cache),
      requests_(requests),
      tenants_(tenants),
      figures_(figures),
      loads_(loads),
      leaders_(leaders),
      drafter_(drafter),
      policy_(MakeSchedulingPolicy(options.schedule)) {
  view_sequences_.reserve(options.parallel);
  seen_.reserve(options.parallel);
  plan_.rows.reserve(options.parallel);
  plan_.draft_rows.reserve(options.parallel);
  plan_.source_rows.reserve(options.parallel);
}

const StepPlan& StepPlanner::Decide(std::span<const AccountId> over_quota) {
  Fill(over_quota);
  policy_->Decide(view_, plan_);
  if (options_.on_plan) options_.on_plan(view_, plan_);
  return plan_;
}

// Asks the cache what it has of a few prompts that wait, where one of them may start and the answer
// may have changed.
void StepPlanner::Probe() {
  if (options_.schedule != Schedule::kFair || options_.cache_mode != CacheMode::kPrefix) return;
  uint32_t choices = 0;
  for (const auto& request : requests_.running) choices += request->num_live();
  if (requests_.waiting.size() < 2 || choices >= options_.parallel) return;
  const CacheCounters& counters = cache_.counters();
  const uint64_t now = counters.committed_blocks + counters.evicted_blocks;
  uint32_t probed = 0;
  for (const auto& request : requests_.waiting) {
    if (request->wait.probed_at == now || !request->shares()) continue;
    request->wait.probed_at = now;
    const bool is_long = options_.IsLong(request->prompt_tokens());
    request->wait.resident_tokens = figures_.TimedCache([&] {
      return cache_.Probe(request->cache_owner(),
                          IdentityOf(options_, request->adapters.get(), is_long),
                          request->spec.cache_salt, request->Exact(request->spec.prompt));
    });
    if (++probed == SchedulingPolicy::kMaxCompared) return;
  }
}

void StepPlanner::FillDrafts() {
  for (const auto& request : requests_.running) {
    for (const auto& sequence : request->answer.sequences) {
      sequence->draft.num_tokens = 0;
      if (sequence->done || !Decodes(*request, *sequence)) continue;
      figures_.TimedCache([&] { drafter_.Fill(*request, *sequence); });
    }
  }
}

void StepPlanner::Fill(std::span<const AccountId> over_quota) {
  view_requests_.clear();
  view_sequences_.clear();
  seen_.clear();
  tenants_.CountRunning(requests_);
  const bool starved = std::ranges::any_of(
      requests_.running, [](const auto& request) { return request->room.is_starved; });
  for (const auto& request : requests_.running) {
    const auto index = static_cast<uint32_t>(view_requests_.size());
    view_requests_.push_back(
        {.state = RequestView::State::kRunning,
         .tenant = request->tenant,
         .choices = request->num_live(),
         .priority = request->spec.priority,
         .arrival_ns = request->times.submitted_ns,
         .account = request->room.account,
         .above_guarantee = cache_.accounts().is_above_guarantee(request->room.account),
         .over_quota = request->room.over_quota,
         .preemptions = request->receipt.preemptions,
         .is_starved = request->room.is_starved,
         .recompute_tokens = starved || !requests_.waiting.empty() ? CostToBringBack(*request) : 0,
         .tokens_since_resume =
             request->answer.completion_tokens - request->resume.tokens_at_resume});
    for (const auto& sequence : request->answer.sequences) FillSequence(index, *request, *sequence);
  }
  const uint64_t now = MonotonicNs();
  for (const auto& request : requests_.waiting) {
    // A running request of its account waits for what the account releases, and goes first.
    const bool held_up = std::ranges::count(over_quota, request->room.account) > 0;
    const bool goes_first =
        request->resume.preempted && request->resume.cause != PreemptCause::kPriority;
    view_requests_.push_back(
        {.state = goes_first ? RequestView::State::kPreempted : RequestView::State::kWaiting,
         .tenant = request->tenant,
         .choices = request->num_live(),
         .priority = request->spec.priority,
         .arrival_ns = request->times.submitted_ns,
         .has_no_room = request->wait.has_no_room || held_up,
         .overtaken = request->wait.overtaken,
         .account = request->room.account,
         .over_quota = request->room.over_quota || held_up,
         .is_owed = request->wait.is_owed,
         .resident_tokens = request->wait.resident_tokens,
         .follows = leaders_.Follows(*request) || TierLooks::Holds(*request, now),
         .preemptions = request->receipt.preemptions});
  }
  RaiseLeaders();
  const auto num_sequences = static_cast<uint32_t>(view_sequences_.size());
  view_ = {.now_ns = now,
           .requests = view_requests_,
           .sequences = view_sequences_,
           .tenants = tenants_.views(),
           .parallel = options_.parallel,
           .max_rows = options_.max_rows,
           .cost = &figures_.cost(),
           .target_step_ns = options_.target_step_ns,
           .drafts_always = options_.speculate == Speculate::kAlways,
           .max_draft_rows = options_.logit_rows - std::min(options_.logit_rows, num_sequences)};
}

// Gives a request that computes what another one of its tenant waits for the better priority of the
// two.
// (Priorities of two tenants are not compared.)
void StepPlanner::RaiseLeaders() {
  for (size_t i = requests_.running.size(); i < view_requests_.size(); ++i) {
    if (!view_requests_[i].follows) continue;
    const Request& follower = *requests_.waiting[i - requests_.running.size()];
    for (size_t j = 0; j < requests_.running.size(); ++j) {
      RequestView& leader = view_requests_[j];
      if (requests_.running[j]->id != follower.wait.leader || leader.tenant != follower.tenant)
        continue;
      leader.priority = std::min(leader.priority, follower.spec.priority);
    }
  }
}

void StepPlanner::FillSequence(uint32_t index, Request& request, Sequence& sequence) {
  // Choices of a request that goes on wait until the prompt can be forked again.
  if (sequence.done || sequence.kv.tables().empty() || sequence.waits_for_format()) return;
  if (Sequence* const part = request.spans.reading()) return FillSpan(index, request, *part);
  uint32_t pending = sequence.num_pending();
  if (!request.answer.prompt_done) {
    pending = request.prompt_tokens() - sequence.kv.num_committed();
  } else if (request.num_live() > 1 && options_.cache_mode != CacheMode::kNone &&
             !sequence.format_choice &&
             (IsBehind(request) ||
              (options_.long_rope && sequence.tokens.size() > request.answer.shortest()))) {
    // A choice whose next token is the last one that is known waits for those that are computed
    // again and, where the length decides the rotation, for shorter ones.
    if (--pending == 0) return;
  }
  if (request.load.waits) return;
  pending = loads_.RowsBefore(request, sequence, pending);
  pending = std::min(pending, request.spec.chunk_tokens.value_or(pending));
  if (request.retention) {
    pending = std::min(pending, request.retention->RowsFrom(sequence.kv.num_committed()));
  }
  if (request.spans.plan) {
    const uint32_t rows = request.spans.plan->RowsFrom(sequence.kv.num_committed());
    if (rows == 0) return;  // the next part is not read yet
    pending = std::min(pending, rows);
  }
  const bool decodes = sequence.kv.has_source() && Decodes(request, sequence);
  const bool drafts = decodes && sequence.draft.num_tokens > 0 && drafter_.MayDraft(request);
  view_sequences_.push_back(
      {.request = index,
       .pending = pending,
       .decodes = decodes,
       .kv_bytes = SeenBytes(request, sequence),
       .drafted = drafts ? sequence.draft.num_tokens : 0,
       .draft_chance = drafts ? drafter_.Chance(request, sequence) : 0,
       .source_tokens = sequence.kv.has_source() ? 0 : sequence.kv.source_tokens()});
  seen_.push_back({&request, &sequence});
}

// Offers rows to the part of the prompt that the request reads, instead of its first sequence.
void StepPlanner::FillSpan(uint32_t index, Request& request, Sequence& part) {
  if (request.load.waits) return;
  uint32_t pending = loads_.RowsBefore(request, part, part.num_pending());
  pending = std::min(pending, request.spec.chunk_tokens.value_or(pending));
  if (pending == 0) return;
  const uint32_t committed = part.kv.num_committed();
  view_sequences_.push_back(
      {.request = index,
       .pending = pending,
       .kv_bytes = static_cast<double>(cache_.layout().SeenBytes(committed))});
  seen_.push_back({&request, &part});
}

// Returns the bytes of KV that the next row of a sequence reads.
double StepPlanner::SeenBytes(const Request& request, const Sequence& sequence) const {
  const uint32_t tokens = sequence.kv.num_committed();
  const KvLayout& layout = cache_.layout();
  auto bytes = static_cast<double>(layout.SeenBytes(tokens));
  if (!request.retention || !request.retention->IsInexact(tokens)) return bytes;
  const uint32_t dropped = request.retention->is_heavy()
                               ? sequence.retained.dropped
                               : tokens - std::min(tokens, request.retention->budget());
  for (uint32_t group = 0; group < layout.num_full_groups(); ++group) {
    bytes -= dropped * static_cast<double>(layout.token_bytes(group));
  }
  return bytes;
}

// Returns the tokens to compute again if the request loses its blocks and nothing of them stays.
uint32_t StepPlanner::CostToBringBack(const Request& request) const {
  constexpr uint32_t kMost = uint32_t{1} << 30;  // what certainly does not stay costs most
  uint32_t tokens = !request.shares() ? kMost : 0;
  for (const auto& sequence : request.answer.sequences) {
    if (!sequence->done && !sequence->kv.tables().empty()) tokens += cache_.OwnTokens(sequence->kv);
  }
  for (const auto& part : request.spans.parts) {
    if (!part->sequence.kv.tables().empty()) tokens += cache_.OwnTokens(part->sequence.kv);
  }
  return tokens;
}

void StepPlanner::TakeRows(StepBatch* batch) const {
  batch->Clear();
  for (size_t i = 0; i < seen_.size(); ++i) {
    const SequenceView& sequence = view_sequences_[i];
    const uint32_t num_rows = plan_.rows[i];
    const uint32_t source_rows = plan_.source_rows[i];
    if (sequence.source_tokens > source_rows) continue;
    // A Cursor answers a prompt without rows.
    if (num_rows == 0 && sequence.pending > 0 && source_rows == 0) continue;
    batch->Add({.request = seen_[i].request,
                .sequence = seen_[i].sequence,
                .first_row = 0,
                .num_rows = num_rows + plan_.draft_rows[i],
                .position = seen_[i].sequence->kv.num_committed(),
                .source_rows = source_rows,
                .decodes = sequence.decodes,
                .num_drafted = plan_.draft_rows[i],
                .is_span = seen_[i].sequence == seen_[i].request->spans.reading()},
               sequence.kv_bytes);
  }
}

}  // namespace kvasir
