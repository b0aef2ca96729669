// Router: which experts a row goes to, and with what weights.
#pragma once

#include <cstdint>
#include <span>

namespace kvasir {

// The weights of the experts that a router chose: softmax over those alone, over all experts, or
// over all and then divided by the sum of the chosen. Never renumber: it is part of CanonicalText.
enum class Routing : uint8_t { kChosen = 0, kAll = 1, kAllNormed = 2 };

// Fills `chosen` with the experts whose logits are largest, ties to the lower index, in ascending
// order, and `weights` with theirs. Sums are in f32 in the order of the index, from 0; e^x is
// rounded to f32 once; divisions are IEEE's. False, and nothing is filled, where a logit is not
// finite. O(experts * chosen). REQUIRES: 1 <= chosen.size() == weights.size() <= logits.size().
bool ChooseExperts(Routing routing, std::span<const float> logits, std::span<uint32_t> chosen,
                   std::span<float> weights);

}  // namespace kvasir
