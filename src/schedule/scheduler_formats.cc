// Formats of answers: what a step may take to find legal tokens, and rows that wait for them.
#include <algorithm>

#include "base/clock.h"
#include "schedule/scheduler.h"

namespace kvasir {
namespace {

// Of a request, between steps: some 10 s.
constexpr uint64_t kMostFormatSteps = 2'500'000'000;

std::string FieldOf(const AnswerFormat& format) {
  return format.text ? format.text->field : "tools";
}

}  // namespace

// [tenants_]: turns numbers of rows into a row's share of its tenant's weight, and returns the sum
// of all rows.
double Scheduler::DivideByTenants(std::vector<double>& of_rows) const {
  double sum = 0;
  for (size_t i = 0; i < of_rows.size(); ++i) {
    if (of_rows[i] == 0) continue;
    const double weight = tenants_.weight(static_cast<uint32_t>(i));
    sum += weight;
    of_rows[i] = weight / of_rows[i];
  }
  return sum;
}

// Divides the step's budget among the tenants that have formats, by weight, and what a tenant gets
// among its rows.
void Scheduler::ShareFormatSteps() {
  format_steps_ = options_.format_steps;
  std::vector<double>& of_rows = row_format_steps_;
  of_rows.assign(tenants_.size(), 0);
  for (const auto& request : requests_.running) {
    for (const auto& sequence : request->sequences) {
      if (!sequence->done && sequence->format) ++of_rows[request->tenant];
    }
  }
  const double sum = DivideByTenants(of_rows);
  if (sum == 0) return;
  for (double& steps : of_rows) steps *= static_cast<double>(options_.format_steps) / sum;
}

// Goes on with what rows wait for: in what the step has left, or while nothing else runs, for as
// long as that is so.
void Scheduler::ContinueFormats() {
  std::vector<double>& of_rows = row_format_steps_;
  of_rows.assign(tenants_.size(), 0);
  for (const auto& request : requests_.running) {
    for (const auto& sequence : request->sequences) {
      if (sequence->waits_for_format()) ++of_rows[request->tenant];
    }
  }
  double sum = DivideByTenants(of_rows);
  if (sum == 0) return;
  auto left = static_cast<double>(rows_.empty() ? options_.format_steps / 2 * 5 : format_steps_);
  for (const auto& request : requests_.running) {
    const double weight = of_rows[request->tenant];
    for (const auto& sequence : request->sequences) {
      if (!sequence->waits_for_format()) continue;
      // What others did not need is for those that come after them. Each gets on, whatever its
      // share: of a weight of 0.001 beside 1,000 it is less than one step.
      WalkSteps steps(1 + static_cast<uint64_t>(left * weight / std::max(sum, weight)));
      const uint64_t start_ns = MonotonicNs();
      sequence->format_choice->Run(steps);
      const auto taken_ns = static_cast<double>(MonotonicNs() - start_ns);
      left -= std::min(left, static_cast<double>(steps.taken()));
      sum -= weight;
      request->format_steps += steps.taken();
      if (request->spec.only_when_idle) continue;
      tenants_.Charge(request->tenant, taken_ns);
    }
    if (request->done() || request->format_steps <= kMostFormatSteps) continue;
    const Error error{Code::kInvalidArgument,
                      "to find which tokens this grammar allows next took more than 10 s; give it "
                      "fewer rules and classes that can read the same text",
                      FieldOf(*request->spec.format)};
    EndRequest(*request, FinishReason::kError, &error);
  }
  requests_.CollectEnded();
}

}  // namespace kvasir
