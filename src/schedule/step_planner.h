// StepPlanner: asks the policy who runs in the next step, and shows it what it needs to know.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cache/kv_cache.h"
#include "schedule/drafter.h"
#include "schedule/leaders.h"
#include "schedule/request_queues.h"
#include "schedule/scheduler_options.h"
#include "schedule/scheduling_policy.h"
#include "schedule/step_batch.h"
#include "schedule/step_figures.h"
#include "schedule/tenant_book.h"
#include "schedule/tier_loads.h"
#include "schedule/tier_looks.h"

namespace kvasir {

// Allocates nothing once its lists have room for all requests. Engine thread only.
class StepPlanner {
 public:
  // Keeps references: all must outlive it.
  StepPlanner(const SchedulerOptions& options, KvCache& cache, const RequestQueues& requests,
              TenantBook& tenants, StepFigures& figures, const TierLoads& loads,
              const Leaders& leaders, const Drafter& drafter);

  // Asks the cache what it has of a few prompts that wait, where one of them may start and the
  // answer may have changed.
  void Probe();
  // Drafts the next tokens of the sequences that decode.
  void FillDrafts();
  // Returns the policy's decision for the requests as they are now. `over_quota`: accounts whose
  // running requests wait for what the account releases.
  const StepPlan& Decide(std::span<const AccountId> over_quota);
  // Makes a batch of the rows of the last decision.
  void TakeRows(StepBatch* batch) const;
  // Returns the requests that the last decision saw: the running ones, then those that wait.
  std::span<const RequestView> requests() const { return view_requests_; }

 private:
  void Fill(std::span<const AccountId> over_quota);
  void RaiseLeaders();
  void FillSequence(uint32_t index, Request& request, Sequence& sequence);
  void FillSpan(uint32_t index, Request& request, Sequence& part);
  double SeenBytes(const Request& request, const Sequence& sequence) const;
  uint32_t CostToBringBack(const Request& request) const;

  struct Seen {
    Request* request;
    Sequence* sequence;
  };

  const SchedulerOptions& options_;
  KvCache& cache_;
  const RequestQueues& requests_;
  TenantBook& tenants_;
  StepFigures& figures_;
  const TierLoads& loads_;
  const Leaders& leaders_;
  const Drafter& drafter_;
  const std::unique_ptr<const SchedulingPolicy> policy_;
  std::vector<RequestView> view_requests_;
  std::vector<SequenceView> view_sequences_;
  std::vector<Seen> seen_;  // [view_sequences_]
  View view_;
  StepPlan plan_;
};

}  // namespace kvasir
