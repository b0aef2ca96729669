// WeightedDraw: draws random tokens in proportion to their weights, without computing all weights.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "sampling/weight_order.h"

namespace kvasir {

// Rejection sampling (von Neumann, 1951). Weights are w = Exp((l - max) / temperature); a block's
// bound is the weight of its largest logit, and blocks whose bound is below `least` count 0. A try
// takes two random numbers, Mix64 of a counter that begins at Mix64(the bits of u):
//   the first is a fraction (its upper 53 bits) of the sum of all bounds, added from the first
//   block to the last, and chooses the first block at which the running sum exceeds it;
//   the second chooses a token of the block by its lower 7 bits. The token is drawn if its weight
//   is at least `least` and exceeds bound * fraction.
// Each block that counts has a token with the bound's weight, so at least one try of 128 succeeds.
//
// Allocates nothing after construction. One thread at a time.
class WeightedDraw {
 public:
  explicit WeightedDraw(uint32_t vocab_size);
  static uint64_t BytesFor(uint32_t vocab_size);  // exactly what the constructor allocates
  uint64_t bytes() const;
  void Zero();

  // block_max: of `logits`, by MaxOfBlocks; max: the largest. `logits` are read until the last
  // Next. Tokens of a weight below `least` are not drawn; least <= 1. O(vocab / kLogitBlock).
  void Start(std::span<const float> logits, std::span<const float> block_max, float max,
             float temperature, double u, double least);
  // Raises `least` for the draws that follow. O(vocab / kLogitBlock).
  void Raise(double least);
  // nullopt after kMaxTries tries in all, which has a probability below 1e-200.
  std::optional<Candidate> Next();
  static constexpr uint32_t kMaxTries = 1 << 16;

 private:
  std::span<const float> logits_;
  float max_ = 0, temperature_ = 1;
  double least_ = 0;
  uint64_t counter_ = 0;
  uint32_t tries_ = 0;
  std::vector<double> bounds_, running_;  // [block]
};

}  // namespace kvasir
