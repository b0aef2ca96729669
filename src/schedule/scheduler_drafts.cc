// Drafts: the rows of drafted tokens, which of them are right, and what becomes of the others.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/result.h"
#include "schedule/scheduler.h"

namespace kvasir {

// Reserves room for the longest draft of each request that decodes. So the length of a draft does
// not depend on how far the reservation for the answer reaches, which may follow the answers of all
// tenants. Where the cache has too little room, a draft ends with the block of the last token: that
// depends on the answer alone.
void Scheduler::ReserveDrafts() {
  const uint32_t block_tokens = cache_.layout().block_tokens();
  for (const auto& request : requests_.running) {
    const uint32_t longest = drafter_.LongestDraft(request->spec);
    if (longest == 0 || !request->answer.prompt_done || request->done()) continue;
    const uint32_t known = request->prompt_tokens() + request->answer.longest;
    const uint32_t most = std::min(request->demand.tokens, known + longest);
    const uint32_t in_block = (known + block_tokens - 1) / block_tokens * block_tokens;
    request->room.draft_tokens = ReserveDraft(*request, most) ? most : std::min(most, in_block);
  }
}

// Returns whether drafts have room up to so many tokens. Takes only what is left beyond the
// headroom, which is for answers. The answer's own reservation counts where it does not follow the
// answers of other tenants.
bool Scheduler::ReserveDraft(Request& request, uint32_t tokens) {
  RoomState& room = request.room;
  const bool is_own =
      options_.admission == Admission::kFull || tenants_.lengths().knows_tenant(request.tenant);
  if (is_own && tokens <= room.reserved_tokens) return true;
  const KvLayout& layout = cache_.layout();
  const uint64_t blocks =
      uint64_t{request.num_live()} * layout.num_groups() * (kMaxDraft / layout.block_tokens() + 1);
  if (cache_.unreserved_blocks() < Headroom() + blocks) return false;
  return room.reservation.Grow(tokens, request.num_live()).has_value();
}

// A draft stays within its room. Where the cache has no room all the same, there is none.
void Scheduler::ExtendDraft(StepBatch::Rows& rows) {
  Sequence& sequence = *rows.sequence;
  const auto drafted = sequence.draft.all().first(rows.num_drafted);
  if (figures_.TimedCache([&] { return cache_.Extend(sequence.kv, drafted); })) return;
  rows.num_rows -= rows.num_drafted;
  rows.num_drafted = 0;
}

void Scheduler::AddDraftedHeads(const StepBatch::Rows& rows) {
  Sequence& sequence = *rows.sequence;
  sequence.check = {.num_drafted = rows.num_drafted,
                    .first_row = rows.first_row,
                    .position = rows.position,
                    .is_open = true};
  for (uint32_t i = 0; i < rows.num_rows; ++i) {
    heads_.Add({.request = rows.request,
                .sequence = &sequence,
                .hidden = runner_.hidden(rows.first_row + i).data(),
                .position = rows.position + i,
                .sample = true,
                .ends_prompt = false,
                .drafted = true});
  }
}

// Adds the next row of each sequence whose rows so far were right, if it is among these heads.
// Returns whether there is one.
bool Scheduler::AddNextDrafted(std::span<const Head> heads) {
  bool any = false;
  const Sequence* added = nullptr;  // the rows of a sequence stand together
  for (size_t i = 0; i < heads.size(); ++i) {
    const Head& head = heads[i];
    if (!head.drafted || head.sequence == added || head.request->done()) continue;
    Sequence& sequence = *head.sequence;
    DraftCheck& check = sequence.check;
    if (!check.is_open || head.position != check.position + check.num_right) continue;
    if (check.num_right > 0 && !runner_.finite(check.first_row + check.num_right)) {
      SettleDraft(*head.request, sequence);
      const Error error = RowNotFinite(*head.request, sequence, head.position);
      EndRequest(*head.request, FinishReason::kError, &error);
      continue;
    }
    ++check.num_right;
    added = &sequence;
    ReportLogits(head, heads_.logits(i));
    chooser_.Add(*head.request, sequence, head.hidden, heads_.logits(i));
    any = true;
  }
  return any;
}

// Draws the other rows of these heads, each after the one before it was used.
void Scheduler::DrawDrafted(std::span<const Head> heads) {
  for (;;) {
    chooser_.Clear();
    const uint64_t start_ns = MonotonicNs();
    if (!AddNextDrafted(heads)) return;
    chooser_.Run(format_steps_.of_rows());
    figures_.AddSampling(MonotonicNs() - start_ns);
    for (TokenChooser::Draw& draw : chooser_.draws()) UseDraw(draw);
  }
}

// Finds out whether the row after this draw is right.
void Scheduler::NoteDrafted(Sequence& sequence, TokenChooser::Draw& draw) {
  DraftCheck& check = sequence.check;
  check.is_open = false;
  check.format_steps += draw.steps.taken();
  if (!draw.id || draw.waits || check.num_right > check.num_drafted) return;
  const TokenId drafted = sequence.draft.tokens[check.num_right - 1];
  if (FaultActive(Fault::kAcceptedWrong)) draw.id = draw.token.id = drafted;
  check.is_open = *draw.id == drafted;
  check.num_accepted += check.is_open;
}

// Commits the rows that are right and drops the others. Before the end of an answer: its tail
// enters the cache only if nothing follows it.
void Scheduler::SettleDraft(Request& request, Sequence& sequence) {
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

void Scheduler::SettleDrafts() {
  for (const StepBatch::Rows& rows : batch_.rows()) {
    if (rows.num_drafted == 0 || rows.request->done() || rows.sequence->done) continue;
    SettleDraft(*rows.request, *rows.sequence);
  }
}

// Measures what drafting gives, in steps that decode alone: those with prompts take longer.
void Scheduler::CountDrafts(uint64_t step_ns) {
  if (draft_model_) step_ns += draft_model_->last_ns();
  if (options_.speculate != Speculate::kAuto || batch_.work().prefill_rows > 0) return;
  for (const StepBatch::Rows& rows : batch_.rows()) {
    if (!rows.decodes) continue;
    Request& request = *rows.request;
    const Draft& draft = rows.sequence->draft;
    const bool drafted = rows.num_drafted > 0;
    const bool could_draft = draft.num_tokens > 0 || draft.withheld;
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
