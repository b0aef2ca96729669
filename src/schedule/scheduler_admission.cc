// Admission and preemption: when a request may run, what the cache gives it, and when it gives way.
#include <algorithm>
#include <limits>
#include <utility>

#include "base/clock.h"
#include "schedule/kv_quotas.h"
#include "schedule/match_receipt.h"
#include "schedule/request_answer.h"
#include "schedule/request_tracing.h"
#include "schedule/scheduler.h"

namespace kvasir {

void Scheduler::Enqueue(std::unique_ptr<Request>&& request) {
  request->events.Begin(request->spec.n, 1 + drafts_.drafter().LongestDraft(request->spec));
  if (request->spec.beams) BeamBatch::BeginSearch(*request, options_.end_tokens);
  request->tenant = tenants_.NumberOf(request->spec.tenant, requests_);
  const std::string& owner = request->cache_owner();
  figures_.NoteOwner(owner, options_.num_tenants);
  request->room.account = tenants_.AccountOf(owner);
  request->times.parts.Start(request->times.submitted_ns);
  if (request->spec.only_when_idle) {
    requests_.spare.push_back(std::move(request));
    return;
  }
  ends_.StopSpare(Spare::kBegun);
  tenants_.Activate(request->tenant, requests_);
  if (const auto timeout_ms = request->spec.timeout_ms) {
    const uint64_t most = std::numeric_limits<uint64_t>::max() - request->times.submitted_ns;
    request->times.deadline_ns =
        request->times.submitted_ns + std::min(most / 1'000'000, *timeout_ms) * 1'000'000;
  }
  if (looks_.CanAsk() && !leaders_.Follow(*request, 0)) looks_.Begin(*request);
  requests_.waiting.push_back(std::move(request));
}

void Scheduler::SetTenants(const TenantTable& rules) {
  tenants_.SetRules(rules);
  for (const auto& request : requests_.running) FitQuota(*request);
  for (auto it = requests_.waiting.begin(); it != requests_.waiting.end();) {
    FitQuota(**it);
    if ((*it)->done()) requests_.ended.push_back(std::move(*it));
    it = *it ? it + 1 : requests_.waiting.erase(it);
  }
  requests_.retry_admission = true;
}

// Shortens the answer of a request that was accepted under other quotas where its owner may have
// fewer blocks now, or ends it if even what is known of it is too long.
void Scheduler::FitQuota(Request& request) {
  const uint32_t most = tenants_.MostBlocksOf(request.cache_owner());
  const KvLayout& layout = cache_.layout();
  if (request.done() || request.room.demand.blocks(layout, cache_.step_tokens()) <= most) return;
  KvDemand prompt = request.room.demand;
  prompt.tokens = prompt.prompt_tokens;
  const uint64_t tokens = prompt.MaxTokens(layout, cache_.step_tokens(), most);
  if (tokens < uint64_t{request.prompt_tokens()} + request.answer.longest) {
    const Error error{Code::kExhausted,
                      "the cache's room for this tenant was lowered, and the request needs more"};
    return ends_.Fail(request, error);
  }
  request.room.demand.tokens = static_cast<uint32_t>(tokens);
  request.max_tokens = request.room.demand.tokens + 1 - request.prompt_tokens();
}

void Scheduler::Admit(size_t waiting_index) {
  Request& request = *requests_.waiting[waiting_index];
  const bool resumes = request.resume.preempted;
  if (!TryAdmit(request)) {
    request.wait.has_no_room = !leaders_.Follows(request);
    return;
  }
  for (const auto& other : requests_.waiting) {
    if (other.get() == &request || other->times.submitted_ns > request.times.submitted_ns) continue;
    // It goes before others like it, because the cache has more of its prompt.
    const bool passes = !resumes && other->tenant == request.tenant &&
                        other->spec.priority == request.spec.priority &&
                        other->wait.resident_tokens < request.wait.resident_tokens;
    if (other->wait.has_no_room || passes) ++other->wait.overtaken;
  }
  requests_.Admit(waiting_index);
}

// Returns the tokens of each sequence that admission reserves blocks for.
uint32_t Scheduler::TokensToReserve(const Request& request) const {
  const uint32_t whole = request.room.demand.tokens;
  if (options_.admission == Admission::kFull || request.max_tokens == 0) return whole;
  if (request.receipt.preemptions >= SchedulingPolicy::kMaxPreemptions) return whole;
  if (request.retention && request.spec.n > 1) return whole;  // each may need separate blocks
  const uint32_t so_far = request.answer.longest;
  uint32_t expected = tenants_.lengths().Expected(request.tenant, so_far);
  if (request.resume.preempted) {
    expected = std::max(expected, so_far + SchedulingPolicy::kCooldownTokens + 1);
  }
  // The last token needs no KV.
  return static_cast<uint32_t>(
      std::min<uint64_t>(whole, uint64_t{request.prompt_tokens()} + expected - 1));
}

Scheduler::Known Scheduler::KnownOf(const Request& request) const {
  const GenerateRequest& spec = request.spec;
  const Sequence* first = request.answer.first_live();  // null before it has run
  Known known;
  // An answer with tokens goes on even if its prompt was not yet computed again.
  known.goes_on =
      request.resume.preempted && (request.answer.prompt_done || request.answer.longest > 0);
  // Where several choices go on, the prompt is computed once and forked again.
  known.is_whole =
      known.goes_on && (request.width() == 1 || options_.cache_mode == CacheMode::kNone);
  known.tokens = known.is_whole ? std::span<const TokenId>(first->tokens)
                                : std::span<const TokenId>(spec.prompt);
  known.is_long = options_.IsLong(known.goes_on ? request.answer.shortest() : known.tokens.size());
  return known;
}

// Returns the blocks that admission leaves to running requests.
uint32_t Scheduler::Headroom() const {
  if (options_.admission != Admission::kExpected) return 0;
  return HeadroomBlocks(options_.kv_headroom, cache_.plan().num_blocks);
}

bool Scheduler::TryAdmit(Request& request) {
  const GenerateRequest& spec = request.spec;
  const Known known = KnownOf(request);
  const uint64_t start_ns = MonotonicNs();
  const uint64_t cache_before_ns = figures_.cache_ns();
  using State = FirstTokenTime::State;
  MatchResult match =
      matcher_.Match(request, known.tokens, known.is_long,
                     {.use_cursor = spec.reuse == Reuse::kAll && !known.goes_on,
                      .use_tier = spec.use_disk && !request.wait.skips_tier,
                      .remote = spec.use_remote,
                      .counts = !spec.only_when_idle && request.times.admitted_ns == 0});
  // All accounts have blocks in use, and its quota needs one.
  if (request.room.account == kNobody && tenants_.HasQuota(request.cache_owner()) &&
      !requests_.running.empty()) {
    return false;
  }
  if (leaders_.Follow(request, match.num_reused())) {
    request.times.parts.Enter(State::kFollows, start_ns, cache_before_ns);
    return false;
  }
  KvDemand demand = request.room.demand;
  demand.prompt_tokens = static_cast<uint32_t>(known.tokens.size());
  demand.tokens = TokensToReserve(request);
  demand.n = request.num_live();
  // Without other requests this one would fit: submission checked its demand.
  const bool guaranteed = cache_.IsGuaranteed(match, demand);
  demand.beside_blocks = 0;  // SpanReader::Reserve
  Result<Reservation> reservation = cache_.Reserve(match, demand);
  request.room.over_quota = !reservation && CountRefusal(reservation.error());
  request.wait.is_owed = !reservation && guaranteed;
  if (!reservation) {
    request.times.parts.Enter(State::kQueued, start_ns, cache_before_ns);
    return false;
  }
  const uint32_t available = cache_.accounts().available(request.room.account);
  auto parts = spans_.Reserve(request, match);
  if (!parts && cache_.DropTail(match)) parts = spans_.Reserve(request, match);
  if (!parts) {
    request.room.over_quota = CountRefusal(parts.error());
    request.wait.is_owed = guaranteed;
    request.times.parts.Enter(State::kQueued, start_ns, cache_before_ns);
    return false;
  }
  const uint32_t unreserved = cache_.unreserved_blocks();
  if (!guaranteed && !requests_.running.empty() && unreserved < Headroom()) {
    if (!parts->empty()) {
      request.spans.refusal = {{Code::kExhausted, "the headroom is left to running requests"},
                               available + Headroom() - unreserved};
    }
    return false;
  }
  if (!parts->empty()) spans_.Retry();
  request.spans.parts = std::move(*parts);
  request.times.parts.Enter(State::kRuns, start_ns, cache_before_ns);
  request.room.reserved_tokens = demand.tokens;
  StartRunning(request, known, std::move(match), std::move(*reservation), start_ns);
  return true;
}

void Scheduler::StartRunning(Request& request, const Known& known, MatchResult match,
                             Reservation reservation, uint64_t start_ns) {
  const bool resumed = request.resume.preempted;
  Sequence* first = request.answer.first_live();
  if (resumed) {
    CountResumed(request, *first, match.num_reused());
    TraceResume(request, start_ns);
  } else {
    request.times.admitted_ns = start_ns;
    if (const LookState look = std::exchange(request.wait.look, {}); look.answered_ns != nullptr) {
      request.wait.looked_ns = look.HeldNs(start_ns);
    }
    request.adapters.Run();
    ExplainMatch(request, match);
    figures_.stats().reused_source_tokens += request.receipt.source_reused;
    if (const auto reason = std::exchange(request.wait.tier_miss, std::nullopt)) {
      SetReceiptMiss(request, *reason, match.num_reused());
      if (!request.spec.only_when_idle) cache_.CountMiss(*reason, request.receipt.computed);
    }
    if (request.spec.caller_explains && match.miss && match.miss->reason == MissReason::kDiverged) {
      match.miss.reset();  // the caller counts it, by the reason that it finds
    }
    if (request.tracing.trace) request.tracing.trace->matched_ns = MonotonicNs();
  }
  if (match.has_cursor()) {
    const std::span<const float> hidden = cache_.CursorHidden(match);
    request.answer.cursor_hidden.assign(hidden.begin(), hidden.end());
  }
  const uint32_t num_offered = match.num_offered();
  KvLoad load = cache_.TakeOffer(match);
  KvSequence kv = figures_.TimedCache([&] {
    return cache_.Fetch(std::move(match), request.prompt_tokens() + request.max_tokens,
                        reservation);
  });
  kv.KeepResumePoints(cache_.ResumePointsOf(request.prompt_tokens(), request.spec.message_ends));
  if (options_.tier != nullptr) {
    // Where this prompt could resume from a tier, which has whole blocks and not the last token.
    const uint32_t block_tokens = cache_.layout().block_tokens();
    kv.AddResumePoint((request.prompt_tokens() - 1) / block_tokens * block_tokens);
  }
  if (resumed) {
    first->kv = std::move(kv);
    for (const auto& sequence : request.answer.sequences) {
      sequence->retained.decided_at = sequence->retained.decisions = 0;  // it decides again
      // Without a cache the choices share nothing.
      const bool shares = options_.cache_mode != CacheMode::kNone;
      const bool is_apart = known.goes_on && !shares;
      sequence->long_rope = is_apart ? options_.IsLong(sequence->tokens.size()) : known.is_long;
      if (sequence->done || shares || sequence.get() == first) continue;
      sequence->kv =
          cache_.Fetch(matcher_.Match(request, known.tokens, known.is_long, {.counts = false}),
                       request.prompt_tokens() + request.max_tokens, reservation);
    }
    if (!known.is_whole) request.answer.prompt_done = false;
  } else {
    AddSequence(request, std::move(kv), options_.tokenizer).long_rope = known.is_long;
  }
  request.resume.was_resumed = resumed;
  loads_.Start(request, std::move(load), num_offered);
  request.room.reservation = std::move(reservation);
  request.resume.tokens_at_resume = request.answer.completion_tokens;
  request.resume.preempted = false;
}

// Counts that blocks were refused; true when the account's maximum left none.
bool Scheduler::CountRefusal(const Error& error) {
  const bool over_quota = error.cause == Cause::kKvMax;
  ++(over_quota ? figures_.stats().requests.quota_reservations_failed
                : figures_.stats().requests.reservations_failed);
  return over_quota;
}

// Counts what is computed a second time.
void Scheduler::CountResumed(Request& request, const Sequence& first, uint32_t num_reused) {
  request.resume.recomputed_last = 0;
  for (const auto& sequence : request.answer.sequences) {
    if (sequence->done) continue;
    const uint32_t kept = sequence.get() == &first ? num_reused : request.prompt_tokens();
    uint32_t again = sequence->num_computed - std::min(sequence->num_computed, kept);
    if (request.spans.plan && again > 0 && sequence.get() == &first) {
      again -= request.spans.plan->ReadBefore(sequence->num_computed);
    }
    request.receipt.recomputed += again;
    request.resume.recomputed_last += again;
    figures_.stats().recomputed_tokens += again;
    if (request.resume.cause == PreemptCause::kRope)
      figures_.stats().recomputed_rope_tokens += again;
  }
}

// Takes all blocks of a running request. What it computed stays in the index until others need the
// room. It goes on with the same tokens, text and random numbers.
void Scheduler::Preempt(size_t running_index, PreemptCause cause) {
  Request* const request = requests_.running[running_index].get();
  loads_.End(*request);
  for (const auto& sequence : request->answer.sequences) {
    sequence->LeaveFormat();
    sequence->draft = {};  // it may run again before the next drafts are filled in
    if (sequence->done || sequence->kv.tables().empty()) continue;  // or it waits to be forked
    sequence->num_computed = std::max(sequence->num_computed, sequence->kv.num_committed());
    sequence->kv.Close();
    // If only the prompt is committed, its tail is kept already.
    if (!request->answer.prompt_done || sequence->kv.num_committed() > request->prompt_tokens()) {
      figures_.TimedCache([&] { cache_.Commit(sequence->kv, 0, KvCache::CommitKind::kEnd); });
    }
    sequence->kv = KvSequence();
    sequence->retained.sums.Release();
  }
  spans_.Stop(*request);
  request->answer.unused_beams.clear();
  request->room.reservation.Release();
  request->resume.preempted = true;
  request->resume.cause = cause;
  const uint64_t now = MonotonicNs();
  request->times.parts.Enter(FirstTokenTime::State::kQueued, now, figures_.cache_ns());
  TracePreempt(*request, cause, now);
  request->room.is_starved = request->room.over_quota = request->wait.is_owed = false;
  for (const auto& other : requests_.waiting) other->wait.has_no_room = false;
  if (cause != PreemptCause::kRope) {
    request->wait.has_no_room = true;  // others need its blocks first
    ++request->receipt.preemptions;
    ++figures_.stats().preemptions[static_cast<size_t>(cause)];
    ++figures_.stats().tenants[request->tenant].preemptions;
  }
  if (cause == PreemptCause::kMemory) tenants_.lengths().RaiseFactor();
  requests_.Preempt(running_index);
}

// Makes reservations longer where answers reach their ends, those of the oldest requests first. One
// that cannot grow is starved: it has no rows until it can. So are those after it, of its account
// if that has its maximum.
void Scheduler::GrowReservations() {
  bool starved = false;
  std::vector<AccountId>& over_quota = accounts_over_quota_;
  over_quota.clear();
  for (const auto& request : requests_.running) {
    uint32_t needed = 0;
    for (const auto& sequence : request->answer.sequences) {
      if (sequence->done) continue;
      needed = std::max(needed, static_cast<uint32_t>(sequence->tokens.size()));
    }
    const bool own = std::ranges::count(over_quota, request->room.account) > 0;
    request->room.over_quota = own;
    const bool has_room = retainer_.DropTokens(*request) && spans_.Read(*request);
    const bool grows = needed > request->room.reserved_tokens || !has_room;
    request->room.is_starved =
        grows && (starved || own || !has_room || !GrowReservation(*request, needed));
    if (request->room.is_starved && request->room.over_quota) {
      over_quota.push_back(request->room.account);
    } else {
      starved |= request->room.is_starved;
    }
    TraceWait(*request);
  }
}

bool Scheduler::GrowReservation(Request& request, uint32_t needed) {
  const uint32_t expected = std::max(needed, TokensToReserve(request));
  const uint32_t block_tokens = cache_.layout().block_tokens();
  const uint32_t least = std::min(request.room.demand.tokens,
                                  (needed + block_tokens - 1) / block_tokens * block_tokens);
  Status grown;
  for (const uint32_t tokens : {expected, least}) {
    grown = request.room.reservation.Grow(tokens, request.num_live());
    if (!grown) continue;
    request.room.reserved_tokens = tokens;
    return true;
  }
  request.room.over_quota = CountRefusal(grown.error());
  return false;
}

// Restarts requests that have become long (RoPE longrope): a token that makes a sequence longer
// than after_tokens is known, but not computed. From now on all its tokens have the bits that a
// prompt of this length has, so the request gives up its blocks and goes on as a long one, when all
// choices that go on are so long: the others wait for those whose format is not known yet.
void Scheduler::RestartLong() {
  if (!options_.long_rope || options_.cache_mode == CacheMode::kNone) return;
  for (size_t i = requests_.running.size(); i-- > 0;) {
    const bool is_long = requests_.running[i]->answer.first_live()->long_rope;
    if (!is_long && options_.IsLong(requests_.running[i]->answer.shortest()))
      Preempt(i, PreemptCause::kRope);
  }
}

}  // namespace kvasir
