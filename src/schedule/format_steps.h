// FormatSteps: how far rows may walk through their formats in a step of the engine.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kvasir/status.h"
#include "schedule/request_queues.h"
#include "schedule/tenant_book.h"

namespace kvasir {

// Each step has one budget of walk steps. Tenants share it by weight, and the rows of a tenant
// equally. A row that needs more waits, and goes on with what others leave. Allocates only where
// tenants come. Engine thread only.
class FormatSteps {
 public:
  // `budget`: for each step of the engine. Where nothing else runs, rows that wait get 5/2 of it.
  explicit FormatSteps(uint64_t budget) : budget_(budget) {}

  // Divides the budget of a step that has rows.
  void Share(const RequestQueues& requests, const TenantBook& tenants);
  std::span<const double> of_rows() const { return of_rows_; }  // [tenants]: for each row of them
  // Counts what a row took of the budget.
  void Take(uint64_t steps) { left_ -= std::min(left_, steps); }
  // Goes on with the rows that wait, and charges their tenants for the time: in what the step has
  // left or, if it has no rows, as long as nothing else runs. Returns whether a row waited.
  bool Continue(const RequestQueues& requests, TenantBook& tenants, bool has_rows);
  // Returns the error of a request that walked too long between steps: some 10 s.
  static std::optional<Error> ErrorOf(const Request& request);

 private:
  const uint64_t budget_;
  uint64_t left_ = 0;            // of the current step's
  std::vector<double> of_rows_;  // [tenants]
};

}  // namespace kvasir
