#include "schedule/retainer.h"

#include <algorithm>
#include <numeric>

#include "base/bytes.h"
#include "base/check.h"
#include "base/fault.h"

namespace kvasir {

Retainer::Retainer(KvCache& cache, StepFigures& figures, uint32_t heavy_context, uint32_t parallel)
    : cache_(cache),
      figures_(figures),
      sums_(BlockSums::ShapeFor(cache.layout(), heavy_context), parallel) {
  kept_blocks_.reserve(sums_.shape().blocks);
  held_blocks_.reserve(sums_.shape().blocks);
}

bool Retainer::DropTokens(Request& request) {
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

bool Retainer::DropTokens(const Request& request, Sequence& sequence, uint32_t sequences) {
  KvSequence& kv = sequence.kv;
  const uint32_t position = kv.num_committed();
  if (!request.retention || !request.retention->IsInexact(position)) return true;
  const RetentionPolicy& policy = *request.retention;
  const uint32_t block_tokens = cache_.layout().block_tokens();
  const bool is_heavy = policy.is_heavy();
  if (is_heavy && !Decide(policy, sequence)) return true;
  const auto beginning = static_cast<uint32_t>(CeilDiv(policy.sinks(), block_tokens));
  if (!is_heavy) {
    kept_blocks_.resize(beginning);
    std::iota(kept_blocks_.begin(), kept_blocks_.end(), 0u);
  }
  const bool retained = figures_.TimedCache([&] {
    // What comes before is exact: its last tokens can be found too.
    if (kv.publishes()) cache_.Commit(kv, 0, KvCache::CommitKind::kEnd);
    return cache_
        .Retain(kv, {.kept = kept_blocks_,
                     .beginning = beginning,
                     .first = is_heavy ? policy.FirstRecentBlock(position)
                                       : policy.FirstSeen(position) / block_tokens,
                     .most_tokens = policy.MostTokens(block_tokens),
                     .sequences = sequences})
        .has_value();
  });
  if (!is_heavy || !retained) return retained;
  HeavyState& state = sequence.retained;
  ++state.decisions;
  state.dropped = kv.table().first() * block_tokens - kept_blocks_.size() * block_tokens;
  state.decided_at = position;
  state.sums.Release();
  return true;
}

// Decides for a sequence at a decision point, and returns whether blocks go: all stay but those of
// kept_blocks_ and the last ones.
bool Retainer::Decide(const RetentionPolicy& policy, Sequence& sequence) {
  HeavyState& state = sequence.retained;
  const KvSequence& kv = sequence.kv;
  const uint32_t position = kv.num_committed();
  if (state.decided_at == position || !policy.IsDecision(position)) return false;
  // They are missing only where a prompt took what it should have computed.
  KV_CHECK(state.sums.is_taken() || FaultActive(Fault::kForeignResume));
  held_blocks_.clear();
  const auto hold = [&](uint32_t block) {
    const auto i = static_cast<uint32_t>(held_blocks_.size());
    held_blocks_.push_back({block, state.sums.is_taken() ? state.sums.SumOf(i) : 0});
  };
  for (const uint32_t block : kv.kept_blocks()) hold(block);
  for (auto block = static_cast<uint32_t>(kv.table().first()); block * kHeavyBlock < position;
       ++block) {
    hold(block);
  }
  if (!policy.Decide(position, held_blocks_)) {
    state.decided_at = position;
    state.sums.Release();
    return false;
  }
  kept_blocks_.clear();
  for (const RetentionPolicy::HeldBlock& one : held_blocks_) {
    if (one.stays && one.block < policy.FirstRecentBlock(position)) {
      kept_blocks_.push_back(one.block);
    }
  }
  return true;
}

void Retainer::TakeSums(const StepBatch::Rows& rows) {
  const std::optional<RetentionPolicy>& policy = rows.request->retention;
  const KvSequence& kv = rows.sequence->kv;
  BlockSums::Slot& sums = rows.sequence->retained.sums;
  if (!policy || sums.is_taken() || !policy->IsScored(rows.position + rows.num_rows - 1)) return;
  const uint64_t last = CeilDiv(policy->NextDecision(rows.position), kHeavyBlock);
  sums = sums_.Take(static_cast<uint32_t>(kv.kept_blocks().size() + last - kv.table().first()));
}

void Retainer::Note(Request& request, const Sequence& sequence) {
  if (!request.retention) return;
  const RetentionPolicy& policy = *request.retention;
  const uint32_t tokens = std::max(sequence.num_computed, sequence.kv.num_committed());
  const uint32_t exact = std::min(tokens, request.exact_end());
  const uint32_t dropped = tokens == exact     ? 0
                           : policy.is_heavy() ? sequence.retained.dropped
                                               : tokens - policy.budget();
  if (tokens >= request.answer.most_computed) {
    request.answer.most_computed = tokens;
    request.answer.most_dropped = dropped;
    request.answer.decisions = sequence.retained.decisions;
  }
  if (tokens == exact || request.spec.only_when_idle) return;
  EngineStats& stats = figures_.stats();
  stats.retention_dropped[static_cast<size_t>(policy.policy())] += dropped;
  stats.retention_inexact += tokens - exact;
}

void Retainer::FillReceipt(Request& request) {
  if (!request.retention) return;
  const RetentionPolicy& policy = *request.retention;
  const AnswerState& answer = request.answer;
  RetentionReceipt& receipt = request.receipt.retention.emplace();
  receipt.policy = policy.policy();
  receipt.budget = policy.budget();
  receipt.sinks = policy.sinks();
  receipt.recent = policy.recent();
  receipt.kept = answer.most_computed - answer.most_dropped;
  receipt.dropped = answer.most_dropped;
  receipt.decisions = answer.decisions;
  if (answer.most_computed > policy.inexact_from()) receipt.inexact_from = policy.inexact_from();
}

}  // namespace kvasir
