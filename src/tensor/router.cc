#include "tensor/router.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "simd/math.h"

namespace kvasir {
namespace {

// Chooses the indices of the largest logits, ascending.
void ChooseLargest(std::span<const float> logits, std::span<uint32_t> chosen) {
  size_t held = 0;  // chosen[0, held) by falling logit, then by index
  for (uint32_t i = 0; i < logits.size(); ++i) {
    size_t at = held;
    while (at > 0 && logits[chosen[at - 1]] < logits[i]) --at;
    if (at == chosen.size()) continue;
    held = std::min(held + 1, chosen.size());
    std::copy_backward(chosen.begin() + at, chosen.begin() + held - 1, chosen.begin() + held);
    chosen[at] = i;
  }
  std::ranges::sort(chosen);
}

}  // namespace

bool ChooseExperts(Routing routing, std::span<const float> logits, std::span<uint32_t> chosen,
                   std::span<float> weights) {
  KV_DCHECK(!chosen.empty() && chosen.size() == weights.size() && chosen.size() <= logits.size());
  if (!std::ranges::all_of(logits, [](float x) { return std::isfinite(x); })) return false;
  ChooseLargest(logits, chosen);
  const double largest = *std::ranges::max_element(logits);
  const auto power = [&](float x) { return static_cast<float>(Exp(double{x} - largest)); };
  const auto divide = [&](float sum) {
    for (float& weight : weights) weight /= sum;
  };
  const auto sum_of_chosen = [&] {
    float sum = 0;
    for (const float weight : weights) sum += weight;
    return sum;
  };
  for (size_t i = 0; i < chosen.size(); ++i) weights[i] = power(logits[chosen[i]]);
  if (routing != Routing::kChosen) {
    float sum = 0;
    for (const float x : logits) sum += power(x);
    divide(sum);
  }
  if (routing != Routing::kAll) divide(sum_of_chosen());
  return true;
}

}  // namespace kvasir
