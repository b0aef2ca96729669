#include "engine/workload.h"

#include <algorithm>

namespace kvasir {

double Workload::WorkNs(uint64_t new_tokens, uint64_t answer_tokens) const {
  return static_cast<double>(new_tokens) * row_ns +
         static_cast<double>(answer_tokens) * step_ns / parallel;
}

Workload::Tenant& Workload::Of(std::string_view tenant) {
  if (tenants.empty()) tenants.emplace_back();
  const auto found = std::ranges::find(tenants, tenant, &Tenant::name);
  return found == tenants.end() ? tenants.front() : *found;
}

WaitEstimate EstimateWait(Workload& workload, std::string_view tenant, uint64_t new_tokens,
                          uint64_t answer_tokens) {
  const Workload::Tenant& own = workload.Of(tenant);
  const uint64_t answer = std::min<uint64_t>(answer_tokens, own.expected_answer);
  const double prefill_ns = static_cast<double>(new_tokens) * workload.row_ns;
  WaitEstimate estimate;
  if (workload.waiting > 0 || workload.running >= workload.parallel) {
    estimate.start_ns = workload.running_ns / std::max(workload.running, 1u) + own.waiting_ns;
    const double own_ns = own.waiting_ns + workload.WorkNs(new_tokens, answer);
    for (const Workload::Tenant& other : workload.tenants) {
      if (&other == &own) continue;
      estimate.start_ns += std::min(other.waiting_ns, own_ns * other.weight / own.weight);
    }
  }
  estimate.first_token_ns = estimate.start_ns + prefill_ns;
  estimate.end_ns = estimate.first_token_ns + static_cast<double>(answer) * workload.step_ns;
  estimate.knows_end = own.knows_answers || answer_tokens <= 1;
  return estimate;
}

}  // namespace kvasir
