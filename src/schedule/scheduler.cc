#include "schedule/scheduler.h"

#include <algorithm>

#include "base/check.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/result.h"
#include "grammar/grammar_source.h"
#include "schedule/request_answer.h"
#include "schedule/request_tracing.h"

namespace kvasir {
namespace {

constexpr double kProgressMs = 1e-6;  // of a nanosecond

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
    : runner_(runner),
      cache_(cache),
      options_(std::move(options)),
      figures_(options_.ctx_size),
      tenants_(cache, figures_.stats().tenants, options_.num_tenants,
               options_.unknown_answer_tokens),
      chooser_(runner, options_.parallel, options_.end_tokens),
      drafter_(options_, cache, chooser_, tenants_),
      block_sums_(BlockSums::ShapeFor(cache.layout(), options_.heavy_context), options_.parallel),
      erasures_(
          cache, options_.tier, options_.tier_answer_ns,
          [this](const Digest& adapters) { return Identities(options_, adapters); },
          options_.draft_model),
      format_steps_(options_.format_steps),
      loads_(runner, cache, options_.tier, figures_, options_.max_rows),
      looks_(options_, cache, figures_),
      beams_(runner, cache, options_.target, options_.logit_rows),
      batch_(runner, cache.layout(), options_.max_rows, options_.parallel),
      heads_(runner, options_.max_rows + options_.parallel, options_.logit_rows),
      leaders_(requests_, options_, cache.layout().block_tokens()),
      planner_(options_, cache, requests_, tenants_, figures_, loads_, leaders_, drafter_),
      workload_(options_, cache.layout(), requests_, tenants_, figures_) {
  KV_CHECK(options_.max_rows >= options_.parallel);
  accounts_over_quota_.reserve(options_.parallel);
  kept_blocks_.reserve(block_sums_.shape().blocks);
  held_blocks_.reserve(block_sums_.shape().blocks);
  if (options_.draft_model.runner != nullptr) {
    draft_model_.emplace(options_.draft_model, options_, runner, drafter_, chooser_, tenants_);
  }
  requests_.running.reserve(options_.parallel);
}

uint64_t Scheduler::ScratchBytes(uint32_t vocab_size, uint32_t hidden_size, uint32_t logit_rows,
                                 uint32_t threads, uint32_t parallel, bool has_encoder) {
  return BeamBatch::BytesFor(vocab_size, logit_rows, has_encoder) +
         TokenChooser::BytesFor(vocab_size, hidden_size, threads, parallel) +
         HeadBatch::BytesFor(vocab_size, logit_rows);
}

uint64_t Scheduler::scratch_bytes() const {
  return beams_.bytes() + chooser_.bytes() + heads_.bytes();
}

Scheduler::Ended Scheduler::Step() {
  requests_.CollectEnded();
  EndPastDeadline();
  CheckFiles();
  loads_.Continue(requests_);
  requests_.BeginSpare();
  PlanRows();
  uint64_t step_ns = 0;
  if (!batch_.empty()) {
    const uint64_t start_ns = MonotonicNs();
    figures_.BeginStep();
    workload_.Publish();
    ReadSources();
    ExtendRows();
    ComputeRows();
    CheckStepFiles();
    CommitRows();
    format_steps_.Share(requests_, tenants_);
    ComputeHeads();
    if (draft_model_) draft_model_->Sweep(requests_.running);
    requests_.CollectEnded();
    step_ns = MonotonicNs() - start_ns;
    CountStep(step_ns);
  }
  ContinueFormats();
  if (draft_model_) draft_model_->Sweep(requests_.running);
  erasures_.Zero(step_ns);
  if (zeroes_scratch_) ZeroScratch();
  loads_.Seal(!batch_.empty());
  erasures_.FlushSealed();
  if (requests_.running.empty() && requests_.waiting.empty()) workload_.Publish();
  PublishStats();
  return Deliver();
}

bool Scheduler::WaitsForTier() const {
  if (options_.tier == nullptr || !batch_.empty() || !requests_.ended.empty()) return false;
  const uint64_t now = MonotonicNs();
  const auto is_held = [&](const auto& request) { return TierLooks::Holds(*request, now); };
  if (requests_.running.empty() && !std::ranges::all_of(requests_.waiting, is_held)) return false;
  const auto loads = [](const auto& request) { return request->load.waits; };
  return erasures_.AreZeroed() && std::ranges::all_of(requests_.running, loads);
}

void Scheduler::ContinueFormats() {
  if (!format_steps_.Continue(requests_, tenants_, !batch_.empty())) return;
  for (const auto& request : requests_.running) {
    if (request->done()) continue;
    const std::optional<Error> error = FormatSteps::ErrorOf(*request);
    if (error) EndRequest(*request, FinishReason::kError, &*error);
  }
  requests_.CollectEnded();
}

// Checks all files: whenever a request waits for admission, else every 100 ms. That is enough,
// because each step checks the files that it reads.
void Scheduler::CheckFiles() {
  constexpr uint64_t kPeriodNs = 100'000'000;
  if (options_.files == nullptr || (requests_.waiting.empty() && requests_.running.empty())) return;
  const uint64_t now = MonotonicNs();
  if (requests_.waiting.empty() && now - files_checked_ns_ < kPeriodNs) return;
  files_checked_ns_ = now;
  if (const Status files = options_.files->CheckAll(); !files) FailAll(files.error());
  requests_.CollectEnded();
}

void Scheduler::CheckStepFiles() {
  if (options_.files == nullptr) return;
  if (const Status files = options_.files->CheckStep(); !files) FailAll(files.error());
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
    ReserveDrafts();
    planner_.FillDrafts();
    if (draft_model_) draft_model_->Fill(requests_.running, figures_.cost());
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

// Computes the KV of the sources that this step's rows wait for.
void Scheduler::ReadSources() {
  for (const StepBatch::Rows& rows : batch_.rows()) {
    if (rows.source_rows == 0 || rows.request->done()) continue;
    KvSequence& kv = rows.sequence->kv;
    const Status status = figures_.TimedCache([&] { return cache_.ExtendSource(kv); });
    if (!status) {  // admission reserved it: a bug, which ends only that request
      EndRequest(*rows.request, FinishReason::kError, &status.error());
      continue;
    }
    batch_.AddSource(rows);
  }
  if (batch_.source_owners().empty()) return;
  const Status status = figures_.TimedModel([&] { return batch_.Encode(); });
  if (!status) {
    for (const StepBatch::Rows* rows : batch_.source_owners()) {
      if (rows->request->done()) continue;
      EndRequest(*rows->request, FinishReason::kError, &status.error());
    }
    return;
  }
  figures_.stats().encoder_passes += batch_.source_owners().size();
  CheckStepFiles();
  CommitSources();
}

void Scheduler::CommitSources() {
  for (uint32_t i = 0; i < batch_.source_owners().size(); ++i) {
    const StepBatch::Rows& rows = *batch_.source_owners()[i];
    Request& request = *rows.request;
    if (request.done()) continue;
    if (!runner_.source_finite(i)) {
      const Error error = NotFinite(request, "the activations of the source are");
      EndRequest(request, FinishReason::kError, &error);
      continue;
    }
    figures_.TimedCache([&] { cache_.CommitSource(rows.sequence->kv); });
  }
}

// Admission reserved room for every row, so a refusal here is a bug. It ends only that request.
void Scheduler::ExtendRows() {
  for (StepBatch::Rows& rows : batch_.rows()) {
    if (rows.num_rows == 0 || rows.request->done()) continue;
    Sequence& sequence = *rows.sequence;
    const auto tokens = std::span<const TokenId>(sequence.tokens)
                            .subspan(rows.position, rows.num_rows - rows.num_drafted);
    const AllocationWatch watch(*rows.request, cache_.counters());
    const Status status = figures_.TimedCache([&] { return cache_.Extend(sequence.kv, tokens); });
    if (!status) {
      EndRequest(*rows.request, FinishReason::kError, &status.error());
    } else if (rows.num_drafted > 0) {
      ExtendDraft(rows);
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
    TakeSums(rows);
    batch_.AddRows(rows, shifts ? 1 : 0);
  }
  if (!batch_.has_rows()) return;
  const Status status = figures_.TimedModel([&] { return batch_.Compute(); });
  if (status) return;
  for (const StepBatch::Rows& rows : batch_.rows()) {
    if (!rows.request->done()) {
      EndRequest(*rows.request, FinishReason::kError, &status.error());
    }
  }
}

Error Scheduler::NotFinite(const Request& request, std::string_view what) {
  if (!request.adapters.get()) {
    return {Code::kCorruption, fmt::format("model: {} not finite", what)};
  }
  return {Code::kInvalidArgument,
          fmt::format("with these adapters and scales {} not finite; lower the scales", what),
          "lora"};
}

Error Scheduler::RowNotFinite(const Request& request, const Sequence& sequence, uint32_t position) {
  return NotFinite(request, fmt::format("the activations of token {} (id {}) are", position,
                                        sequence.tokens[position]));
}

void Scheduler::CommitRows() {
  heads_.Clear();
  for (const StepBatch::Rows& rows : batch_.rows()) {
    Request& request = *rows.request;
    Sequence& sequence = *rows.sequence;
    if (request.done()) continue;
    if (rows.num_rows == 0 && sequence.num_pending() > 0) continue;  // only its source was read
    // A drafted row counts once its token was drawn.
    for (uint32_t i = 0; i < rows.num_rows - rows.num_drafted && !request.done(); ++i) {
      if (runner_.finite(rows.first_row + i)) continue;
      const Error error = RowNotFinite(request, sequence, rows.position + i);
      EndRequest(request, FinishReason::kError, &error);
    }
    if (request.done()) continue;
    if (rows.is_span) {
      CommitSpanRows(rows);
      continue;
    }
    if (rows.num_drafted > 0) {
      AddDraftedHeads(rows);
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
      AddMeanRows(rows);
      if (request.spec.only_when_idle) figures_.stats().prepared_tokens += rows.num_rows;
    }
    if (!request.answer.prompt_done) ReportProgress(request, committed);
    if (prompt_ends) {
      loads_.End(request);
      const uint32_t last_row = rows.first_row + rows.num_rows - 1;
      StartChoices(request, sequence,
                   rows.num_rows > 0 ? runner_.hidden(last_row).data() : nullptr);
    }
    AddHeads(rows, prompt_ends);
  }
}

// `first` has the prompt's KV. `hidden`: of the prompt's last token; nullptr when a Cursor already
// has it.
void Scheduler::StartChoices(Request& request, Sequence& first, const float* hidden) {
  if (hidden != nullptr) cache_.KeepCursor(first.kv, {hidden, runner_.config().hidden_size});
  request.answer.prompt_done = true;
  if (request.spec.embeds) Embed(request, hidden);
  for (const GenerateRequest::Keep& keep : request.spec.keeps) {
    const uint32_t kept = cache_.Keep(first.kv, keep.tokens, keep.ttl_s);
    request.receipt.kept = std::max(request.receipt.kept.value_or(0), kept);
  }
  // The choices share the copies then. Without room for these, each makes its own.
  if (request.spec.n > 1) DropTokens(request, first, request.num_live());
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

void Scheduler::AddHeads(const StepBatch::Rows& rows, bool ends_prompt) {
  Request& request = *rows.request;
  Sequence& sequence = *rows.sequence;
  const auto may_draw = [](const auto& of) { return !of->done && of->num_pending() == 0; };
  const bool samples =
      request.max_tokens > 0 &&
      (ends_prompt ? std::ranges::any_of(request.answer.sequences, may_draw) : may_draw(&sequence));
  const auto wanted = [&](uint32_t position) {
    if (position < sequence.next_logits) return false;
    if (request.spec.scores_prompt && position + 1 < request.prompt_tokens()) return true;
    return request.spec.on_logits != nullptr && position >= request.spec.logits_from;
  };
  if (sequence.format_choice) {  // what it waited for is known
    heads_.Add({&request, &sequence, sequence.format_choice->row().hidden.data(), rows.position - 1,
                samples, ends_prompt});
    return;
  }
  if (rows.num_rows == 0) {
    const uint32_t last = request.prompt_tokens() - 1;
    if (samples || wanted(last)) {
      heads_.Add(
          {&request, &sequence, request.answer.cursor_hidden.data(), last, samples, ends_prompt});
    }
    return;
  }
  for (uint32_t i = 0; i < rows.num_rows; ++i) {
    const uint32_t position = rows.position + i;
    const bool sample = samples && i + 1 == rows.num_rows;
    if (!sample && !wanted(position)) continue;
    heads_.Add({&request, &sequence, runner_.hidden(rows.first_row + i).data(), position, sample,
                ends_prompt});
  }
}

void Scheduler::ComputeHeads() {
  for (;;) {
    const std::span<const Head> heads = figures_.TimedModel([&] { return heads_.ComputeNext(); });
    if (heads.empty()) break;
    const uint64_t logits_ns = MonotonicNs();
    CheckStepFiles();
    chooser_.Clear();
    beams_.Clear();
    for (uint32_t i = 0; i < heads.size(); ++i) {
      if (heads[i].drafted) continue;
      ReportLogits(heads[i], heads_.logits(i));
      if (!heads[i].request->answer.search) {
        AddDraws(heads[i], heads_.logits(i));
      } else if (!heads[i].request->done() && heads[i].sample) {
        beams_.Add(*heads[i].request, i);
      }
    }
    AddNextDrafted(heads);
    chooser_.Run(format_steps_.of_rows());
    beams_.Run(heads_.logits());
    figures_.AddSampling(MonotonicNs() - logits_ns);
    for (TokenChooser::Draw& draw : chooser_.draws()) UseDraw(draw);
    for (const BeamBatch::Step& step : beams_.steps()) UseBeams(step);
    DrawDrafted(heads);
  }
  SettleDrafts();
  for (const StepBatch::Rows& rows : batch_.rows()) {
    if (!rows.request->answer.prompt_done || rows.request->max_tokens > 0) continue;
    for (const auto& sequence : rows.request->answer.sequences) {
      if (!sequence->done) EndSequence(*rows.request, *sequence, nullptr, FinishReason::kLength);
    }
  }
}

void Scheduler::ReportLogits(const Head& head, std::span<const float> logits) {
  Request& request = *head.request;
  Sequence& sequence = *head.sequence;
  const GenerateRequest& spec = request.spec;
  if (request.done() || head.position < sequence.next_logits) return;
  const bool scores = spec.scores_prompt && head.position + 1 < request.prompt_tokens();
  const bool reports = spec.on_logits && head.position >= spec.logits_from;
  if (!scores && !reports) return;
  if (scores) {
    GeneratedToken token{.id = spec.prompt[head.position + 1]};
    chooser_.Logprobs(logits, *spec.logprobs, &token);
    request.events.Of(0).scored.push_back(std::move(token));
  }
  if (reports) spec.on_logits(sequence.choice, head.position, logits);
  sequence.next_logits = head.position + 1;
}

void Scheduler::ReportProgress(Request& request, uint32_t processed) {
  if (!request.spec.reports_progress) return;
  const uint64_t now = MonotonicNs();
  const uint64_t first = request.times.first_token_ns == 0 ? now : request.times.first_token_ns;
  processed = std::min(processed, request.prompt_tokens());
  request.events.Of(0).progress = {
      .total = request.prompt_tokens(),
      .processed = processed,
      .cached = processed - std::min(processed, request.answer.prefilled_tokens),
      .prompt_ms = static_cast<double>(first - request.times.admitted_ns) * kProgressMs,
      .answer_ms = static_cast<double>(now - first) * kProgressMs};
}

void Scheduler::AddDraws(const Head& head, std::span<const float> logits) {
  Request& request = *head.request;
  if (request.done() || !head.sample) return;
  const auto add = [&](Sequence& sequence) {
    if (sequence.done || sequence.num_pending() > 0) return;
    chooser_.Add(request, sequence, head.hidden, logits);
  };
  if (!head.ends_prompt) return add(*head.sequence);
  for (const auto& choice : request.answer.sequences) add(*choice);
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

}  // namespace kvasir
