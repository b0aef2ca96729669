#include "schedule/answer_lengths.h"

#include <algorithm>
#include <cmath>

namespace kvasir {
namespace {

constexpr double kRise = 1.1;    // of the factor, for each preemption
constexpr double kDecay = 0.05;  // of what the factor has above 1, for each answer that ended

}  // namespace

void AnswerLengths::Ring::Add(uint32_t tokens) {
  lengths[next] = tokens;
  next = (next + 1) % kKept;
  size = std::min(size + 1, kKept);
}

void AnswerLengths::Add(uint32_t tenant, uint32_t tokens) {
  if (tenant != 0) tenants_[tenant].Add(tokens);
  all_.Add(tokens);
  factor_ -= (factor_ - 1) * kDecay;
}

double AnswerLengths::RestOf(const Ring& ring, uint32_t so_far) const {
  uint64_t sum = 0, count = 0;
  for (const uint32_t tokens : ring.all()) {
    if (tokens <= so_far) continue;
    sum += tokens;
    ++count;
  }
  if (ring.size < kEnough) return unknown_;
  // Where no known answer was longer, this one is a new kind: it may go on as long again.
  if (count == 0) return std::max<uint32_t>(so_far, 1);
  return static_cast<double>(sum) / static_cast<double>(count) - so_far;
}

uint32_t AnswerLengths::Expected(uint32_t tenant, uint32_t so_far) const {
  const double rest = RestOf(knows_tenant(tenant) ? tenants_[tenant] : all_, so_far);
  return so_far + static_cast<uint32_t>(std::ceil(rest * factor_));
}

uint32_t AnswerLengths::ExpectedOfTenant(uint32_t tenant, uint32_t so_far) const {
  return so_far + static_cast<uint32_t>(std::ceil(RestOf(tenants_[tenant], so_far)));
}

void AnswerLengths::RaiseFactor() { factor_ = std::min(factor_ * kRise, kMaxFactor); }

}  // namespace kvasir
