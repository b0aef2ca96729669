#include "schedule/step_figures.h"

#include <algorithm>

namespace kvasir {

void StepFigures::AddStep(const Step& step) {
  CountStepRows(step.num_rows, step.ns, cost_.PredictNs(step.work), stats_);
  cost_.Observe(step.work, step.ns);
  const uint32_t other_rows = step.decode_rows + step.work.draft_rows;
  const uint32_t prefill_rows = step.num_rows - std::min(step.num_rows, other_rows);
  ++stats_.steps;
  stats_.cost = cost_.Figures();
  stats_.step_ns += step.ns;
  stats_.decode_steps += step.decode_rows > 0 ? 1 : 0;
  stats_.decode_rows += step.decode_rows;
  stats_.prefill_rows += prefill_rows;
  stats_.kv_read_bytes = step.kv_read_bytes;
  stats_.weight_read_bytes = step.weight_read_bytes;
  recent_reads_.Add(MonotonicNs(), step.ns, step.kv_read_bytes + step.weight_read_bytes);
  if (prefill_rows == 0) return;
  // The prompts' share of the step's time, by rows. Both sums are halved after 64K rows, so that
  // recent rows decide the measured speed.
  prefill_ns_ += static_cast<double>(step.ns) * prefill_rows / step.num_rows;
  prefill_rows_ += prefill_rows;
  if (prefill_rows_ > 65536) {
    prefill_ns_ /= 2;
    prefill_rows_ /= 2;
  }
}

void StepFigures::AddToken(uint64_t gap_ns) {
  stats_.token_seconds.Observe(static_cast<double>(gap_ns) * 1e-9);
  CountTokenParts(gap_ns, times_, stats_);
}

void StepFigures::NoteOwner(const std::string& owner, uint32_t most) {
  auto& owners = stats_.cache_owners;
  if (std::ranges::find(owners, owner, &CacheOwnerStats::name) != owners.end()) return;
  const auto empty = std::ranges::find_if(owners, [](const CacheOwnerStats& other) {
    return other.pinned_blocks + other.idle_blocks + other.reserved_blocks == 0;
  });
  if (owners.size() < most) {
    owners.push_back({.name = owner});
  } else if (empty != owners.end()) {
    *empty = {.name = owner};
  }
}

void StepFigures::Publish(const RequestQueues& requests, std::span<const RequestView> views,
                          KvCache& cache) {
  CountTenants(requests);
  CountOwners(requests, cache);
  CountRequests(requests, views);
  recent_reads_.Fill(stats_.requests);
  CountCache(cache);
  if (on_stats_) on_stats_(stats_);
}

void StepFigures::CountTenants(const RequestQueues& requests) {
  for (TenantStats& tenant : stats_.tenants) tenant.running = tenant.waiting = 0;
  for (const auto& request : requests.running) {
    if (request->spec.only_when_idle) continue;
    stats_.tenants[request->tenant].running += request->num_live();
  }
  for (const auto& request : requests.waiting) {
    if (!request->spec.only_when_idle) ++stats_.tenants[request->tenant].waiting;
  }
}

// Counts the blocks of owners. It takes time for many owners; these gauges may be old while
// something runs.
void StepFigures::CountOwners(const RequestQueues& requests, KvCache& cache) {
  constexpr uint64_t kPeriodNs = 100'000'000;
  const uint64_t now = MonotonicNs();
  if (!requests.running.empty() && now - owners_counted_ns_ < kPeriodNs) return;
  owners_counted_ns_ = now;
  for (CacheOwnerStats& owner : stats_.cache_owners) {
    const KvAccounts::Account& account = cache.accounts().of(cache.EnterAccount(owner.name));
    owner.pinned_blocks = account.pinned;
    owner.idle_blocks = account.idle;
    owner.reserved_blocks = account.reserved;
  }
}

void StepFigures::CountRequests(const RequestQueues& requests, std::span<const RequestView> views) {
  RequestStats& now = stats_.requests;
  now.longest_running_tokens = now.following = now.oldest_wait_since_ns = 0;
  stats_.running = stats_.hypotheses = 0;
  for (const auto& request : requests.running) {
    if (request->spec.only_when_idle) continue;
    stats_.running += request->num_live();
    if (request->answer.search) stats_.hypotheses += request->answer.search->beams().size();
    for (const auto& sequence : request->answer.sequences) {
      if (sequence->done) continue;
      now.longest_running_tokens =
          std::max<uint64_t>(now.longest_running_tokens, sequence->tokens.size());
    }
  }
  // Work for later waits here only while nothing else does.
  const bool waits_for_idle =
      !requests.waiting.empty() && requests.waiting.front()->spec.only_when_idle;
  stats_.queued = waits_for_idle ? 0 : requests.waiting.size();
  if (stats_.queued == 0) return;
  now.oldest_wait_since_ns = requests.waiting.front()->times.submitted_ns;
  for (const RequestView& view : views) {
    if (view.state == RequestView::State::kRunning) continue;
    now.following += view.follows;
    now.oldest_wait_since_ns = std::min(now.oldest_wait_since_ns, view.arrival_ns);
  }
  now.following = std::min<uint64_t>(now.following, requests.waiting.size());
}

void StepFigures::CountCache(const KvCache& cache) {
  const CacheUsage usage = cache.usage();
  stats_.free_blocks = usage.free_blocks;
  stats_.idle_blocks = usage.idle_blocks;
  stats_.pinned_blocks = usage.pinned_blocks;
  stats_.cached_tokens = usage.cached_tokens;
  stats_.live_tokens = usage.live_tokens;
  stats_.cursors = usage.num_cursors;
  stats_.waste = usage.waste();
  if (usage.free_blocks * 10 <= usage.num_blocks) {
    stats_.worst_waste = std::max(stats_.worst_waste, stats_.waste);
  }
  static_cast<CacheCounters&>(stats_) = cache.counters();
  stats_.computed_tokens = stats_.prompt_tokens - stats_.reused_tokens();
}

}  // namespace kvasir
