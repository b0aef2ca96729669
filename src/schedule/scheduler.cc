#include "schedule/scheduler.h"

#include <algorithm>

#include "base/check.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/result.h"
#include "grammar/grammar_source.h"
#include "schedule/request_tracing.h"

namespace kvasir {
namespace {

constexpr double kProgressMs = 1e-6;  // of a nanosecond

std::vector<Identity> Identities(const SchedulerOptions& options) {
  std::vector<Identity> identities = {options.identity};
  if (options.long_rope) identities.push_back(options.long_rope->identity);
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
      erasures_(cache, options_.tier, options_.tier_answer_ns, Identities(options_)),
      format_steps_(options_.format_steps),
      loads_(runner, cache, options_.tier, figures_, options_.max_rows),
      logits_(size_t{options_.logit_rows} * runner.config().vocab_size),
      headroom_blocks_(options_.admission == Admission::kExpected
                           ? HeadroomBlocks(options_.kv_headroom, cache.plan().num_blocks)
                           : 0),
      policy_(MakeSchedulingPolicy(options_.schedule)) {
  KV_CHECK(options_.max_rows >= options_.parallel);
  rows_.reserve(options_.parallel);
  step_.reserve(options_.parallel);
  view_sequences_.reserve(options_.parallel);
  seen_.reserve(options_.parallel);
  plan_.rows.reserve(options_.parallel);
  plan_.source_rows.reserve(options_.parallel);
  accounts_over_quota_.reserve(options_.parallel);
  workload_.parallel = options_.parallel;
  workload_.max_rows = options_.max_rows;
  workload_.target_step_ns = static_cast<double>(options_.target_step_ns);
  workload_.running.reserve(options_.parallel);
  requests_.running.reserve(options_.parallel);
  heads_.reserve(options_.max_rows + options_.parallel);
  step_tokens_.reserve(options_.max_rows);
  static_assert(SchedulingPolicy::kMaxSources <= Runner::kMaxSources);
  if (cache_.layout().num_cross_groups() > 0) {
    source_tokens_.reserve(options_.max_rows);
    sources_.reserve(SchedulingPolicy::kMaxSources);
    source_owners_.reserve(SchedulingPolicy::kMaxSources);
  }
  head_hidden_.reserve(options_.logit_rows);
  beam_steps_.reserve(options_.logit_rows);
  if (cache_.layout().num_cross_groups() > 0) {
    beam_rows_.resize(options_.logit_rows);
    for (LogitRow& row : beam_rows_) row.Reserve(runner.config().vocab_size);
    next_beams_.reserve(kMaxBeams);
  }
}

uint64_t Scheduler::ScratchBytes(uint32_t vocab_size, uint32_t hidden_size, uint32_t logit_rows,
                                 uint32_t threads, uint32_t parallel, bool has_encoder) {
  const uint64_t beams = has_encoder ? logit_rows * LogitRow::BytesFor(vocab_size) : 0;
  return beams + TokenChooser::BytesFor(vocab_size, hidden_size, threads, parallel) +
         uint64_t{logit_rows} * vocab_size * sizeof(float);
}

uint64_t Scheduler::scratch_bytes() const {
  uint64_t bytes = logits_.capacity() * sizeof(float) + chooser_.bytes();
  for (const LogitRow& row : beam_rows_) bytes += row.bytes();
  return bytes;
}

Scheduler::Ended Scheduler::Step() {
  requests_.CollectEnded();
  EndPastDeadline();
  CheckFiles();
  loads_.Continue(requests_);
  requests_.BeginSpare();
  PlanRows();
  uint64_t step_ns = 0;
  if (!rows_.empty()) {
    const uint64_t start_ns = MonotonicNs();
    figures_.BeginStep();
    PublishWorkload();
    ReadSources();
    ExtendRows();
    ComputeRows();
    CheckStepFiles();
    CommitRows();
    format_steps_.Share(requests_, tenants_);
    ComputeHeads();
    requests_.CollectEnded();
    step_ns = MonotonicNs() - start_ns;
    CountStep(step_ns);
  }
  ContinueFormats();
  erasures_.Zero(step_ns);
  if (zeroes_scratch_) ZeroScratch();
  loads_.Seal(!rows_.empty());
  erasures_.FlushSealed();
  if (requests_.running.empty() && requests_.waiting.empty()) PublishWorkload();
  PublishStats();
  return Deliver();
}

bool Scheduler::WaitsForTier() const {
  if (options_.tier == nullptr || !rows_.empty() || !requests_.ended.empty()) return false;
  if (requests_.running.empty() && !requests_.waiting.empty()) return false;
  const auto loads = [](const auto& request) { return request->load.waits; };
  return erasures_.AreZeroed() && std::ranges::all_of(requests_.running, loads);
}

void Scheduler::ContinueFormats() {
  if (!format_steps_.Continue(requests_, tenants_, !rows_.empty())) return;
  for (const auto& request : requests_.running) {
    if (request->done()) continue;
    const std::optional<Error> error = FormatSteps::ErrorOf(*request);
    if (error) EndRequest(*request, FinishReason::kError, &*error);
  }
  requests_.CollectEnded();
}

// Computes the KV of the sources that this step's rows wait for.
void Scheduler::ReadSources() {
  sources_.clear();
  source_tokens_.clear();
  source_owners_.clear();
  for (const Rows& rows : rows_) {
    if (rows.source_rows == 0 || rows.request->done()) continue;
    KvSequence& kv = rows.sequence->kv;
    const Status status = figures_.TimedCache([&] { return cache_.ExtendSource(kv); });
    if (!status) {  // admission reserved it: a bug, which ends only that request
      EndRequest(*rows.request, FinishReason::kError, &status.error());
      continue;
    }
    const std::vector<TokenId>& source = rows.request->spec.source;
    sources_.push_back(
        {kv.tables(), static_cast<uint32_t>(source_tokens_.size()), rows.source_rows});
    source_tokens_.insert(source_tokens_.end(), source.begin(), source.end());
    source_owners_.push_back(&rows);
  }
  if (sources_.empty()) return;
  const Status status =
      figures_.TimedModel([&] { return runner_.Encode(sources_, source_tokens_); });
  if (!status) {
    for (const Rows* rows : source_owners_) {
      if (rows->request->done()) continue;
      EndRequest(*rows->request, FinishReason::kError, &status.error());
    }
    return;
  }
  figures_.stats().encoder_passes += sources_.size();
  CheckStepFiles();
  CommitSources();
}

void Scheduler::CommitSources() {
  for (uint32_t i = 0; i < sources_.size(); ++i) {
    Request& request = *source_owners_[i]->request;
    if (request.done()) continue;
    if (!runner_.source_finite(i)) {
      const Error error{Code::kCorruption, "model: the activations of the source are not finite"};
      EndRequest(request, FinishReason::kError, &error);
      continue;
    }
    figures_.TimedCache([&] { cache_.CommitSource(source_owners_[i]->sequence->kv); });
  }
}

// Admission reserved room for every row, so a refusal here is a bug. It ends only that request.
void Scheduler::ExtendRows() {
  for (const Rows& rows : rows_) {
    if (rows.num_rows == 0 || rows.request->done()) continue;
    Sequence& sequence = *rows.sequence;
    const auto tokens = std::span<const TokenId>(sequence.tokens);
    const AllocationWatch watch(*rows.request, cache_.counters());
    const Status status = figures_.TimedCache(
        [&] { return cache_.Extend(sequence.kv, tokens.subspan(rows.position, rows.num_rows)); });
    if (!status) EndRequest(*rows.request, FinishReason::kError, &status.error());
  }
}

void Scheduler::ComputeRows() {
  step_.clear();
  step_tokens_.clear();
  for (Rows& rows : rows_) {
    if (rows.num_rows == 0 || rows.request->done()) continue;
    const KvSequence& kv = rows.sequence->kv;
    rows.first_row = static_cast<uint32_t>(step_tokens_.size());
    uint32_t position = rows.position;
    const Receipt& receipt = rows.request->receipt;
    if (((FaultActive(Fault::kWrongPosition) && receipt.cached_tokens() > 0) ||
         (FaultActive(Fault::kStaleResume) && receipt.preemptions > 0)) &&
        position + 1 + rows.num_rows <= kv.table().size() * cache_.layout().block_tokens()) {
      ++position;
    }
    step_.push_back({.tables = kv.tables(),
                     .position = position,
                     .first_row = rows.first_row,
                     .num_rows = rows.num_rows,
                     .long_rope = rows.sequence->long_rope,
                     .source_tokens = kv.source_tokens()});
    const auto begin = rows.sequence->tokens.begin() + rows.position;
    step_tokens_.insert(step_tokens_.end(), begin, begin + rows.num_rows);
  }
  if (step_.empty()) return;
  const Status status = figures_.TimedModel([&] { return runner_.Step(step_, step_tokens_); });
  if (status) return;
  for (const Rows& rows : rows_) {
    if (!rows.request->done()) {
      EndRequest(*rows.request, FinishReason::kError, &status.error());
    }
  }
}

void Scheduler::CommitRows() {
  heads_.clear();
  for (const Rows& rows : rows_) {
    Request& request = *rows.request;
    Sequence& sequence = *rows.sequence;
    if (request.done()) continue;
    if (rows.num_rows == 0 && sequence.num_pending() > 0) continue;  // only its source was read
    for (uint32_t i = 0; i < rows.num_rows && !request.done(); ++i) {
      if (runner_.finite(rows.first_row + i)) continue;
      const Error error{Code::kCorruption,
                        fmt::format("model: the activations of token {} (id {}) are not finite",
                                    rows.position + i, sequence.tokens[rows.position + i])};
      EndRequest(request, FinishReason::kError, &error);
    }
    if (request.done()) continue;
    const uint32_t committed = rows.position + rows.num_rows;
    const bool prompt_ends = !request.prompt_done && committed == request.prompt_tokens();
    if (rows.num_rows > 0) {
      const auto kind = prompt_ends ? KvCache::CommitKind::kEnd : KvCache::CommitKind::kRunning;
      figures_.TimedCache([&] { cache_.Commit(sequence.kv, rows.num_rows, kind); });
      const uint32_t left =
          request.prompt_tokens() - std::min(request.prompt_tokens(), rows.position);
      request.prefilled_tokens += std::min(rows.num_rows, left);
      if (request.spec.only_when_idle) figures_.stats().prepared_tokens += rows.num_rows;
    }
    if (!request.prompt_done) ReportProgress(request, committed);
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
  request.prompt_done = true;
  const uint32_t most = request.prompt_tokens() + request.max_tokens;
  for (const auto& sequence : request.sequences) {  // of a request that goes on
    if (sequence->done || sequence.get() == &first) continue;
    sequence->kv = cache_.Fork(first.kv, most);
  }
  if (request.search) {
    for (const auto& sequence : request.sequences) sequence->kv.StopPublishing();
    return;
  }
  while (request.sequences.size() < request.spec.n) {
    AddSequence(request, cache_.Fork(first.kv, most));
  }
}

void Scheduler::AddHeads(const Rows& rows, bool ends_prompt) {
  Request& request = *rows.request;
  Sequence& sequence = *rows.sequence;
  const auto may_draw = [](const auto& of) { return !of->done && of->num_pending() == 0; };
  const bool samples =
      request.max_tokens > 0 &&
      (ends_prompt ? std::ranges::any_of(request.sequences, may_draw) : may_draw(&sequence));
  const auto wanted = [&](uint32_t position) {
    if (position < sequence.next_logits) return false;
    if (request.spec.scores_prompt && position + 1 < request.prompt_tokens()) return true;
    return request.spec.on_logits != nullptr && position >= request.spec.logits_from;
  };
  if (sequence.format_choice) {  // what it waited for is known
    heads_.push_back({&request, &sequence, sequence.format_choice->row().hidden.data(),
                      rows.position - 1, samples, ends_prompt});
    return;
  }
  if (rows.num_rows == 0) {
    const uint32_t last = request.prompt_tokens() - 1;
    if (samples || wanted(last)) {
      heads_.push_back(
          {&request, &sequence, request.cursor_hidden.data(), last, samples, ends_prompt});
    }
    return;
  }
  for (uint32_t i = 0; i < rows.num_rows; ++i) {
    const uint32_t position = rows.position + i;
    const bool sample = samples && i + 1 == rows.num_rows;
    if (!sample && !wanted(position)) continue;
    heads_.push_back({&request, &sequence, runner_.hidden(rows.first_row + i).data(), position,
                      sample, ends_prompt});
  }
}

void Scheduler::ComputeHeads() {
  for (size_t begin = 0, num; begin < heads_.size(); begin += num) {
    num = HeadsAtOnce(begin);
    head_hidden_.clear();
    for (size_t i = 0; i < num; ++i) head_hidden_.push_back(heads_[begin + i].hidden);
    num_used_logits_ = std::max(num_used_logits_, num);
    figures_.TimedModel([&] { runner_.Logits(head_hidden_, logits_.data()); });
    const uint64_t logits_ns = MonotonicNs();
    CheckStepFiles();
    chooser_.Clear();
    beam_steps_.clear();
    for (uint32_t i = 0; i < num; ++i) {
      ReportLogits(heads_[begin + i], LogitsAt(i));
      if (heads_[begin + i].request->search) {
        AddBeam(heads_[begin + i], i);
      } else {
        AddDraws(heads_[begin + i], LogitsAt(i));
      }
    }
    chooser_.Run(format_steps_.of_rows());
    RunBeams();
    figures_.AddSampling(MonotonicNs() - logits_ns);
    for (TokenChooser::Draw& draw : chooser_.draws()) UseDraw(draw);
    for (const BeamStep& step : beam_steps_) UseBeams(step);
  }
  for (const Rows& rows : rows_) {
    if (!rows.request->prompt_done || rows.request->max_tokens > 0) continue;
    for (const auto& sequence : rows.request->sequences) {
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
    EventOf(request, 0).scored.push_back(std::move(token));
  }
  if (reports) spec.on_logits(sequence.choice, head.position, logits);
  sequence.next_logits = head.position + 1;
}

void Scheduler::ReportProgress(Request& request, uint32_t processed) {
  if (!request.spec.reports_progress) return;
  const uint64_t now = MonotonicNs();
  const uint64_t first = request.first_token_ns == 0 ? now : request.first_token_ns;
  processed = std::min(processed, request.prompt_tokens());
  EventOf(request, 0).progress = {
      .total = request.prompt_tokens(),
      .processed = processed,
      .cached = processed - std::min(processed, request.prefilled_tokens),
      .prompt_ms = static_cast<double>(first - request.admitted_ns) * kProgressMs,
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
  for (const auto& choice : request.sequences) add(*choice);
}

}  // namespace kvasir
