// WeightOrder: the weights of all tokens from the largest down, sorted only where somebody looks.
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
// sorted when it is first looked into. Of equal weights the lowest id is first. Allocates nothing
// after construction. One thread at a time.
class WeightOrder {
 public:
  explicit WeightOrder(uint32_t vocab_size);
  static uint64_t BytesFor(uint32_t vocab_size);  // what the constructor allocates, exactly
  uint64_t bytes() const;

  // The weights Exp((l - max) / temperature). Returns their sum, added by ids. O(vocab).
  double Fill(std::span<const float> logits, float max, float temperature);
  // The i-th largest.
  Candidate At(size_t i);
  // The first place at which the running sum of the largest exceeds x, and that sum within `error`.
  // nullopt: sums of whole buckets are too coarse to tell, or the sum of all does not exceed it.
  struct Place {
    size_t index;
    double sum;
  };
  std::optional<Place> Crossing(double x, double error);
  // How far a sum that is made of whole buckets may be from the running sum itself, for sums up to
  // `total`.
  static double ErrorOf(double total) { return 1e-10 * total; }

 private:
  void Sort(size_t bucket);
  size_t begin_of(size_t bucket) const { return bucket == 0 ? 0 : ends_[bucket - 1]; }

  std::vector<double> weights_;  // [vocab] by id
  std::vector<uint32_t> order_;  // [vocab] ids, bucket by bucket
  // [bucket]
  std::vector<uint32_t> ends_;
  std::vector<double> sums_;
  std::vector<uint8_t> is_sorted_;
  size_t at_bucket_ = 0;  // where At looked last
};

}  // namespace kvasir
