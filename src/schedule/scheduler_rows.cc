// The rows of a step: what the cache and the model do for them, until their KV is committed.
#include <algorithm>
#include <vector>

#include "base/fault.h"
#include "schedule/not_finite.h"
#include "schedule/request_answer.h"
#include "schedule/request_tracing.h"
#include "schedule/scheduler.h"

namespace kvasir {

// Computes the KV of the sources that this step's rows wait for.
void Scheduler::ReadSources() {
  for (const StepBatch::Rows& rows : batch_.rows()) {
    if (rows.source_rows == 0 || rows.request->done()) continue;
    KvSequence& kv = rows.sequence->kv;
    const Status status = figures_.TimedCache([&] { return cache_.ExtendSource(kv); });
    if (!status) {  // admission reserved it: a bug, which ends only that request
      ends_.Fail(*rows.request, status.error());
      continue;
    }
    batch_.AddSource(rows);
  }
  if (batch_.source_owners().empty()) return;
  const Status status = figures_.TimedModel([&] { return batch_.Encode(); });
  if (!status) {
    for (const StepBatch::Rows* rows : batch_.source_owners()) {
      if (rows->request->done()) continue;
      ends_.Fail(*rows->request, status.error());
    }
    return;
  }
  figures_.stats().encoder_passes += batch_.source_owners().size();
  ends_.CheckStepFiles();
  CommitSources();
}

void Scheduler::CommitSources() {
  for (uint32_t i = 0; i < batch_.source_owners().size(); ++i) {
    const StepBatch::Rows& rows = *batch_.source_owners()[i];
    Request& request = *rows.request;
    if (request.done()) continue;
    if (!batch_.source_finite(i)) {
      ends_.Fail(request, NotFinite(request, "the activations of the source are"));
      continue;
    }
    figures_.TimedCache([&] { cache_.CommitSource(rows.sequence->kv); });
  }
}

// Extends the sequences of all rows. Admission reserved room for every row, so a refusal here is a
// bug. It ends only that request.
void Scheduler::ExtendRows() {
  for (StepBatch::Rows& rows : batch_.rows()) {
    if (rows.num_rows == 0 || rows.request->done()) continue;
    Sequence& sequence = *rows.sequence;
    const auto tokens = std::span<const TokenId>(sequence.tokens)
                            .subspan(rows.position, rows.num_rows - rows.num_drafted);
    const AllocationWatch watch(*rows.request, cache_.counters());
    const Status status = figures_.TimedCache([&] { return cache_.Extend(sequence.kv, tokens); });
    if (!status) {
      ends_.Fail(*rows.request, status.error());
    } else if (rows.num_drafted > 0) {
      drafts_.Extend(rows);
    }
  }
}

void Scheduler::ComputeRows() {
  for (StepBatch::Rows& rows : batch_.rows()) {
    if (rows.num_rows == 0 || rows.request->done()) continue;
    const Receipt& receipt = rows.request->receipt;
    const bool shifts = ((FaultActive(Fault::kWrongPosition) && receipt.cached_tokens() > 0) ||
                         (FaultActive(Fault::kStaleResume) && receipt.preemptions > 0) ||
                         (FaultActive(Fault::kKeptDraft) && rows.sequence->check.rejected)) &&
                        rows.position + 1 + rows.num_rows <=
                            rows.sequence->kv.table().size() * cache_.layout().block_tokens();
    retainer_.TakeSums(rows);
    batch_.AddRows(rows, shifts ? 1 : 0);
  }
  if (!batch_.has_rows()) return;
  const Status status = figures_.TimedModel([&] { return batch_.Compute(); });
  if (status) return;
  for (const StepBatch::Rows& rows : batch_.rows()) {
    if (!rows.request->done()) {
      ends_.Fail(*rows.request, status.error());
    }
  }
}

void Scheduler::CommitRows() {
  draws_.Clear();
  for (const StepBatch::Rows& rows : batch_.rows()) {
    Request& request = *rows.request;
    Sequence& sequence = *rows.sequence;
    if (request.done()) continue;
    if (rows.num_rows == 0 && sequence.num_pending() > 0) continue;  // only its source was read
    // A drafted row counts once its token was drawn.
    for (uint32_t i = 0; i < rows.num_rows - rows.num_drafted && !request.done(); ++i) {
      if (batch_.finite(rows.first_row + i)) continue;
      ends_.Fail(request, RowNotFinite(request, sequence, rows.position + i));
    }
    if (request.done()) continue;
    if (rows.is_span) {
      spans_.CommitRows(rows);
      continue;
    }
    if (rows.num_drafted > 0) {
      draws_.Add(rows, /*ends_prompt=*/false);
      continue;
    }
    const uint32_t committed = rows.position + rows.num_rows;
    const bool prompt_ends = !request.answer.prompt_done && committed == request.prompt_tokens();
    if (rows.num_rows > 0) {
      const auto kind = prompt_ends ? KvCache::CommitKind::kEnd : KvCache::CommitKind::kRunning;
      figures_.TimedCache([&] { cache_.Commit(sequence.kv, rows.num_rows, kind); });
      const uint32_t left =
          request.prompt_tokens() - std::min(request.prompt_tokens(), rows.position);
      request.answer.prefilled_tokens += std::min(rows.num_rows, left);
      if (request.spec.embeds == Pooling::kMean) AddMeanRows(rows);
      if (request.spec.only_when_idle) figures_.stats().prepared_tokens += rows.num_rows;
    }
    if (!request.answer.prompt_done) NoteProgress(request, committed);
    if (prompt_ends) {
      loads_.End(request);
      const uint32_t last_row = rows.first_row + rows.num_rows - 1;
      StartChoices(request, sequence,
                   rows.num_rows > 0 ? batch_.hidden(last_row) : std::span<const float>());
    }
    draws_.Add(rows, prompt_ends);
  }
}

// Adds rows of a prompt whose mean is wanted.
void Scheduler::AddMeanRows(const StepBatch::Rows& rows) {
  for (uint32_t i = 0; i < rows.num_rows; ++i) {
    rows.request->answer.mean_rows.Add(rows.position + i, batch_.hidden(rows.first_row + i));
  }
}

// Puts the embedding of a prompt into its event. `hidden`: as for StartChoices.
void Scheduler::Embed(Request& request, std::span<const float> hidden) {
  std::vector<float>& embedding = request.events.Of(0).embedding;
  if (request.spec.embeds == Pooling::kMean) {
    embedding = request.answer.mean_rows.Mean();
  } else if (!hidden.empty()) {
    embedding.assign(hidden.begin(), hidden.end());
  } else {
    embedding = request.answer.cursor_hidden;
  }
}

// Forks the prompt's KV, which `first` has, for the other choices. `hidden`: of the prompt's last
// token; empty when a Cursor already has it.
void Scheduler::StartChoices(Request& request, Sequence& first, std::span<const float> hidden) {
  if (!hidden.empty()) cache_.KeepCursor(first.kv, hidden);
  request.answer.prompt_done = true;
  if (request.spec.embeds) Embed(request, hidden);
  for (const GenerateRequest::Keep& keep : request.spec.keeps) {
    const uint32_t kept = cache_.Keep(first.kv, keep.tokens, keep.ttl_s);
    request.receipt.kept = std::max(request.receipt.kept.value_or(0), kept);
  }
  // The choices share the copies then. Without room for these, each makes its own.
  if (request.spec.n > 1) retainer_.DropTokens(request, first, request.num_live());
  const uint32_t most = request.prompt_tokens() + request.max_tokens;
  for (const auto& sequence : request.answer.sequences) {  // of a request that goes on
    if (sequence->done || sequence.get() == &first) continue;
    sequence->kv = cache_.Fork(first.kv, most);
    sequence->retained = first.retained.Copy();
  }
  if (request.answer.search) {
    for (const auto& sequence : request.answer.sequences) sequence->kv.StopPublishing();
    return;
  }
  while (request.answer.sequences.size() < request.spec.n) {
    Sequence& added = AddSequence(request, cache_.Fork(first.kv, most), options_.tokenizer);
    added.long_rope = first.long_rope;
    added.retained = first.retained.Copy();
  }
}

}  // namespace kvasir
