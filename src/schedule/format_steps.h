// FormatSteps: how far rows may walk through their formats in a step of the engine.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kvasir/status.h"
#include "schedule/request.h"
#include "schedule/tenant_book.h"

namespace kvasir {

// Each step has one budget of walk steps. What drafts of text that is known take comes first, then
// what a draft model's drafts take, and the rows of the step have the rest. What a draft may take
// does not depend on others, who would show in its length. Tenants share the rest by
// weight, and the rows of a tenant equally. A row that needs more waits, and goes on with what
// others leave; a draft that needs more ends. Allocates only where tenants come. Engine thread
// only.
class FormatSteps {
 public:
  using Running = std::span<const std::unique_ptr<Request>>;

  // `budget`: for each step of the engine. Where nothing else runs, rows that wait get 5/2 of it.
  // `parallel`: rows of a step that may have drafts, at most.
  FormatSteps(uint64_t budget, uint32_t parallel) : budget_(budget), parallel_(parallel) {}

  void Begin() { left_ = budget_; }  // begins a step
  // Returns what the draft of a text that is known may take: all rows together a quarter of the
  // budget, whatever other rows do. So nothing about others shows in the length of such a draft.
  uint64_t of_known_draft() const;
  // Divides what is left of the step's budget among the rows that have formats.
  void Share(Running running, const TenantBook& tenants);
  // Gives drafts of a draft model 3/8 of the budget: all rows as much, whatever other rows do.
  void ShareWithDrafts(const TenantBook& tenants);
  // [tenants]: what each row of them has, or each draft of them.
  std::span<const double> of_rows() const { return of_rows_; }
  // Counts what a row or a draft took of the budget.
  void Take(uint64_t steps) { left_ -= std::min(left_, steps); }
  uint64_t left() const { return left_; }
  // Goes on with the rows that wait, and charges their tenants for the time: in what the step has
  // left or, if it has no rows, as long as nothing else runs. Returns whether a row waited.
  bool Continue(Running running, TenantBook& tenants, bool has_rows);
  // Returns the error of a request that walked too long between steps: some 10 s.
  static std::optional<Error> ErrorOf(const Request& request);

 private:
  const uint64_t budget_;
  const uint32_t parallel_;
  uint64_t left_ = budget_;      // of the current step's
  std::vector<double> of_rows_;  // [tenants]
};

}  // namespace kvasir
