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
  tenants_[tenant].Add(tokens);
  all_.Add(tokens);
  factor_ -= (factor_ - 1) * kDecay;
}

uint32_t AnswerLengths::Expected(uint32_t tenant, uint32_t so_far) const {
  const Ring& ring = tenants_[tenant].size >= kEnough ? tenants_[tenant] : all_;
  uint64_t sum = 0, count = 0;
  for (const uint32_t tokens : ring.all()) {
    if (tokens <= so_far) continue;
    sum += tokens;
    ++count;
  }
  // Where no known answer was longer, this one is a new kind: it may go on as long again.
  double rest = ring.size < kEnough ? unknown_ : std::max<uint32_t>(so_far, 1);
  if (count > 0 && ring.size >= kEnough) rest = static_cast<double>(sum) / count - so_far;
  return so_far + static_cast<uint32_t>(std::ceil(rest * factor_));
}

void AnswerLengths::RaiseFactor() { factor_ = std::min(factor_ * kRise, kMaxFactor); }

}  // namespace kvasir
