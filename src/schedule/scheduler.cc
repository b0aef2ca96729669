#include "schedule/scheduler.h"

#include <algorithm>
#include <set>
#include <string>

#include "base/begins_with.h"
#include "base/check.h"
#include "base/clock.h"

namespace kvasir {
namespace {

// Returns all Identities of KV that is computed with adapters of a digest, or without (zero).
std::vector<Identity> Identities(const SchedulerOptions& options, const Digest& adapters) {
  if (adapters == Digest{} || !options.identify) {
    std::vector<Identity> identities = {options.identity};
    if (options.long_rope) identities.push_back(options.long_rope->identity);
    return identities;
  }
  std::vector<Identity> identities = {options.identify(adapters, false)};
  if (options.long_rope) identities.push_back(options.identify(adapters, true));
  return identities;
}

}  // namespace

Scheduler::Scheduler(Runner& runner, KvCache& cache, SchedulerOptions options)
    : cache_(cache),
      options_(std::move(options)),
      figures_(options_.ctx_size),
      tenants_(cache, figures_.stats().tenants, options_.num_tenants,
               options_.unknown_answer_tokens),
      chooser_(runner, options_.parallel, options_.end_tokens),
      drafts_(options_, cache, figures_, runner, chooser_, tenants_),
      retainer_(cache, figures_, options_.heavy_context, options_.parallel),
      erasures_(
          cache, options_.tier, options_.tier_answer_ns,
          [this](const Digest& adapters) { return Identities(options_, adapters); },
          options_.draft_model),
      loads_(runner, cache, options_.tier, figures_, options_.max_rows),
      looks_(options_, cache, figures_),
      matcher_(options_, cache, tenants_, figures_),
      spans_(cache, requests_, matcher_, loads_, figures_),
      ends_(options_, cache, requests_, figures_, tenants_, loads_, retainer_, spans_),
      draws_(runner, cache, options_, requests_, figures_, tenants_, chooser_, drafts_, ends_),
      batch_(runner, cache.layout(), options_.max_rows, options_.parallel),
      leaders_(requests_, options_, cache.layout().block_tokens()),
      planner_(options_, cache, requests_, tenants_, figures_, loads_, leaders_, drafts_.drafter()),
      backlog_(options_, cache.layout(), requests_, tenants_, figures_) {
  KV_CHECK(options_.max_rows >= options_.parallel);
  accounts_over_quota_.reserve(options_.parallel);
  requests_.running.reserve(options_.parallel);
}

uint64_t Scheduler::ScratchBytes(uint32_t vocab_size, uint32_t hidden_size, uint32_t logit_rows,
                                 uint32_t threads, uint32_t parallel, bool has_encoder) {
  return StepDraws::BytesFor(vocab_size, logit_rows, has_encoder) +
         TokenChooser::BytesFor(vocab_size, hidden_size, threads, parallel);
}

Scheduler::Ended Scheduler::Step() {
  requests_.CollectEnded();
  ends_.EndPastDeadline();
  ends_.CheckFiles();
  loads_.Continue(requests_);
  requests_.BeginSpare();
  drafts_.format_steps().Begin();
  PlanRows();
  DraftModel* const draft_model = drafts_.model();
  uint64_t step_ns = 0;
  if (!batch_.empty()) {
    const uint64_t start_ns = MonotonicNs();
    figures_.BeginStep();
    backlog_.Publish();
    ReadSources();
    ExtendRows();
    ComputeRows();
    ends_.CheckStepFiles();
    CommitRows();
    draws_.Run(batch_);
    if (draft_model != nullptr) draft_model->Sweep(requests_.running);
    requests_.CollectEnded();
    step_ns = MonotonicNs() - start_ns;
    CountStep(step_ns);
  }
  draws_.ContinueFormats(batch_);
  if (draft_model != nullptr) draft_model->Sweep(requests_.running);
  erasures_.Zero(step_ns);
  if (ends_.has_erased()) ZeroScratch();
  loads_.Seal(!batch_.empty());
  erasures_.FlushSealed();
  if (requests_.running.empty() && requests_.waiting.empty()) backlog_.Publish();
  PublishStats();
  Ended ended{ends_.Deliver()};
  // Last: what ended has no memory then.
  ended.num_erased = erasures_.ReportErased([this] { ZeroScratch(); });
  erasures_.ReportFlushed();
  return ended;
}

bool Scheduler::WaitsForTier() const {
  if (options_.tier == nullptr || !batch_.empty() || !requests_.ended.empty()) return false;
  const uint64_t now = MonotonicNs();
  const auto is_held = [&](const auto& request) { return TierLooks::Holds(*request, now); };
  if (requests_.running.empty() && !std::ranges::all_of(requests_.waiting, is_held)) return false;
  const auto loads = [](const auto& request) { return request->load.waits; };
  return erasures_.AreZeroed() && std::ranges::all_of(requests_.running, loads);
}

void Scheduler::PlanRows() {
  // Where nothing runs there is room for any of them.
  if (requests_.retry_admission || requests_.running.empty()) {
    for (const auto& request : requests_.waiting) request->wait.has_no_room = false;
    requests_.retry_admission = false;
  }
  RestartLong();
  planner_.Probe();
  if (options_.speculate != Speculate::kOff) {
    drafts_.Reserve(requests_.running, Headroom());
    planner_.FillDrafts();
    if (DraftModel* const model = drafts_.model()) model->Fill(requests_.running, figures_.cost());
  }
  for (;;) {
    GrowReservations();
    const StepPlan& plan = planner_.Decide(accounts_over_quota_);
    if (plan.preempt) {
      Preempt(*plan.preempt, plan.cause);
    } else if (plan.admit) {
      Admit(*plan.admit - requests_.running.size());
    } else {
      break;
    }
  }
  planner_.TakeRows(&batch_);
}

void Scheduler::CountStep(uint64_t step_ns) {
  figures_.AddStep({.work = batch_.work(),
                    .num_rows = batch_.num_computed(),
                    .decode_rows = batch_.decode_rows(),
                    .ns = step_ns,
                    .kv_read_bytes = batch_.kv_read_bytes(),
                    .weight_read_bytes = batch_.weight_read_bytes()});
  Charge();
  drafts_.CountStep(batch_, step_ns);
}

// Charges tenants for the step that ran, by their rows and weights.
void Scheduler::Charge() {
  if (batch_.work().rows() == 0) return;  // Cursors answered
  const double step_ns = figures_.cost().PredictNs(batch_.work());
  for (const StepBatch::Rows& rows : batch_.rows()) {
    if (rows.request->spec.only_when_idle) continue;
    tenants_.Charge(rows.request->tenant,
                    step_ns * (rows.num_rows + rows.source_rows) / batch_.work().rows());
  }
}

// Gives back the draft model's KV of owners of which something will be forgotten.
void Scheduler::DropDraftKv(const std::function<bool(const std::string&)>& is_owner) {
  if (DraftModel* const model = drafts_.model()) model->DropOf(requests_.running, is_owner);
}

void Scheduler::Erase(std::string_view owner, ErasureSink&& done) {
  DropDraftKv([&](const std::string& name) { return name == owner; });
  ends_.FailWalks(requests_.StopSharing(owner, {}));
  erasures_.Erase(owner, std::move(done));
  requests_.retry_admission = true;
}

void Scheduler::EraseHere(const Digest& owner, ErasureSink&& done) {
  const auto is_owner = [&](const std::string& name) { return KvCache::OwnerOf(name) == owner; };
  DropDraftKv(is_owner);
  std::set<std::string> names;
  const auto collect = [&](const auto& requests) {
    for (const auto& request : requests) {
      if (is_owner(request->cache_owner())) names.insert(request->cache_owner());
    }
  };
  collect(requests_.waiting);
  collect(requests_.spare);
  collect(requests_.running);
  for (const std::string& name : names) ends_.FailWalks(requests_.StopSharing(name, {}));
  erasures_.EraseHere(owner, std::move(done));
  requests_.retry_admission = true;
}

void Scheduler::Forget(const ForgetRequest& request, const std::shared_ptr<const KeptPrompts>& kept,
                       ErasureSink&& done) {
  DropDraftKv([&](const std::string& name) { return name == request.owner; });
  ends_.FailWalks(
      requests_.StopSharing(request.owner, std::span(request.ids).first(request.last + 1)));
  erasures_.Forget(request, kept, std::move(done));
  requests_.retry_admission = true;
}

// Zeroes what steps leave in memory that the next ones use again.
void Scheduler::ZeroScratch() {
  batch_.Zero();
  draws_.Zero();
  chooser_.Zero();
  if (DraftModel* const model = drafts_.model()) model->Zero();
  for (const auto& request : requests_.running) {
    for (const auto& sequence : request->answer.sequences) sequence->draft = {};
  }
  ends_.ClearErased();
}

void Scheduler::CheckInvariants() const {
  cache_.CheckInvariants();
  if (const DraftModel* const model = drafts_.model()) model->CheckInvariants();
  uint32_t choices = 0;
  for (const auto& request : requests_.running) {
    KV_CHECK(!request->answer.sequences.empty());
    choices += request->num_live();
    for (const auto& sequence : request->answer.sequences) {
      const std::span<const TokenId> tokens = sequence->tokens;
      KV_CHECK(sequence->kv.num_committed() <= tokens.size());
      // The request, its sequence and the sequence's KV have the same ids.
      KV_CHECK(BeginsWith(tokens, std::span<const TokenId>(request->spec.prompt)));
      KV_CHECK(BeginsWith(tokens, sequence->kv.tokens()));
      KV_CHECK(!sequence->done || sequence->kv.tables().empty());
    }
  }
  KV_CHECK(choices <= options_.parallel);
  if (requests_.running.empty()) KV_CHECK(cache_.usage().pinned_blocks == 0);
}

}  // namespace kvasir
