#include "testing/simulation.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/own_clock.h"
#include "base/random.h"
#include "schedule/request_check.h"
#include "testing/timed_runner.h"

namespace kvasir {
namespace {

constexpr uint32_t kVocab = 2048;  // of answers: none is longer
// The vocabulary of prompts. Much larger, so that two prompts have equal tokens only where their
// blocks are equal.
constexpr uint32_t kPromptVocab = std::numeric_limits<TokenId>::max();
constexpr uint32_t kMaxIdleSteps = 1000;

uint32_t LongestOf(std::span<const SimulatedRequest> requests) {
  uint32_t longest = 1;
  for (const SimulatedRequest& request : requests) {
    longest = std::max(longest, request.recorded.input_tokens + request.max_tokens);
  }
  return longest;
}

uint32_t NumTenants(std::span<const SimulatedRequest> requests) {
  uint32_t tenants = 0;
  for (const SimulatedRequest& request : requests) tenants = std::max(tenants, request.tenant + 1);
  return tenants;
}

// One run. Requests wait in `todo_` until they come.
class Simulation {
 public:
  Simulation(std::span<const SimulatedRequest> requests, const SimulationOptions& options)
      : requests_(requests),
        options_(options),
        context_(LongestOf(requests)),
        begin_ns_(MonotonicNs()),
        runner_({.vocab_size = kVocab,
                 .max_positions = context_,
                 .block_tokens = options.block_tokens,
                 .max_rows = options.scheduler.max_rows},
                [this](uint64_t rows, double seen) { PassStep(rows, seen); }),
        cache_(MakeCache()),
        scheduler_(runner_, *cache_, SchedulerOptionsOf()),
        todo_(NumTenants(requests)),
        outstanding_(todo_.size()) {
    for (size_t i = requests.size(); i-- > 0;) todo_[requests[i].tenant].push_back(i);
    scheduler_.set_on_stats([this](const EngineStats& stats) { result_.stats = stats; });
    result_.service_ns.resize(todo_.size());
  }

  SimulationResult Run() {
    for (uint32_t idle_steps = 0; Now() < UntilNs(); ++idle_steps) {
      SubmitAll();
      if (scheduler_.idle()) {
        const uint64_t next_ns = NextArrivalNs();
        if (next_ns == kNever) break;
        if (next_ns > Now()) clock_.Advance(std::chrono::nanoseconds(next_ns - Now()));
        continue;
      }
      const uint64_t before_ns = Now();
      scheduler_.Step();
      if (Now() > before_ns) idle_steps = 0;
      KV_CHECK(idle_steps < kMaxIdleSteps);
    }
    result_.virtual_ns = Now();
    scheduler_.CancelAll();
    while (!scheduler_.idle()) scheduler_.Step();
    return std::move(result_);
  }

 private:
  static constexpr uint64_t kNever = std::numeric_limits<uint64_t>::max();

  uint64_t Now() const { return MonotonicNs() - begin_ns_; }
  uint64_t UntilNs() const { return options_.until_ns == 0 ? kNever : options_.until_ns; }

  std::unique_ptr<KvCache> MakeCache() const {
    auto cache = KvCache::Create({.layout = runner_.layout(),
                                  .budget_bytes = uint64_t{1} << 46,  // max_blocks is the limit
                                  .hidden_size = TimedRunner::kHidden,
                                  .num_cursors = 0,
                                  .num_namespaces = options_.scheduler.num_tenants,
                                  .max_blocks = options_.num_blocks,
                                  .secret = {1},
                                  .step_tokens = options_.scheduler.max_rows,
                                  .eviction = FindEvictionChoice(options_.eviction)});
    KV_CHECK(cache.has_value());
    return std::move(*cache);
  }

  SchedulerOptions SchedulerOptionsOf() {
    SchedulerOptions options = options_.scheduler;
    if (options_.drafts != SimulatedDrafts::kNone) {
      options.drafts = [this](const Request& request, const Sequence& sequence, Draft& draft) {
        Fill(request, sequence.tokens.size(), draft);
      };
    }
    options.on_plan = [this](const View& view, const StepPlan& plan) { Look(view, plan); };
    return options;
  }

  // Drafts as many tokens as there may be. Which of them are right depends on their places alone.
  void Fill(const Request& request, uint64_t position, Draft& draft) const {
    const SimulatedDrafts kind = options_.drafts;
    draft.num_equal = 8;
    draft.num_tokens = options_.scheduler.draft_max;
    for (uint32_t i = 0; i < draft.num_tokens; ++i, ++position) {
      const bool is_right = kind == SimulatedDrafts::kRight ||
                            (kind == SimulatedDrafts::kHalfRight &&
                             DrawUniform(static_cast<uint64_t>(request.id), 0, position) < 0.75);
      draft.tokens[i] = runner_.TokenAt(position + (is_right ? 0 : 1));
    }
  }

