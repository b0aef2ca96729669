// TierLooks: what a store far away is asked for requests that wait.
#pragma once

#include <cstdint>

#include "cache/kv_cache.h"
#include "schedule/request.h"
#include "schedule/scheduler_options.h"
#include "schedule/step_figures.h"

namespace kvasir {

// A request that came is held, while others pass, until the store has said what it has of the
// prompt, and no longer than a load may be late (LoadPace); its load gets what is left of that. A
// store whose answer usually takes longer is not asked. Engine thread only.
class TierLooks {
 public:
  // Keeps references: all must outlive it.
  TierLooks(const SchedulerOptions& options, const KvCache& cache, const StepFigures& figures)
      : options_(options), cache_(cache), figures_(figures) {}

  // Returns whether there is a store to ask.
  bool CanAsk() const { return options_.tier != nullptr && options_.tier->LookNs() > 0; }
  // Asks for a request that enters the queue, where the pool leaves two blocks or more to find: of
  // its prompt, as far as it is exact, and of its spans.
  void Begin(Request& request) const;
  // Returns whether the request waits for the answer.
  static bool Holds(const Request& request, uint64_t now_ns);

 private:
  const SchedulerOptions& options_;
  const KvCache& cache_;
  const StepFigures& figures_;
};

}  // namespace kvasir
