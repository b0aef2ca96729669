#include "schedule/draft_book.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/fault.h"

namespace kvasir {

DraftBook::DraftBook(const SchedulerOptions& options, KvCache& cache, StepFigures& figures,
                     const Runner& model, TokenChooser& chooser, TenantBook& tenants)
    : options_(options),
      cache_(cache),
      figures_(figures),
      tenants_(tenants),
      format_steps_(options.format_steps, options.parallel),
      drafter_(options, cache, chooser, tenants, format_steps_) {
  if (options.draft_model.runner == nullptr) return;
  model_.emplace(options.draft_model, options, model, drafter_, chooser, tenants, format_steps_);
}

void DraftBook::Reserve(std::span<const std::unique_ptr<Request>> running, uint32_t headroom) {
  const uint32_t block_tokens = cache_.layout().block_tokens();
  for (const auto& request : running) {
    const uint32_t longest = drafter_.LongestDraft(request->spec);
    if (longest == 0 || !request->answer.prompt_done || request->done()) continue;
    const uint32_t known = request->prompt_tokens() + request->answer.longest;
    const uint32_t most = std::min(request->room.demand.tokens, known + longest);
    const uint32_t in_block = (known + block_tokens - 1) / block_tokens * block_tokens;
    request->room.draft_tokens =
        ReserveOne(*request, most, headroom) ? most : std::min(most, in_block);
  }
}

// Returns whether drafts have room up to so many tokens. Takes only what is left beyond the
// headroom, which is for answers. The answer's own reservation counts where it does not follow the
// answers of other tenants.
bool DraftBook::ReserveOne(Request& request, uint32_t tokens, uint32_t headroom) {
  RoomState& room = request.room;
  const bool is_own =
      options_.admission == Admission::kFull || tenants_.lengths().knows_tenant(request.tenant);
  if (is_own && tokens <= room.reserved_tokens) return true;
  const KvLayout& layout = cache_.layout();
  const uint64_t blocks =
      uint64_t{request.num_live()} * layout.num_groups() * (kMaxDraft / layout.block_tokens() + 1);
  if (cache_.unreserved_blocks() < headroom + blocks) return false;
  return room.reservation.Grow(tokens, request.num_live()).has_value();
}

void DraftBook::Extend(StepBatch::Rows& rows) {
  Sequence& sequence = *rows.sequence;
  const auto drafted = sequence.draft.all().first(rows.num_drafted);
  if (figures_.TimedCache([&] { return cache_.Extend(sequence.kv, drafted); })) return;
  rows.num_rows -= rows.num_drafted;
  rows.num_drafted = 0;
}

void DraftBook::Note(Sequence& sequence, TokenChooser::Draw& draw) {
  DraftCheck& check = sequence.check;
  check.is_open = false;
  check.format_steps += draw.steps.taken();
  if (!draw.id || draw.waits || check.num_right > check.num_drafted) return;
  const TokenId drafted = sequence.draft.tokens[check.num_right - 1];
  if (FaultActive(Fault::kAcceptedWrong)) draw.id = draw.token.id = drafted;
  check.is_open = *draw.id == drafted;
  check.num_accepted += check.is_open;
}

void DraftBook::Settle(Request& request, Sequence& sequence) {
  DraftCheck& check = sequence.check;
  if (check.num_drafted == 0) return;
  KvSequence& kv = sequence.kv;
  figures_.TimedCache([&] {
    cache_.Commit(kv, check.num_right, KvCache::CommitKind::kRunning);
    KV_CHECK(cache_.Truncate(kv, kv.num_committed()));
  });
  const uint32_t num_drafted = std::exchange(check.num_drafted, 0);
  check.is_open = false;
  check.rejected = check.num_accepted < num_drafted;
  const auto source = static_cast<size_t>(sequence.draft.source);
  DraftReceipt& receipt = request.receipt.draft;
  ++receipt.steps;
  receipt.drafted[source] += num_drafted;
  receipt.accepted[source] += check.num_accepted;
  DraftStats& stats = figures_.stats().drafts;
  ++stats.drafts;
  stats.drafted += num_drafted;
  stats.accepted += check.num_accepted;
  for (uint32_t i = 0; i < check.num_accepted; ++i) ++stats.accepted_at[i];
  drafter_.Count(request, sequence.draft, num_drafted, check.num_accepted);
}

void DraftBook::CountStep(StepBatch& batch, uint64_t step_ns) {
  if (model_) step_ns += model_->last_ns();
  if (options_.speculate != Speculate::kAuto) return;
  const bool decodes_alone = batch.work().prefill_rows == 0;
  for (const StepBatch::Rows& rows : batch.rows()) {
    if (!rows.decodes) continue;
    Request& request = *rows.request;
    const Draft& draft = rows.sequence->draft;
    const bool drafted = rows.num_drafted > 0;
    const bool could_draft = draft.num_tokens > 0 || draft.withheld;
    if (!decodes_alone) {
      if (could_draft && !drafted) request.answer.pace.NotePlain();
      continue;
    }
    if (could_draft && !drafted) drafter_.CountUntried(request, draft);
    request.answer.pace.AddStep(
        {.drafted = drafted,
         .could_draft = could_draft,
         .num_tokens = drafted ? static_cast<double>(rows.sequence->check.num_right) : 1.0,
         .ns = step_ns,
         .answer_tokens = request.answer.completion_tokens});
  }
}

}  // namespace kvasir