  // Adds the plan to the digest, and notes whose rows the step will have.
  void Look(const View& view, const StepPlan& plan) {
    const auto add = [this](uint64_t number) { result_.digest = Mix64(result_.digest ^ number); };
    const auto add_index = [&](const std::optional<uint32_t>& index) {
      add(index ? *index + uint64_t{1} : 0);
    };
    add_index(plan.preempt);
    add_index(plan.admit);
    add(static_cast<uint64_t>(plan.cause));
    if (plan.preempt || plan.admit) return;
    step_rows_.assign(todo_.size(), 0);
    for (size_t i = 0; i < plan.rows.size(); ++i) {
      add(plan.rows[i]);
      const uint32_t number = view.requests[view.sequences[i].request].tenant;
      step_rows_[tenant_of_[number - 1]] += plan.rows[i] + plan.draft_rows[i];
      if (plan.draft_rows[i] > 0) add(plan.draft_rows[i]);
    }
  }

  void PassStep(uint64_t rows, double seen_tokens) {
    const MachineModel& machine = options_.machine;
    const double ns = machine.step_ns + machine.row_ns * static_cast<double>(rows) +
                      machine.seen_ns * seen_tokens;
    clock_.Advance(std::chrono::nanoseconds(std::llround(ns)));
    for (size_t tenant = 0; tenant < step_rows_.size(); ++tenant) {
      result_.service_ns[tenant] += ns * step_rows_[tenant] / static_cast<double>(rows);
    }
  }

  bool MaySubmit(uint32_t tenant) const {
    return options_.concurrency == 0 || outstanding_[tenant] < options_.concurrency;
  }

  // Returns when the next request that may come does so, those aside that a tenant's limit holds
  // back.
  uint64_t NextArrivalNs() const {
    uint64_t next_ns = kNever;
    for (uint32_t tenant = 0; tenant < todo_.size(); ++tenant) {
      if (todo_[tenant].empty() || !MaySubmit(tenant)) continue;
      next_ns = std::min(next_ns, requests_[todo_[tenant].back()].arrival_ns);
    }
    return next_ns;
  }

  // Submits all that have come by now, in the order of their times.
  void SubmitAll() {
    while (NextArrivalNs() <= Now()) {
      std::optional<uint32_t> first;
      for (uint32_t tenant = 0; tenant < todo_.size(); ++tenant) {
        if (todo_[tenant].empty() || !MaySubmit(tenant)) continue;
        if (!first || todo_[tenant].back() < todo_[*first].back()) first = tenant;
      }
      Submit(requests_[todo_[*first].back()]);
      todo_[*first].pop_back();
    }
  }

  void Submit(const SimulatedRequest& request) {
    const size_t index = result_.answers.size();
    SimulatedAnswer& answer = result_.answers.emplace_back();
    answer.tenant = request.tenant;
    answer.arrival_ns = options_.concurrency > 0 ? Now() : request.arrival_ns;
    answer.refused = options_.max_queued > 0 && result_.stats.queued >= options_.max_queued;
    if (answer.refused) return;
    GenerateRequest spec;
    spec.tenant = "tenant " + std::to_string(request.tenant);
    spec.prompt = PromptOf(request.recorded, kPromptVocab);
    spec.sampling.temperature = 0;
    const uint32_t length = request.recorded.output_tokens;
    spec.max_tokens = length == 0 ? 0 : request.max_tokens;
    KV_CHECK(std::min(length, spec.max_tokens) <= kVocab);
    if (length < spec.max_tokens) {
      spec.stop_ids = {runner_.TokenAt(spec.prompt.size() + length - 1)};
    }
    auto checked =
        CheckRequest(std::move(spec), [this, index](const Event& event) { Hear(index, event); },
                     {.ctx_size = context_,
                      .max_positions = context_,
                      .vocab_size = kPromptVocab,
                      .parallel = options_.scheduler.parallel,
                      .num_blocks = cache_->plan().num_blocks,
                      .layout = &runner_.layout(),
                      .step_tokens = cache_->step_tokens()});
    answer.refused = !checked;
    if (answer.refused) return;
    (*checked)->id = RequestId{index + 1};
    (*checked)->times.submitted_ns = begin_ns_ + answer.arrival_ns;
    // The scheduler counts tenants from 1, in the order in which they come.
    const bool is_known = std::ranges::find(tenant_of_, request.tenant) != tenant_of_.end();
    if (!is_known) tenant_of_.push_back(request.tenant);
    ++outstanding_[request.tenant];
    last_token_ns_.resize(index + 1);
    ++result_.stats.queued;  // until the next step counts
    scheduler_.Enqueue(std::move(*checked));
  }

