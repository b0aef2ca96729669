// Scheduler: admits requests, plans steps and runs them.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cache/kv_cache.h"
#include "kvasir/engine.h"
#include "model/runner.h"
#include "schedule/backlog_board.h"
#include "schedule/draft_book.h"
#include "schedule/erasures.h"
#include "schedule/leaders.h"
#include "schedule/request.h"
#include "schedule/request_ends.h"
#include "schedule/request_matcher.h"
#include "schedule/request_queues.h"
#include "schedule/retainer.h"
#include "schedule/scheduler_options.h"
#include "schedule/sequence_states.h"
#include "schedule/span_reader.h"
#include "schedule/step_batch.h"
#include "schedule/step_draws.h"
#include "schedule/step_figures.h"
#include "schedule/step_planner.h"
#include "schedule/tenant_book.h"
#include "schedule/tier_loads.h"
#include "schedule/tier_looks.h"
#include "schedule/token_chooser.h"

namespace kvasir {

// Runs requests. Each step computes one token of each generating sequence, those that are drafted
// after it, and chunks of prompts, max_rows in all. A policy decides who runs; the scheduler
// carries that out. A request is admitted when blocks for its prompt and its expected answer can be
// reserved (cache/reservation.h). The reservation grows with the answer. Where it cannot, a request
// is preempted: it gives up its blocks and goes on later, with the same bits. The oldest request
// never gives way to others that need memory, and it fits the pool alone, so every accepted request
// ends; fairness and priority may preempt it, SchedulingPolicy::kMaxPreemptions times. A request
// returns all its blocks before its last event is sent. Sinks are called at the end of a step. When
// a file of the model was changed, all requests end with kModelChanged: the scheduler checks this
// before it admits requests, before it commits what a step computed, and before it uses the step's
// logits. What else happens to requests is in its parts, which do not know it
// (docs/architecture.md). Runner and cache must outlive it. Engine thread only.
class Scheduler {
 public:
  Scheduler(Runner& runner, KvCache& cache, SchedulerOptions options);
  // Returns the bytes of the draft model's logits; 0: there is none.
  uint64_t draft_scratch_bytes() const { return drafts_.model() ? drafts_.model()->bytes() : 0; }
  // Return the exact bytes that the constructor will allocate for logits and sampling, and those
  // that it did allocate.
  static uint64_t ScratchBytes(uint32_t vocab_size, uint32_t hidden_size, uint32_t logit_rows,
                               uint32_t threads, uint32_t parallel, bool has_encoder);
  uint64_t scratch_bytes() const { return draws_.bytes() + chooser_.bytes(); }
  // Returns the bytes that the constructor did allocate for the weights of blocks
  // (BlockSums::BytesFor).
  uint64_t retention_bytes() const { return retainer_.bytes(); }

  // Queues a request. REQUIRES: its demand fits the empty pool; its n is at most `parallel`. If
  // this throws, the caller still owns the request.
  void Enqueue(std::unique_ptr<Request>&& request);
  // Ends a request, all of them, or those with only_when_idle, as RequestEnds does.
  void Cancel(RequestId id) { ends_.Cancel(id); }
  void CancelAll() { ends_.CancelAll(); }
  using Spare = RequestEnds::Spare;
  void StopSpare(Spare which) { ends_.StopSpare(which); }
  // Ends all requests with this error: after Step threw, or when a file of the model was changed.
  // If it throws, it may be called again.
  void FailAll(const Error& error) { ends_.FailAll(error); }
  // Sets the rules of all tenants (Engine::SetTenants).
  void SetTenants(const TenantTable& rules);
  // Forgets the owner's namespaces at once; its requests that wait or run share nothing from now
  // on, and those of which a row waits for its format end with kUnavailable. The next steps zero
  // the blocks, and the last of these steps calls `done`. If this throws, the caller still owns
  // `done`.
  void Erase(std::string_view owner, ErasureSink&& done);
  // Erases an owner (KvCache::OwnerOf) here, after another machine has erased it in the store that
  // both share. It counts as an erasure in Ended.
  void EraseHere(const Digest& owner, ErasureSink&& done);
  // Forgets a part of a prompt in the same way: Engine::Forget. `kept` stands for request.kept,
  // which is not looked at. O(blocks), and O(last) HMACs with a tier.
  void Forget(const ForgetRequest& request, const std::shared_ptr<const KeptPrompts>& kept,
              ErasureSink&& done);

