// DraftBook: the drafts of running requests, from the room for them to what became of them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "cache/kv_cache.h"
#include "model/runner.h"
#include "schedule/draft_model.h"
#include "schedule/drafter.h"
#include "schedule/format_steps.h"
#include "schedule/request.h"
#include "schedule/scheduler_options.h"
#include "schedule/step_batch.h"
#include "schedule/step_figures.h"
#include "schedule/tenant_book.h"
#include "schedule/token_chooser.h"

namespace kvasir {

// Owns what drafts tokens, and settles what a step has checked of them (DraftCheck). Owns the
// budget of walks through formats too, since drafts take from it first. Allocates nothing after
// construction but what its drafters do. Engine thread only.
class DraftBook {
 public:
  // Keeps references: all must outlive it. `model`: for which tokens are drafted.
  DraftBook(const SchedulerOptions& options, KvCache& cache, StepFigures& figures,
            const Runner& model, TokenChooser& chooser, TenantBook& tenants);

  const Drafter& drafter() const { return drafter_; }
  FormatSteps& format_steps() { return format_steps_; }
  // Returns the draft model; nullptr: there is none.
  DraftModel* model() { return model_ ? &*model_ : nullptr; }
  const DraftModel* model() const { return model_ ? &*model_ : nullptr; }

  // Reserves room for the longest draft of each request that decodes. So the length of a draft does
  // not depend on how far the reservation for the answer reaches, which may follow the answers of
  // all tenants. Where the cache has too little room, a draft ends with the block of the last
  // token: that depends on the answer alone. `headroom`: blocks that are left to answers.
  void Reserve(std::span<const std::unique_ptr<Request>> running, uint32_t headroom);
  // Adds the drafted tokens of these rows to their sequence. A draft stays within its room; where
  // the cache has no room all the same, there is none, and the rows get fewer.
  void Extend(StepBatch::Rows& rows);

  // Finds out whether the row after this draw is right.
  static void Note(Sequence& sequence, TokenChooser::Draw& draw);
  // Commits the rows that are right and drops the others, if the sequence checks a draft. Before
  // the end of an answer: its tail enters the cache only if nothing follows it.
  void Settle(Request& request, Sequence& sequence);
  // Measures what drafting gives, in steps that decode alone: those with prompts take longer, and
  // only count as steps that drafted nothing.
  void CountStep(StepBatch& batch, uint64_t step_ns);

 private:
  bool ReserveOne(Request& request, uint32_t tokens, uint32_t headroom);

  const SchedulerOptions& options_;
  KvCache& cache_;
  StepFigures& figures_;
  TenantBook& tenants_;
  FormatSteps format_steps_;
  Drafter drafter_;
  std::optional<DraftModel> model_;
};

}  // namespace kvasir
