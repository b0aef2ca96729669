// WorkloadBoard: what a scheduler publishes of the work that it has, for estimates of waits.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "block/kv_layout.h"
#include "schedule/request_queues.h"
#include "schedule/scheduler_options.h"
#include "schedule/step_figures.h"
#include "schedule/tenant_book.h"
#include "schedule/workload.h"

namespace kvasir {

// Keeps one Workload, whose lists have room for all requests, and fills it in for each call of
// on_workload. Engine thread only.
class WorkloadBoard {
 public:
  // Keeps references: all must outlive it.
  WorkloadBoard(const SchedulerOptions& options, const KvLayout& layout,
                const RequestQueues& requests, const TenantBook& tenants,
                const StepFigures& figures);

  void set_on_workload(std::function<void(const Workload&)> on_workload) {
    on_workload_ = std::move(on_workload);
  }
  // Calls on_workload, if it is set.
  void Publish();

 private:
  void FillTenants();
  Workload::Job JobOf(const Request& request, uint32_t new_tokens) const;

  const KvLayout& layout_;
  const RequestQueues& requests_;
  const TenantBook& tenants_;
  const StepFigures& figures_;
  std::function<void(const Workload&)> on_workload_;
  Workload workload_;
};

}  // namespace kvasir
