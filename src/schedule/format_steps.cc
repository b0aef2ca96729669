#include "schedule/format_steps.h"

#include "base/clock.h"

namespace kvasir {
namespace {

constexpr uint64_t kMostSteps = 2'500'000'000;  // of a request, between steps of the engine

// Steps that a draft may take, at most: more would seldom be a draft that is worth it.
constexpr uint64_t kMostOfKnownDraft = 4096;
constexpr uint64_t kMostOfModelDraft = 16384;

// [tenants]: turns numbers of rows into a row's share of its tenant's weight, and returns the sum
// of all rows.
double DivideByTenants(const TenantBook& tenants, std::vector<double>& of_rows) {
  double sum = 0;
  for (uint32_t i = 0; i < of_rows.size(); ++i) {
    if (of_rows[i] == 0) continue;
    sum += tenants.weight(i);
    of_rows[i] = tenants.weight(i) / of_rows[i];
  }
  return sum;
}

}  // namespace

uint64_t FormatSteps::of_known_draft() const {
  return std::min(kMostOfKnownDraft, budget_ / 4 / parallel_);
}

void FormatSteps::Share(Running running, const TenantBook& tenants) {
  of_rows_.assign(tenants.size(), 0);
  for (const auto& request : running) {
    for (const auto& sequence : request->answer.sequences) {
      if (!sequence->done && sequence->format) ++of_rows_[request->tenant];
    }
  }
  const double sum = DivideByTenants(tenants, of_rows_);
  if (sum == 0) return;
  for (double& steps : of_rows_) steps *= static_cast<double>(left_) / sum;
}

void FormatSteps::ShareWithDrafts(const TenantBook& tenants) {
  const uint64_t of_draft = std::min(kMostOfModelDraft, budget_ * 3 / 8 / parallel_);
  of_rows_.assign(tenants.size(), static_cast<double>(of_draft));
}

bool FormatSteps::Continue(Running running, TenantBook& tenants, bool has_rows) {
  of_rows_.assign(tenants.size(), 0);
  for (const auto& request : running) {
    for (const auto& sequence : request->answer.sequences) {
      if (sequence->waits_for_format()) ++of_rows_[request->tenant];
    }
  }
  double sum = DivideByTenants(tenants, of_rows_);
  if (sum == 0) return false;
  auto left = static_cast<double>(has_rows ? left_ : budget_ / 2 * 5);
  for (const auto& request : running) {
    const double weight = of_rows_[request->tenant];
    for (const auto& sequence : request->answer.sequences) {
      if (!sequence->waits_for_format()) continue;
      // What others did not need is for those that come after them. Each gets on, whatever its
      // share: of a weight of 0.001 beside 1,000 it is less than one step.
      WalkSteps steps(1 + static_cast<uint64_t>(left * weight / std::max(sum, weight)));
      const uint64_t start_ns = MonotonicNs();
      sequence->format_choice->Run(steps);
      const auto taken_ns = static_cast<double>(MonotonicNs() - start_ns);
      left -= std::min(left, static_cast<double>(steps.taken()));
      sum -= weight;
      request->answer.format_steps += steps.taken();
      if (!request->spec.only_when_idle) tenants.Charge(request->tenant, taken_ns);
    }
  }
  return true;
}

std::optional<Error> FormatSteps::ErrorOf(const Request& request) {
  if (request.answer.format_steps <= kMostSteps) return std::nullopt;
  const AnswerFormat& format = *request.spec.format;
  return Error{Code::kInvalidArgument,
               "to find which tokens this grammar allows next took more than 10 s; give it fewer "
               "rules and classes that can read the same text",
               format.text ? format.text->field : "tools"};
}

}  // namespace kvasir
