// Passes over a whole row of logits. The compiler vectorises them (logit_scan.cc is compiled for
// that), each reads the row once, and maxima of blocks let later code read only a few blocks.
#pragma once

#include <cstdint>
#include <span>

#include "kvasir/types.h"

namespace kvasir {

constexpr uint32_t kLogitBlock = 128;
constexpr uint32_t LogitBlocks(uint32_t vocab_size) {
  return (vocab_size + kLogitBlock - 1) / kLogitBlock;
}

bool AllFinite(std::span<const float> logits);
// block_max[b]: the largest of logits [b * kLogitBlock, (b + 1) * kLogitBlock), if none is NaN.
// Returns whether all are finite.
bool MaxOfBlocks(std::span<const float> logits, float* block_max);

// out[i]: logits[i] of legal tokens (bit i % 64 of word i / 64), `other` of the rest. May be the
// same row. Returns whether all logits are finite.
bool CopyLegal(std::span<const float> logits, std::span<const uint64_t> legal, float other,
               float* out);

// Appends the ids of logits >= threshold, ascending, to `ids`; returns how many there are, but
// stops at `capacity` of them.
uint32_t CollectAtLeast(std::span<const float> logits, const float* block_max, float threshold,
                        TokenId* ids, uint32_t capacity);

// Returns how many logits are in [low, high].
uint32_t CountBetween(std::span<const float> logits, const float* block_max, float low, float high);

// Returns the share of the true sum within which a sum of so many numbers >= 0 is, added in double
// in any order (Higham, Accuracy and Stability of Numerical Algorithms, 4.2), up to 2^44 of them.
constexpr double RoundingOf(size_t terms) { return static_cast<double>(terms) * 0x1.01p-53; }

// Bounds of a sum. The functions below use block_max to skip blocks that add nothing.
struct Interval {
  double low, high;
};
struct ExpSums {
  Interval all, part;
};
// Sums of exp((l - max) / temperature), added in double from the first to the last or from the
// largest down, each within 2e-6 of itself: of all logits (0 for kPart) and of those that are at
// least `threshold`.
enum class ExpSumsOf : uint8_t { kPart, kAllAndPart };
ExpSums QuickExpSums(std::span<const float> logits, const float* block_max, float max,
                     float temperature, float threshold, ExpSumsOf which);
// Returns the first of them (ExpWeights adds it), within 6e-11 and vocab * 2^-52 of itself.
Interval CloseExpSum(std::span<const float> logits, const float* block_max, float max,
                     double temperature);
// weights[i] = Exp((double{l[i]} - max) / temperature), each with the bits of simd/math.h's Exp.
// Returns their sum, added from the first to the last.
double ExpWeights(std::span<const float> logits, float max, double temperature, double* weights);

}  // namespace kvasir
