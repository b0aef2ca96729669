#include "schedule/step_batch.h"

#include <algorithm>

#include "base/fault.h"
#include "base/wipe.h"

namespace kvasir {
namespace {

std::span<const AppliedAdapter> AppliedTo(const Request& request) {
  if (request.adapters.get() == nullptr) return {};
  return request.adapters.get()->applied;
}

}  // namespace

StepBatch::StepBatch(Runner& runner, const KvLayout& layout, uint32_t max_rows, uint32_t parallel)
    : runner_(runner) {
  static_assert(SchedulingPolicy::kMaxSources <= Runner::kMaxSources);
  rows_.reserve(parallel);
  sequences_.reserve(parallel);
  runs_.reserve(2 * size_t{parallel});
  tokens_.reserve(max_rows);
  if (layout.num_cross_groups() == 0) return;
  source_tokens_.reserve(max_rows);
  sources_.reserve(SchedulingPolicy::kMaxSources);
  source_owners_.reserve(SchedulingPolicy::kMaxSources);
}

void StepBatch::Clear() {
  rows_.clear();
  sequences_.clear();
  runs_.clear();
  tokens_.clear();
  sources_.clear();
  source_tokens_.clear();
  source_owners_.clear();
  work_ = {};
}

void StepBatch::Add(const Rows& rows, double kv_bytes) {
  rows_.push_back(rows);
  work_.prefill_rows += rows.source_rows;
  if (rows.decodes) {
    ++work_.decode_rows;
    work_.draft_rows += rows.num_drafted;
    work_.decode_kv_bytes += kv_bytes;
  } else {
    work_.prefill_rows += rows.num_rows;
    work_.prefill_kv_bytes += rows.num_rows * kv_bytes;
  }
}

void StepBatch::AddSource(const Rows& rows) {
  const std::vector<TokenId>& source = rows.request->spec.source;
  sources_.push_back(
      {rows.sequence->kv.tables(), static_cast<uint32_t>(source_tokens_.size()), rows.source_rows});
  source_tokens_.insert(source_tokens_.end(), source.begin(), source.end());
  source_owners_.push_back(&rows);
}

void StepBatch::AddRows(Rows& rows, uint32_t shift) {
  const KvSequence& kv = rows.sequence->kv;
  rows.first_row = static_cast<uint32_t>(tokens_.size());
  sequences_.push_back({.tables = kv.tables(),
                        .position = rows.position + shift,
                        .first_row = rows.first_row,
                        .num_rows = rows.num_rows,
                        .long_rope = rows.sequence->long_rope,
                        .source_tokens = kv.source_tokens(),
                        .adapters = AppliedTo(*rows.request)});
  const std::optional<RetentionPolicy>& retention = rows.request->retention;
  if (retention && retention->is_heavy()) {
    BoundHeavy(rows, *retention, &sequences_.back());
  } else if (retention && retention->IsInexact(rows.position)) {
    Bound(rows, *retention, &sequences_.back());
  }
  const SpanState& spans = rows.request->spans;
  if (spans.plan && !rows.is_span && spans.plan->IsInexact(rows.position)) {
    sequences_.back().runs = spans.RunsAt(rows.position);
    sequences_.back().begin = spans.BeginAt(rows.position);
  }
  if (FaultActive(Fault::kMatesAdapter)) sequences_.back().adapters = sequences_[0].adapters;
  const auto begin = rows.sequence->tokens.begin() + rows.position;
  tokens_.insert(tokens_.end(), begin, begin + (rows.num_rows - rows.num_drafted));
  const auto drafted = rows.sequence->draft.all().first(rows.num_drafted);
  tokens_.insert(tokens_.end(), drafted.begin(), drafted.end());
}

// Says what rows see that do not see all before them. Their sequence has dropped the rest.
void StepBatch::Bound(const Rows& rows, const RetentionPolicy& policy, StepSequence* step) {
  step->window = policy.window();
  if (FaultActive(Fault::kLateDrop)) {
    step->window = 0;
    step->begin = policy.FirstSeen(rows.position);
  }
  if (policy.sinks() == 0) return;
  StepRun run{rows.sequence->kv.kept(), 0, policy.sinks(), policy.sink_query_position()};
  if (FaultActive(Fault::kUnshiftedSinks) && rows.request->receipt.cached_tokens() > 0) {
    run.query_position.reset();
  }
  runs_.push_back(run);
  step->runs = std::span(&runs_.back(), 1);
}

// Does the same for blocks that were chosen, and says where the weights of rows are summed.
void StepBatch::BoundHeavy(const Rows& rows, const RetentionPolicy& policy, StepSequence* step) {
  const KvSequence& kv = rows.sequence->kv;
  const BlockSums::Slot& sums = rows.sequence->retained.sums;
  if (sums.is_taken()) {
    step->block_sums = sums.data();
    step->block_sums_stride = sums.stride();
    const uint32_t from = policy.NextDecision(rows.position) - RetentionPolicy::kScoredTokens;
    step->scored_from = from - std::min(from, rows.position);
  }
  // Beyond the budget, what it sees is bounded by the next decision.
  if (rows.position + rows.num_rows > policy.budget()) step->window = kMaxRetainedTokens;
  if (!kv.retains()) return;
  step->begin = static_cast<uint32_t>(kv.table().first()) * kHeavyBlock;
  const auto kept = static_cast<uint32_t>(kv.kept_blocks().size()) * kHeavyBlock;
  const std::optional<uint32_t> sink_position = policy.SinkPosition(rows.position);
  const uint32_t sinks = sink_position ? policy.sink_blocks() * kHeavyBlock : 0;
  const size_t first = runs_.size();
  if (sinks > 0) runs_.push_back({kv.kept(), 0, sinks, sink_position});
  if (kept > sinks) runs_.push_back({kv.kept(), sinks, kept, {}});
  step->runs = std::span(runs_).subspan(first);
}

void StepBatch::Zero() {
  for (std::vector<TokenId>* ids : {&tokens_, &source_tokens_}) {
    ids->resize(ids->capacity());  // a large step's, of which small steps after it leave the end
    Wipe(ids);
  }
  runner_.ZeroScratch();
}

}  // namespace kvasir
