// WeightOrder: the weights of all tokens from the largest down, sorted on demand.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kvasir/types.h"

namespace kvasir {

struct Candidate {
  double weight;
  TokenId id;
};

// Fill puts tokens into buckets by the high bits of their weights, 128 to an octave; a bucket is
// sorted at its first use. Of equal weights the lowest id is first. Allocates nothing
// after construction. One thread at a time.
class WeightOrder {
 public:
  explicit WeightOrder(uint32_t vocab_size);
  static uint64_t BytesFor(uint32_t vocab_size);  // exactly what the constructor allocates
  uint64_t bytes() const;
  void Zero();

  // Takes the weights Exp((l - max) / temperature). Returns their sum, added by ids. O(vocab).
  double Fill(std::span<const float> logits, float max, float temperature);
  // Returns the i-th largest.
  Candidate At(size_t i);
  // Returns the first place at which the running sum of the largest, added from the largest down,
  // exceeds x. nullopt when sums of whole buckets are too coarse, or the sum of all does not exceed
  // x.
  std::optional<size_t> Crossing(double x);

 private:
  void Sort(size_t bucket);
  size_t begin_of(size_t bucket) const { return bucket == 0 ? 0 : ends_[bucket - 1]; }

  std::vector<double> weights_;  // [vocab] by id
  std::vector<uint32_t> order_;  // [vocab] ids, bucket by bucket
  // [bucket]
  std::vector<uint32_t> ends_;
  std::vector<double> sums_;
  std::vector<uint8_t> is_sorted_;
  double total_ = 0;      // what Fill returned
  size_t at_bucket_ = 0;  // the bucket of the last call of At
};

}  // namespace kvasir
