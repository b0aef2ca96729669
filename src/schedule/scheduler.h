// Scheduler: chooses the rows of each step, runs the step and uses its results.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "cache/kv_cache.h"
#include "import/file_watch.h"
#include "kvasir/engine.h"
#include "model/runner.h"
#include "sampling/beam_search.h"
#include "schedule/erasures.h"
#include "schedule/format_steps.h"
#include "schedule/request_queues.h"
#include "schedule/scheduling_policy.h"
#include "schedule/sequence.h"
#include "schedule/step_cost.h"
#include "schedule/step_figures.h"
#include "schedule/tenant_book.h"
#include "schedule/tier_loads.h"
#include "schedule/token_chooser.h"
#include "schedule/workload.h"
#include "simd/target.h"
#include "tier/tier.h"

namespace kvasir {

// RoPE longrope: sequences of more than `after_tokens` tokens are rotated by the long factors, and
// their KV has a separate Identity.
struct LongRope {
  uint32_t after_tokens;
  Identity identity;
};

struct SchedulerOptions {
  CacheMode cache_mode = CacheMode::kPrefix;
  Schedule schedule = Schedule::kFair;
  Admission admission = Admission::kExpected;
  double kv_headroom = 0.05;    // share of the pool that admission leaves to those that run
  uint64_t target_step_ns = 0;  // View::target_step_ns
  uint32_t unknown_answer_tokens = 256;  // AnswerLengths
  uint32_t ctx_size = 0;                 // for statistics; 0: unknown
  uint32_t num_tenants = 256;            // whose answers' lengths are known apart
  uint32_t parallel = 8;
  uint32_t max_rows = 512;       // of a step: the runner's max_rows; at least parallel
  uint32_t logit_rows = 16;      // of one call to Runner::Logits; at least kMaxBeams
  Target target = BestTarget();  // of what looks at logits
  Tier* tier = nullptr;          // the cache's; nullptr: it has no tier
  // How long a flush or an erasure waits for the tier, which may never answer.
  uint64_t tier_answer_ns = 60'000'000'000;
  Identity identity{};
  std::optional<LongRope> long_rope;  // absent: the length does not change the rotation
  std::vector<TokenId> end_tokens;    // ascending
  const Tokenizer* tokenizer = nullptr;
  // Of the masks of formats, in each step: nearly 2 ms. Between two steps that have nothing else to
  // do it is 5/2 of it, and a request may take 10 s beyond its part of the steps.
  uint64_t format_steps = 400'000;
  FileWatch* files = nullptr;  // what the runner reads; must outlive the scheduler
  std::function<void(const View&, const StepPlan&)> on_plan;  // called after each decision
};

// Runs requests. Each step computes one token of each generating sequence and chunks of prompts,
// max_rows in all. A policy decides who runs; the scheduler carries that out. A request is admitted
// when blocks for its prompt and its expected answer can be reserved (cache/reservation.h). The
// reservation grows with the answer. Where it cannot, a request is preempted: it gives up its
// blocks and goes on later, with the same bits. The oldest request never gives way to others that
// need memory, and it fits the pool alone, so every accepted request ends; fairness and priority
// may preempt it, SchedulingPolicy::kMaxPreemptions times. A request returns all its blocks before
// its last event is sent. Sinks are called at the end of a step. When a file of the model was
// changed, all requests end with kModelChanged: the scheduler checks this before it admits
// requests, before it commits what a step computed, and before it uses the step's logits. Runner
// and cache must outlive it. Engine thread only.
class Scheduler {
 public:
  Scheduler(Runner& runner, KvCache& cache, SchedulerOptions options);
  // The exact bytes that the constructor will allocate for logits and sampling, and those that it
  // did allocate.
  static uint64_t ScratchBytes(uint32_t vocab_size, uint32_t hidden_size, uint32_t logit_rows,
                               uint32_t threads, uint32_t parallel, bool has_encoder);
  uint64_t scratch_bytes() const;

  // REQUIRES: the request's demand fits the empty pool; its n is at most `parallel`. If this
  // throws, the caller still owns the request.
  void Enqueue(std::unique_ptr<Request>&& request);
  void Cancel(RequestId id);
  void CancelAll();
  // Ends requests with only_when_idle: those that began, or all.
  enum class Spare { kBegun, kAll };
  void StopSpare(Spare which);
  // Ends all requests with this error: after Step threw, or when a file of the model was changed.
  // If it throws, it may be called again.
  void FailAll(const Error& error);
  // Engine::SetTenants.
  void SetTenants(const TenantTable& rules);
  // Forgets the owner's namespaces at once; its requests that wait or run share nothing from now
  // on. The next steps zero the blocks, and the last of these steps calls `done`. If this throws,
  // the caller still owns `done`.
  void Erase(std::string_view owner, ErasureSink&& done);
  // The same for a part of a prompt: Engine::Forget. `kept` stands for request.kept, which is not
  // looked at. O(blocks), and O(last) HMACs with a tier.
  void Forget(const ForgetRequest& request, const std::shared_ptr<const KeptPrompts>& kept,
              ErasureSink&& done);