  // Hands all blocks that were published before over to the tier, and calls `done` when they are
  // stored, or with kUnavailable after tier_answer_ns. If this throws, the caller still owns
  // `done`. REQUIRES: there is a tier.
  void Flush(FlushSink&& done) { erasures_.Flush(std::move(done)); }
  // Makes flushes and erasures wait for the tier until then, at most.
  void EndTierWaits(uint64_t at_ns) { erasures_.EndTierWaits(at_ns); }

  bool idle() const { return requests_.empty() && erasures_.empty() && cache_.num_unsealed() == 0; }
  bool has_rows() const { return !requests_.running.empty(); }  // the next step computes some
  // Returns, after a step, whether all that is left waits for the tier, or for a time to pass.
  bool WaitsForTier() const;
  // Gives up what was not handed over to the tier yet.
  void DropUnsealed() { cache_.DropUnsealed(); }
  // Requests that got their last event, the sum of their bytes, and erasures that are complete.
  struct Ended : RequestEnds::Delivered {
    uint32_t num_erased = 0;
  };
  // Runs one step, then calls the sinks. With nothing to run it only sends waiting events (of
  // cancelled requests) and zeroes erased blocks.
  Ended Step();
  // Returns the choices of a tenant, or of all: the oldest running request first, then those that
  // wait.
  std::vector<SequenceState> States(const std::optional<std::string>& tenant) const {
    return StatesOf(requests_, leaders_, cache_, tenant);
  }
  // Calls on_stats at once, and then in each step before its sinks, so that the snapshot already
  // counts what they get.
  void set_on_stats(std::function<void(const EngineStats&)> on_stats) {
    figures_.set_on_stats(std::move(on_stats));
    PublishStats();
  }
  // Calls on_end once for each request, before its last event. The callback may submit a new
  // request.
  void set_on_end(std::function<void(const Request&)> on_end) {
    ends_.set_on_end(std::move(on_end));
  }
  // Calls on_backlog at once, when a step begins to compute, and when nothing is left to do.
  void set_on_backlog(std::function<void(const Backlog&)> on_backlog) {
    backlog_.set_on_backlog(std::move(on_backlog));
    backlog_.Publish();
  }
  void CheckInvariants() const;
  // Returns how often spans were looked for in the cache; tests bound it.
  uint64_t num_span_matches() const { return spans_.num_matches(); }

 private:
  // scheduler_admission.cc
  void FitQuota(Request& request);
  bool CountRefusal(const Error& error);
  void Admit(size_t waiting_index);
  // The tokens that a request begins or goes on with; of `request`, while it does not change.
  struct Known {
    std::span<const TokenId> tokens;
    bool goes_on;   // its answers had begun
    bool is_whole;  // the answer is in `tokens` too; else it is computed again after the prompt
    bool is_long;   // of RoPE longrope
  };
  Known KnownOf(const Request& request) const;
  uint32_t Headroom() const;
  bool TryAdmit(Request& request);
  void StartRunning(Request& request, const Known& known, MatchResult match,
                    Reservation reservation, uint64_t start_ns);
  uint32_t TokensToReserve(const Request& request) const;
  void CountResumed(Request& request, const Sequence& first, uint32_t num_reused);
  void Preempt(size_t running_index, PreemptCause cause);
  void RestartLong();
  void GrowReservations();
  bool GrowReservation(Request& request, uint32_t needed);

  // scheduler_rows.cc
  void ReadSources();
  void CommitSources();
  void ExtendRows();
  void ComputeRows();
  void CommitRows();
  void StartChoices(Request& request, Sequence& first, std::span<const float> hidden);
  void AddMeanRows(const StepBatch::Rows& rows);
  void Embed(Request& request, std::span<const float> hidden);

  // scheduler.cc
  void PlanRows();
  void CountStep(uint64_t step_ns);
  void Charge();
  void ZeroScratch();
  void DropDraftKv(const std::function<bool(const std::string&)>& is_owner);
  void PublishStats() { figures_.Publish(requests_, planner_.requests(), cache_); }

  KvCache& cache_;
  const SchedulerOptions options_;
  StepFigures figures_;
  TenantBook tenants_;
  TokenChooser chooser_;  // before requests_, which hold rows of it
  DraftBook drafts_;
  Retainer retainer_;  // before requests_, which hold slots of it
  Erasures erasures_;
  TierLoads loads_;
  const TierLooks looks_;
  RequestQueues requests_;
  RequestMatcher matcher_;
  SpanReader spans_;
  RequestEnds ends_;
  StepDraws draws_;
  StepBatch batch_;
  Leaders leaders_;
  StepPlanner planner_;
  BacklogBoard backlog_;
  std::vector<AccountId> accounts_over_quota_;  // of GrowReservations; kept for its capacity
};

}  // namespace kvasir
