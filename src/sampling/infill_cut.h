// CutForInfill: keeps what goes on in a gap with some certainty (llama.cpp's sampler `infill`).
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string_view>

#include "kvasir/types.h"
#include "sampling/weight_order.h"

namespace kvasir {

// What the cut needs to know of tokens.
struct InfillWords {
  std::function<std::string_view(TokenId)> text;  // "": no text
  std::function<bool(TokenId)> ends;              // an answer
  std::optional<TokenId> end;                     // one that does, if it may be taken
};

// `candidates`: from the largest weight down. Moves those that are kept to the front, in order,
// with their weights, and returns how many; at least 1. With p = weight / sum of all n, in this
// order:
//   where 3 n P(tokens that end) > P(others), only tokens that end are kept
//   where a text begins another one, or equals it, the more likely token takes over the p of the
//     other, which goes; by pairs from the first
//   others than ends with p < 0.2 go; where only ends are left, `words.end` alone is kept, or
//     without one the most likely of all
//   with p / sum of what is left: others than ends with p < 1 / (their number + 1) go
// O(n^2 x text). REQUIRES: 1 <= n <= kMaxInfillCandidates.
size_t CutForInfill(std::span<Candidate> candidates, const InfillWords& words);

}  // namespace kvasir
