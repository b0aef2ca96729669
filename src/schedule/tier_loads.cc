#include "schedule/tier_loads.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "base/clock.h"
#include "schedule/match_receipt.h"

namespace kvasir {
namespace {

// What sealing and unsealing may take of a step that has rows.
constexpr uint64_t kTierNs = 4'000'000;

}  // namespace

TierLoads::TierLoads(Runner& runner, KvCache& cache, Tier* tier, StepFigures& figures,
                     uint32_t max_rows)
    : cache_(cache),
      tier_(tier),
      figures_(figures),
      max_rows_(max_rows),
      for_each_([&runner](uint32_t items, const std::function<void(uint32_t)>& fn) {
        runner.ForEach(items, fn);
      }) {
  if (tier != nullptr) LearnSpeed(TierKind::kDisk);
}

// Takes the speed that the tier knows of an earlier process or of a probe, where none was measured
// here, as if it had loaded for a tenth of a second.
void TierLoads::LearnSpeed(TierKind kind) {
  LoadSpeed& speed = speeds_[static_cast<size_t>(kind)];
  if (speed.ns_per_byte()) return;
  const double bytes_per_s = tier_->LoadBytesPerS(kind);
  if (bytes_per_s > 0) speed.Observe(static_cast<uint64_t>(bytes_per_s / 10), 100'000'000);
}

// Returns how long a byte of what is left of a load takes, from where it comes. Absent: not known.
std::optional<double> TierLoads::NsPerByte(const KvLoad& load) const {
  double records = 0, ns = 0;
  for (size_t kind = 0; kind < kNumTierKinds; ++kind) {
    const double num = load.num_left(TierKind(kind));
    if (num == 0) continue;
    if (!speeds_[kind].ns_per_byte()) return std::nullopt;
    records += num;
    ns += num * *speeds_[kind].ns_per_byte();
  }
  return records == 0 ? std::nullopt : std::optional(ns / records);
}

void TierLoads::Start(Request& request, KvLoad load, uint32_t num_offered) {
  if (!load.active()) return;
  const uint64_t now = MonotonicNs();
  LoadState& state = request.load;
  state = {};
  state.load = std::move(load);
  if (request.tracing.trace && request.tracing.trace->restore.begin_ns == 0) {
    request.tracing.trace->restore.begin_ns = now;
  }
  if (tier_->LookNs() > 0) LearnSpeed(TierKind::kRemote);  // known since it has connected
  // What the request was held for the lookup is a part of what its load may be late.
  state.pace = {.start_ns = now - request.wait.looked_ns,
                .progress_ns = now,
                .compute_ns = num_offered * figures_.RowNs(),
                .ns_per_byte = NsPerByte(state.load)};
  cache_.BindLoad(request.loading().kv, state.load);
  state.is_late = !cache_.layout().has_windows() &&
                  state.pace.IsSlower(LeftBytes(state), state.pace.compute_ns);
  state.waits = !state.is_late;
  if (state.is_late) ReadAhead(request);
  EnterState(request, now);
  cache_.AskAhead(state.load, state.first_read);
}

uint64_t TierLoads::LeftBytes(const LoadState& state) const {
  return (uint64_t{state.load.num_left(TierKind::kDisk)} + state.load.num_left(TierKind::kRemote)) *
         cache_.layout().block_bytes();
}

void TierLoads::Continue(RequestQueues& requests) {
  if (tier_ == nullptr) return;
  bool others_have_rows = false, any = false;
  for (const auto& request : requests.running) {
    (request->load.load.active() ? any : others_have_rows) = true;
  }
  if (!any) return;
  const uint64_t end_ns =
      others_have_rows ? MonotonicNs() + kTierNs : std::numeric_limits<uint64_t>::max();
  figures_.TimedCache([&] {
    for (size_t i = requests.running.size(); i-- > 0;) {
      Request& request = *requests.running[i];
      if (!request.load.load.active() || request.done()) continue;
      if (!ContinueOne(request, end_ns)) Restart(requests, i);
    }
  });
}

// Returns false if a load with windows stopped early; half a window is useless, so that the request
// is matched again.
bool TierLoads::ContinueOne(Request& request, uint64_t end_ns) {
  LoadState& state = request.load;
  Sequence& sequence = request.loading();
  const uint32_t before = sequence.kv.num_committed();
  const std::array bytes_before = {state.load.loaded_bytes(TierKind::kDisk),
                                   state.load.loaded_bytes(TierKind::kRemote)};
  const KvCache::Front front =
      cache_.ContinueLoad(sequence.kv, state.load, sequence.tokens, for_each_, end_ns);
  const uint64_t now = MonotonicNs();
  if (sequence.kv.num_committed() > before) {
    const uint64_t disk_bytes = state.load.loaded_bytes(TierKind::kDisk) - bytes_before[0];
    const uint64_t remote_bytes = state.load.loaded_bytes(TierKind::kRemote) - bytes_before[1];
    if (!state.is_late && (disk_bytes == 0 || remote_bytes == 0)) {
      const TierKind kind = disk_bytes == 0 ? TierKind::kRemote : TierKind::kDisk;
      speeds_[static_cast<size_t>(kind)].Observe(disk_bytes + remote_bytes,
                                                 now - state.pace.progress_ns);
    }
    state.pace.progress_ns = now;
    // Where no speed was known, this load's own one decides after a second.
    const uint64_t passed_ns = now - state.pace.start_ns;
    if (!state.pace.ns_per_byte && static_cast<double>(passed_ns) > LoadPace::kUnknownNs &&
        state.load.loaded_bytes() > 0) {
      state.pace.ns_per_byte =
          static_cast<double>(passed_ns) / static_cast<double>(state.load.loaded_bytes());
    }
  }
  state.waits = false;
  if (front == KvCache::Front::kEnded) {
    End(request);
    return true;
  }
  const bool has_windows = cache_.layout().has_windows();
  if (front == KvCache::Front::kMissing && !state.is_late) {
    SetMiss(request, state.load.is_broken() ? MissReason::kUnreadable
                     : state.load.is_down() ? MissReason::kRemoteDown
                                            : MissReason::kEvicted);
    if (has_windows) return false;
  }
  if (front == KvCache::Front::kReading && !state.is_late) {
    const uint64_t next_bytes = state.load.loaded_bytes() + cache_.layout().block_bytes();
    state.is_late = static_cast<double>(now) > state.pace.LateAt(next_bytes) ||
                    state.pace.IsSlower(LeftBytes(state), LeftTokens(request) * figures_.RowNs());
    if (state.is_late && has_windows) {
      SetMiss(request, MissReason::kOvertaken);
      return false;
    }
    state.waits = !state.is_late;
  }
  const bool is_nothing_asked =
      cache_.TokensBeforeRead(sequence.kv, state.load) == std::numeric_limits<uint32_t>::max();
  if (state.is_late && (front == KvCache::Front::kReading || is_nothing_asked)) ReadAhead(request);
  cache_.AskAhead(state.load, state.first_read);
  EnterState(request, now);
  return true;
}

void TierLoads::SetMiss(Request& request, MissReason reason) {
  LoadState& state = request.load;
  if (state.miss) return;
  state.miss = reason;
  state.miss_at = request.loading().kv.num_committed();
}

// Returns the tokens of the offer that the sequence does not have yet.
uint32_t TierLoads::LeftTokens(Request& request) const {
  const uint32_t end = request.load.load.end_block() * cache_.layout().block_tokens();
  const uint32_t committed = request.loading().kv.num_committed();
  return end - std::min(end, committed);
}

// Makes a late load read ahead of what the sequence computes: so far that both come to the end of
// the offer at once, and at least a step.
void TierLoads::ReadAhead(Request& request) {
  LoadState& state = request.load;
  SetMiss(request, MissReason::kOvertaken);
  const uint32_t block_tokens = cache_.layout().block_tokens();
  const uint32_t left = LeftTokens(request);
  const double share = state.pace.ComputedShare(LeftBytes(state), left * figures_.RowNs());
  const uint64_t lead = std::max<uint64_t>(static_cast<uint64_t>(share * left), max_rows_);
  const uint64_t first = request.loading().kv.num_committed() + lead;
  state.first_read = static_cast<uint32_t>((first + block_tokens - 1) / block_tokens);
}

uint32_t TierLoads::RowsBefore(const Request& request, const Sequence& sequence,
                               uint32_t pending) const {
  const LoadState& state = request.load;
  if (!state.load.active()) return pending;
  return std::min(pending, cache_.TokensBeforeRead(sequence.kv, state.load));
}

void TierLoads::End(Request& request) {
  LoadState& state = request.load;
  if (!state.load.active() && state.load.num_records() == 0) return;
  Receipt& receipt = request.receipt;
  if (request.tracing.trace) {
    RequestTrace::Restore& restore = request.tracing.trace->restore;
    restore.end_ns = MonotonicNs();
    restore.remote_tokens += state.load.remote_tokens();
    restore.disk_tokens += state.load.loaded_tokens() - state.load.remote_tokens();
  }
  if (request.spans.is_reading) {
    SpanPart& part = *request.spans.parts[request.spans.num_read];
    part.from_remote = state.load.remote_tokens();
    part.from_disk = state.load.loaded_tokens() - state.load.remote_tokens();
  } else if (request.resume.was_resumed) {
    const uint32_t kept = std::min(request.resume.recomputed_last, state.load.taken_tokens());
    receipt.recomputed -= kept;
    figures_.stats().recomputed_tokens -= kept;
  } else {
    receipt.reused_remote += state.load.remote_tokens();
    receipt.reused_disk += state.load.loaded_tokens() - state.load.remote_tokens();
    receipt.reused_pool += state.load.taken_tokens() - state.load.loaded_tokens();
    receipt.computed = receipt.prompt_tokens - receipt.cached_tokens();
    if (state.miss) {
      SetReceiptMiss(request, *state.miss, state.miss_at);
      if (!request.spec.only_when_idle) cache_.CountMiss(*state.miss, receipt.computed);
    }
  }
  state = {};
  EnterState(request, MonotonicNs());
}

void TierLoads::EnterState(Request& request, uint64_t now_ns) {
  using State = FirstTokenTime::State;
  request.times.parts.Enter(request.load.waits ? State::kLoads : State::kRuns, now_ns,
                            figures_.cache_ns());
}

// Makes a request whose load cannot be finished wait to be matched again, without the tier.
void TierLoads::Restart(RequestQueues& requests, size_t running_index) {
  Request& request = *requests.running[running_index];
  requests.PutBack(running_index);  // first: it may throw
  if (!request.resume.was_resumed) request.wait.tier_miss = request.load.miss;
  request.load = {};
  request.wait.skips_tier = true;
  Sequence& sequence = *request.answer.first_live();
  sequence.kv.Close();
  sequence.kv = KvSequence();
  request.room.reservation.Release();
  if (!request.resume.was_resumed) request.answer.sequences.clear();
  request.resume.preempted = request.resume.was_resumed;
  requests.retry_admission = true;
  request.times.parts.Enter(FirstTokenTime::State::kQueued, MonotonicNs(), figures_.cache_ns());
}

void TierLoads::Seal(bool runs) {
  if (tier_ == nullptr) return;
  cache_.SealQueued(runs ? MonotonicNs() + kTierNs : std::numeric_limits<uint64_t>::max(),
                    for_each_);
}

}  // namespace kvasir
