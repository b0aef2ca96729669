// StepDraws: from the rows that a step has computed to the next tokens of answers.
#pragma once

#include <cstdint>
#include <span>

#include "cache/kv_cache.h"
#include "model/runner.h"
#include "schedule/beam_batch.h"
#include "schedule/draft_book.h"
#include "schedule/format_steps.h"
#include "schedule/head_batch.h"
#include "schedule/request.h"
#include "schedule/request_ends.h"
#include "schedule/request_queues.h"
#include "schedule/scheduler_options.h"
#include "schedule/step_batch.h"
#include "schedule/step_figures.h"
#include "schedule/tenant_book.h"
#include "schedule/token_chooser.h"

namespace kvasir {

// Computes the logits that are wanted, passes them on, draws tokens from them and puts these into
// their answers, which may end with them. The rows of a draft are drawn one after the other, for as
// long as they are right. Owns the logits. Engine thread only.
class StepDraws {
 public:
  // Keeps references: all must outlive it.
  StepDraws(Runner& runner, KvCache& cache, const SchedulerOptions& options,
            RequestQueues& requests, StepFigures& figures, TenantBook& tenants,
            TokenChooser& chooser, DraftBook& drafts, RequestEnds& ends);
  // Return the exact bytes of logits that the constructor will allocate, and did allocate.
  static uint64_t BytesFor(uint32_t vocab_size, uint32_t logit_rows, bool has_encoder) {
    return BeamBatch::BytesFor(vocab_size, logit_rows, has_encoder) +
           HeadBatch::BytesFor(vocab_size, logit_rows);
  }
  uint64_t bytes() const { return beams_.bytes() + heads_.bytes(); }

  void Clear() { heads_.Clear(); }  // begins a step
  // Adds those of these rows whose logits are wanted. Rows without a draft are committed.
  // `ends_prompt`: the last one is the first that all choices of the request are drawn from.
  void Add(const StepBatch::Rows& rows, bool ends_prompt);
  // Draws the next tokens from the rows that were added to this step, and ends what has its last.
  void Run(StepBatch& batch);
  // Goes on to find out which tokens formats allow next, for rows that wait for that.
  void ContinueFormats(const StepBatch& batch);
  // Zeroes what earlier steps left in memory.
  void Zero();

 private:
  void AddDrafted(const StepBatch::Rows& rows);
  void ReportLogits(const Head& head, std::span<const float> logits);
  void AddDraws(const Head& head, std::span<const float> logits);
  bool AddNextDrafted(std::span<const Head> heads);
  void DrawDrafted(std::span<const Head> heads);
  void UseDraw(TokenChooser::Draw& draw);
  void UseBeams(const BeamBatch::Step& step);
  void NoteToken(Request& request, uint64_t previous_ns);

  Runner& runner_;
  KvCache& cache_;
  const SchedulerOptions& options_;
  RequestQueues& requests_;
  StepFigures& figures_;
  TenantBook& tenants_;
  TokenChooser& chooser_;
  DraftBook& drafts_;
  FormatSteps& format_steps_;  // what drafts leave of them
  RequestEnds& ends_;
  BeamBatch beams_;
  HeadBatch heads_;
};

}  // namespace kvasir
