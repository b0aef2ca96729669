// BacklogBoard: what a scheduler publishes of the work that it has, for estimates of waits.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "block/kv_layout.h"
#include "schedule/backlog.h"
#include "schedule/request_queues.h"
#include "schedule/scheduler_options.h"
#include "schedule/step_figures.h"
#include "schedule/tenant_book.h"

namespace kvasir {

// Keeps one Backlog, whose lists have room for all requests, and fills it in for each call of
// on_backlog. Engine thread only.
class BacklogBoard {
 public:
  // Keeps references: all must outlive it.
  BacklogBoard(const SchedulerOptions& options, const KvLayout& layout,
               const RequestQueues& requests, const TenantBook& tenants,
               const StepFigures& figures);

  void set_on_backlog(std::function<void(const Backlog&)> on_backlog) {
    on_backlog_ = std::move(on_backlog);
  }
  // Calls on_backlog, if it is set.
  void Publish();

 private:
  void FillTenants();
  Backlog::Job JobOf(const Request& request, uint32_t new_tokens) const;

  const KvLayout& layout_;
  const RequestQueues& requests_;
  const TenantBook& tenants_;
  const StepFigures& figures_;
  std::function<void(const Backlog&)> on_backlog_;
  Backlog backlog_;
};

}  // namespace kvasir