  // Hands all blocks that were published before over to the tier, and calls `done` when they are
  // stored, or with kUnavailable after tier_answer_ns. If this throws, the caller still owns
  // `done`. REQUIRES: there is a tier.
  void Flush(FlushSink&& done) { erasures_.Flush(std::move(done)); }
  // Flushes and erasures wait for the tier no longer than until then.
  void EndTierWaits(uint64_t at_ns) { erasures_.EndTierWaits(at_ns); }

  bool idle() const { return requests_.empty() && erasures_.empty() && cache_.num_unsealed() == 0; }
  // After a step: whether all that is left waits for the tier, or for a time to pass.
  bool WaitsForTier() const;
  // Gives up what was not handed over to the tier yet.
  void DropUnsealed() { cache_.DropUnsealed(); }
  // Requests that got their last event, the sum of their bytes, and erasures that are complete.
  struct Ended {
    uint32_t count = 0;
    uint64_t bytes = 0;
    uint32_t num_erased = 0;
  };
  // Runs one step, then calls the sinks. With nothing to run it only sends waiting events (of
  // cancelled requests) and zeroes erased blocks.
  Ended Step();
  // Of a tenant, or of all: the oldest running request first, then those that wait.
  std::vector<SequenceState> States(const std::optional<std::string>& tenant) const;
  // on_stats is called at once, and then in each step before its sinks, so that the snapshot
  // already counts what they get.
  void set_on_stats(std::function<void(const EngineStats&)> on_stats) {
    figures_.set_on_stats(std::move(on_stats));
    PublishStats();
  }
  // Called once for each request, before its last event: who hears that may ask again at once.
  void set_on_end(std::function<void(const Request&)> on_end) { on_end_ = std::move(on_end); }
  // on_workload is called at once, when a step begins to compute, and when nothing is left to do.
  void set_on_workload(std::function<void(const Workload&)> on_workload) {
    on_workload_ = std::move(on_workload);
    PublishWorkload();
  }
  void CheckInvariants() const;

 private:
  struct Rows {  // of one sequence in this step; no rows when a Cursor answers
    Request* request;
    Sequence* sequence;
    uint32_t first_row, num_rows;
    uint32_t position;     // of the first row
    uint32_t source_rows;  // tokens of its source, if that is read before; else 0
  };
  struct Head {  // a row whose logits are wanted
    Request* request;
    Sequence* sequence;
    const float* hidden;  // [hidden_size]
    uint32_t position;
    bool sample;       // the last row of what is known of the sequence
    bool ends_prompt;  // then all choices that have no token yet are drawn
  };
  struct BeamStep {  // of a request's search
    Request* request;
    uint32_t first_row, num_rows = 0;  // of beam_rows_ and logits_
    bool finite = true;                // all its logits
  };

  // scheduler_admission.cc
  void EndPastDeadline();
  void CheckFiles();
  void CheckStepFiles();  // only those that steps read
  void FitQuota(Request& request);
  bool CountRefusal(const Error& error);
  void Admit(size_t waiting_index);
  // The tokens that a request begins or goes on with; of `request`, while it does not change.
  struct Known {
    std::span<const TokenId> tokens;
    bool goes_on;   // its answers had begun
    bool is_whole;  // the answer is in `tokens` too; else it is computed again behind the prompt
    bool is_long;   // of RoPE longrope
  };
  Known KnownOf(const Request& request) const;
  bool TryAdmit(Request& request);
  void StartRunning(Request& request, const Known& known, MatchResult match,
                    Reservation reservation, uint64_t start_ns);
  bool Follow(Request& request, uint32_t num_resident);
  bool Follows(const Request& request) const;
  bool IsLong(size_t tokens) const {
    return options_.long_rope && tokens > options_.long_rope->after_tokens;
  }
  MatchResult Match(Request& request, std::span<const TokenId> tokens, bool is_long,
                    MatchOptions options);
  uint32_t TokensToReserve(const Request& request) const;
  void CountResumed(Request& request, const Sequence& first, uint32_t num_reused);
  void Preempt(size_t running_index, PreemptCause cause);
  void RestartLong();
  void Charge();
  void GrowReservations();
  bool GrowReservation(Request& request, uint32_t needed);
  void AddSequence(Request& request, KvSequence kv);
  static void BeginThought(const Request& request, Sequence& sequence);

