// Retention: when sequences drop tokens, and what is counted of it.
#include <algorithm>
#include <numeric>

#include "base/bytes.h"
#include "schedule/scheduler.h"

namespace kvasir {

// Drops what no later token of a request's sequences sees. Returns false where a sequence that
// drops its first tokens has no room to copy what it keeps: until then it must not go on.
bool Scheduler::DropTokens(Request& request) {
  if (!request.retention || request.done()) return true;
  const auto has_blocks = [](const auto& one) { return !one->done && !one->kv.tables().empty(); };
  const auto holders = std::ranges::count_if(request.answer.sequences, has_blocks);
  bool all = true;
  for (const auto& sequence : request.answer.sequences) {
    if (!has_blocks(sequence)) continue;
    all &= DropTokens(request, *sequence, holders == 1 ? request.num_live() : 0);
  }
  return all;
}

// `sequences`: that the request has or will have, if this is the only one with blocks; else 0.
bool Scheduler::DropTokens(const Request& request, Sequence& sequence, uint32_t sequences) {
  KvSequence& kv = sequence.kv;
  const uint32_t position = kv.num_committed();
  if (!request.retention || !request.retention->IsInexact(position)) return true;
  const RetentionPolicy& policy = *request.retention;
  const uint32_t block_tokens = cache_.layout().block_tokens();
  kept_blocks_.resize(CeilDiv(policy.sinks(), block_tokens));
  std::iota(kept_blocks_.begin(), kept_blocks_.end(), 0u);
  return figures_.TimedCache([&] {
    // What comes before is exact: its last tokens can be found too.
    if (kv.publishes()) cache_.Commit(kv, 0, KvCache::CommitKind::kEnd);
    return cache_
        .Retain(kv, {.kept = kept_blocks_,
                     .first = policy.FirstSeen(position) / block_tokens,
                     .most_tokens = policy.MostTokens(block_tokens),
                     .sequences = sequences})
        .has_value();
  });
}

// Counts what a choice that ends has dropped. REQUIRES: it has its KV, or was preempted.
void Scheduler::NoteRetained(Request& request, const Sequence& sequence) {
  if (!request.retention) return;
  const uint32_t tokens = std::max(sequence.num_computed, sequence.kv.num_committed());
  request.answer.most_computed = std::max(request.answer.most_computed, tokens);
  const uint32_t exact = std::min(tokens, request.exact_end());
  if (tokens == exact || request.spec.only_when_idle) return;
  EngineStats& stats = figures_.stats();
  stats.retention_dropped[static_cast<size_t>(request.retention->policy())] +=
      tokens - request.retention->budget();
  stats.retention_inexact += tokens - exact;
}

// Writes into the receipt what the longest choice has dropped.
void Scheduler::FillRetention(Request& request) {
  if (!request.retention) return;
  const RetentionPolicy& policy = *request.retention;
  const uint32_t tokens = request.answer.most_computed;
  RetentionReceipt& receipt = request.receipt.retention.emplace();
  receipt.policy = policy.policy();
  receipt.budget = policy.budget();
  receipt.sinks = policy.sinks();
  receipt.kept = tokens;
  if (tokens <= policy.inexact_from()) return;
  receipt.kept = policy.budget();
  receipt.dropped = tokens - policy.budget();
  receipt.inexact_from = policy.inexact_from();
}

}  // namespace kvasir