  void Hear(size_t index, const Event& event) {
    SimulatedAnswer& answer = result_.answers[index];
    if (!event.tokens.empty()) {
      if (answer.first_token_ns == 0) {
        answer.first_token_ns = Now();
      } else {
        result_.itl_ms.push_back(static_cast<double>(Now() - last_token_ns_[index]) * 1e-6);
      }
      last_token_ns_[index] = Now();
      answer.tokens += static_cast<uint32_t>(event.tokens.size());
    }
    if (!event.last) return;
    answer.receipt = event.receipt;
    --outstanding_[answer.tenant];
    if (event.finish_reason == FinishReason::kCancelled) return;  // the simulation is over
    KV_CHECK(!event.error);
    answer.end_ns = Now();
  }

  OwnClock clock_;
  const std::span<const SimulatedRequest> requests_;
  const SimulationOptions& options_;
  const uint32_t context_;
  const uint64_t begin_ns_;
  TimedRunner runner_;
  const std::unique_ptr<KvCache> cache_;
  Scheduler scheduler_;
  std::vector<std::vector<size_t>> todo_;  // [tenant]: requests to come, the next one last
  std::vector<uint32_t> outstanding_;      // [tenant]: submitted and not ended
  std::vector<uint32_t> tenant_of_;        // [scheduler's number - 1]
  std::vector<uint32_t> step_rows_;        // [tenant], of the current step
  std::vector<uint64_t> last_token_ns_;    // [answer]
  SimulationResult result_;
};

}  // namespace

SimulationResult Simulate(std::span<const SimulatedRequest> requests,
                          const SimulationOptions& options) {
  return Simulation(requests, options).Run();
}

double SimulationResult::mean_decode_batch() const {
  return static_cast<double>(stats.decode_rows) / std::max<double>(1, stats.decode_steps);
}

double SimulationResult::tokens_per_s() const {
  return stats.generated_tokens / std::max(1e-9, static_cast<double>(virtual_ns) * 1e-9);
}

double SimulationResult::recomputed_share() const {
  const uint64_t computed = stats.prefill_rows + stats.decode_rows;
  return static_cast<double>(stats.recomputed_tokens) / std::max<double>(1, computed);
}

uint64_t SimulationResult::preemptions() const {
  uint64_t sum = 0;
  for (const uint64_t count : stats.preemptions) sum += count;
  return sum;
}

uint64_t SimulationResult::refusals() const {
  return std::ranges::count_if(answers, &SimulatedAnswer::refused);
}

namespace {

Percentiles TtftMs(const std::vector<SimulatedAnswer>& answers, std::optional<uint32_t> tenant) {
  std::vector<double> values;
  for (const SimulatedAnswer& answer : answers) {
    if (answer.refused || (tenant && answer.tenant != *tenant)) continue;
    // An empty answer has only an end.
    const uint64_t at_ns = answer.first_token_ns > 0 ? answer.first_token_ns : answer.end_ns;
    values.push_back(at_ns > 0 ? static_cast<double>(at_ns - answer.arrival_ns) * 1e-6
                               : std::numeric_limits<double>::infinity());
  }
  return PercentilesOf(std::move(values));
}

}  // namespace

Percentiles SimulationResult::ttft_ms() const { return TtftMs(answers, std::nullopt); }
Percentiles SimulationResult::ttft_ms(uint32_t tenant) const { return TtftMs(answers, tenant); }

std::vector<SimulatedRequest> SampleRequests(std::span<const RecordedRequest> recording,
                                             const SampleOptions& options) {
  Random random(options.seed);
  std::vector<SimulatedRequest> requests;
  double at_s = 0;
  uint32_t next_block = options.tenant << 24;
  for (uint32_t i = 0; i < options.count; ++i) {
    if (options.per_s > 0) at_s -= std::log(1 - random.Uniform()) / options.per_s;
    SimulatedRequest request{.arrival_ns = static_cast<uint64_t>(at_s * 1e9),
                             .tenant = options.tenant,
                             .recorded = recording[random.Below(recording.size())],
                             .max_tokens = options.max_tokens};
    for (uint32_t& block : request.recorded.block_ids) block = next_block++;
    requests.push_back(std::move(request));
  }
  return requests;
}

std::vector<SimulatedRequest> Merge(std::vector<SimulatedRequest> a,
                                    const std::vector<SimulatedRequest>& b) {
  a.insert(a.end(), b.begin(), b.end());
  std::ranges::stable_sort(a, {}, &SimulatedRequest::arrival_ns);
  return a;
}

}  // namespace kvasir