  // scheduler_plan.cc
  void PlanRows();
  void ProbeWaiting();
  void FillView();
  void RaiseLeaders();
  void FillSequence(uint32_t index, Request& request, Sequence& sequence);
  uint32_t CostToBringBack(const Request& request) const;
  void TakeRows();

  // scheduler.cc
  void ContinueFormats();
  void ReadSources();
  void CommitSources();
  void ExtendRows();
  void ComputeRows();
  void CommitRows();
  void StartChoices(Request& request, Sequence& first, const float* hidden);
  void AddHeads(const Rows& rows, bool ends_prompt);
  void ComputeHeads();
  std::span<const float> LogitsAt(size_t row) const {
    const size_t vocab = runner_.config().vocab_size;
    return std::span(logits_).subspan(row * vocab, vocab);
  }
  void ReportLogits(const Head& head, std::span<const float> logits);
  static void ReportProgress(Request& request, uint32_t processed);
  void AddDraws(const Head& head, std::span<const float> logits);

  // scheduler_beams.cc
  void BeginSearch(Request& request) const;
  size_t HeadsAtOnce(size_t begin) const;
  void AddBeam(const Head& head, uint32_t row);
  void RunBeams();
  void UseBeams(const BeamStep& step);
  Status FollowBeams(Request& request);
  std::vector<BeamSearch::Hypothesis> AddHypotheses(Request& request);
  void EndSearch(Request& request, std::span<const BeamSearch::Hypothesis> best);

  // scheduler_delivery.cc
  void UseDraw(TokenChooser::Draw& draw);
  void NoteToken(Request& request, uint64_t previous_ns);
  static bool AdvanceFormat(const Request& request, Sequence& sequence,
                            const GeneratedToken& token);
  void EndSequence(Request& request, Sequence& sequence, const float* hidden, FinishReason reason);
  void ReleaseSequences(Request& request);
  void EndRequest(Request& request, FinishReason reason, const Error* error);
  void FinishRequest(Request& request, FinishReason reason);
  Ended Deliver();
  void ZeroScratch();
  void CountStep(uint64_t step_ns);
  void PublishWorkload();
  Workload::Job JobOf(const Request& request, uint32_t new_tokens) const;

  // scheduler_states.cc
  void AddStates(const Request& request, uint64_t now_ns, std::vector<SequenceState>& states) const;
  void PublishStats() { figures_.Publish(requests_, view_requests_, cache_); }

  Runner& runner_;
  KvCache& cache_;
  const SchedulerOptions options_;
  StepFigures figures_;
  TenantBook tenants_;
  TokenChooser chooser_;  // before requests_, which hold rows of it
  Erasures erasures_;
  FormatSteps format_steps_;
  TierLoads loads_;
  std::vector<float> logits_;  // [logit_rows][vocab]
  std::function<void(const Workload&)> on_workload_;
  std::function<void(const Request&)> on_end_;

  RequestQueues requests_;

  // Of the current step; kept for their capacity.
  std::vector<Rows> rows_;
  std::vector<Head> heads_;
  std::vector<StepSequence> step_;
  std::vector<TokenId> step_tokens_;
  std::vector<StepSource> sources_;
  std::vector<TokenId> source_tokens_;
  std::vector<const Rows*> source_owners_;  // [sources_]
  std::vector<const float*> head_hidden_;
  std::vector<BeamStep> beam_steps_;
  std::vector<LogitRow> beam_rows_;                    // [logit_rows], of a model with an encoder
  std::vector<std::unique_ptr<Sequence>> next_beams_;  // kept for its capacity
  size_t num_used_logits_ = 0;   // rows of logits_ that were used since ZeroScratch
  bool zeroes_scratch_ = false;  // a request ended that came before an erase
  uint32_t decode_rows_ = 0;
  StepWork work_;
  struct Seen {  // behind View::sequences
    Request* request;
    Sequence* sequence;
  };
  std::vector<RequestView> view_requests_;
  std::vector<SequenceView> view_sequences_;
  std::vector<Seen> seen_;
  View view_;
  StepPlan plan_;

  uint32_t headroom_blocks_ = 0;
  std::unique_ptr<const SchedulingPolicy> policy_;
  std::vector<AccountId> accounts_over_quota_;  // of GrowReservations; kept for its capacity
  Workload workload_;                           // vectors with room for all requests

  uint64_t files_checked_ns_ = 0;  // the last CheckAll
};

}  // namespace kvasir
