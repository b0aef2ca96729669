// RequestEnds: how requests end, and what their sinks get after each step.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "cache/kv_cache.h"
#include "schedule/request.h"
#include "schedule/request_queues.h"
#include "schedule/retainer.h"
#include "schedule/scheduler_options.h"
#include "schedule/span_reader.h"
#include "schedule/step_figures.h"
#include "schedule/tenant_book.h"
#include "schedule/tier_loads.h"

namespace kvasir {

// A request that ends gives back all that it holds, gets a complete receipt, and is counted. Those
// that wait move to the ended ones at once, those that run with RequestQueues::CollectEnded; there
// they stay until their sinks have the last event. Engine thread only.
class RequestEnds {
 public:
  // Keeps references: all must outlive it.
  RequestEnds(const SchedulerOptions& options, KvCache& cache, RequestQueues& requests,
              StepFigures& figures, TenantBook& tenants, TierLoads& loads, Retainer& retainer,
              SpanReader& spans);

  // Ends one choice, and with the last one its request. `hidden`: of its last committed token, for
  // a Cursor.
  void EndChoice(Request& request, Sequence& sequence, std::span<const float> hidden,
                 FinishReason reason);
  // Ends a request whose beam search is done: its best hypotheses become its choices.
  void EndSearch(Request& request);
  // Ends a request with an error, where it is. REQUIRES: it is not done.
  void Fail(Request& request, const Error& error) { End(request, FinishReason::kError, &error); }

  // Ends the requests whose time limit has passed, and moves them.
  void EndPastDeadline();
  void Cancel(RequestId id);  // does nothing where there is no such request
  void CancelAll();
  // Ends requests with only_when_idle: those that began, or all.
  enum class Spare { kBegun, kAll };
  void StopSpare(Spare which);
  // Ends all requests with this error. If it throws, it may be called again.
  void FailAll(const Error& error);
  // Ends those of which a row waits for its format: it holds activations of what is erased, for as
  // long as the walk takes.
  void FailWalks(std::span<Request* const> requests);

  // Checks the files that the runner reads (SchedulerOptions::files), and ends all requests where
  // one was changed: all files whenever a request waits for admission, else every 100 ms. That is
  // enough, because CheckStepFiles checks those that a step reads.
  void CheckFiles();
  void CheckStepFiles();

  // Calls on_end once for each request, before its last event. The callback may submit a new
  // request.
  void set_on_end(std::function<void(const Request&)> on_end) { on_end_ = std::move(on_end); }
  // Sends the events of a step. Returns how many requests got their last one and are gone, and the
  // sum of their bytes.
  struct Delivered {
    uint32_t count = 0;
    uint64_t bytes = 0;
  };
  Delivered Deliver();

  // Returns whether a request ended that came before an erase: what steps left in memory may be of
  // it until ClearErased.
  bool has_erased() const { return has_erased_; }
  void ClearErased() { has_erased_ = false; }

 private:
  void End(Request& request, FinishReason reason, const Error* error);
  std::vector<BeamSearch::Hypothesis> AddHypotheses(Request& request);
  void ReleaseSequences(Request& request);
  void Finish(Request& request, FinishReason reason);

  const SchedulerOptions& options_;
  KvCache& cache_;
  RequestQueues& requests_;
  StepFigures& figures_;
  TenantBook& tenants_;
  TierLoads& loads_;
  Retainer& retainer_;
  SpanReader& spans_;
  std::function<void(const Request&)> on_end_;
  uint64_t files_checked_ns_ = 0;  // the last CheckFiles that did
  bool has_erased_ = false;
};

}  // namespace kvasir
