#include "sampling/weight_order.h"

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "sampling/logit_scan.h"

namespace kvasir {
namespace {

// Weights in (2^-(i + 1), 2^-i] fall into 128 buckets, those below 2^-63 into the last one.
constexpr uint32_t kNumBuckets = 64 * 128;

uint32_t BucketOf(double weight) {
  const uint64_t below_one = std::bit_cast<uint64_t>(1.0) - std::bit_cast<uint64_t>(weight);
  return static_cast<uint32_t>(std::min<uint64_t>(below_one >> 45, kNumBuckets - 1));
}

}  // namespace

WeightOrder::WeightOrder(uint32_t vocab_size)
    : weights_(vocab_size),
      order_(vocab_size),
      ends_(kNumBuckets),
      sums_(kNumBuckets),
      is_sorted_(kNumBuckets) {}

uint64_t WeightOrder::BytesFor(uint32_t vocab_size) {
  return uint64_t{vocab_size} * (sizeof(double) + sizeof(uint32_t)) +
         uint64_t{kNumBuckets} * (sizeof(uint32_t) + sizeof(double) + sizeof(uint8_t));
}

uint64_t WeightOrder::bytes() const {
  return (weights_.capacity() + sums_.capacity()) * sizeof(double) +
         (order_.capacity() + ends_.capacity()) * sizeof(uint32_t) + is_sorted_.capacity();
}

void WeightOrder::Zero() {
  std::ranges::fill(weights_, 0.0);
  std::ranges::fill(order_, 0u);
  std::ranges::fill(sums_, 0.0);
}

double WeightOrder::Fill(std::span<const float> logits, float max, float temperature) {
  total_ = ExpWeights(logits, max, temperature, weights_.data());
  std::fill(ends_.begin(), ends_.end(), 0);
  std::fill(sums_.begin(), sums_.end(), 0.0);
  std::fill(is_sorted_.begin(), is_sorted_.end(), uint8_t{0});
  at_bucket_ = 0;
  for (const double weight : weights_) {
    const uint32_t bucket = BucketOf(weight);
    ++ends_[bucket];
    sums_[bucket] += weight;
  }
  uint32_t begin = 0;
  for (uint32_t& end : ends_) {  // begins now; ends after all tokens are placed
    const uint32_t size = end;
    end = begin;
    begin += size;
  }
  for (uint32_t id = 0; id < weights_.size(); ++id) order_[ends_[BucketOf(weights_[id])]++] = id;
  return total_;
}

void WeightOrder::Sort(size_t bucket) {
  if (is_sorted_[bucket] != 0) return;
  is_sorted_[bucket] = 1;
  const auto begin = order_.begin() + static_cast<ptrdiff_t>(begin_of(bucket));
  const auto better = [&](uint32_t a, uint32_t b) {
    return weights_[a] != weights_[b] ? weights_[a] > weights_[b] : a < b;
  };
  // Equal weights are already in order.
  if (!std::is_sorted(begin, order_.begin() + ends_[bucket], better)) {
    std::sort(begin, order_.begin() + ends_[bucket], better);
  }
}

Candidate WeightOrder::At(size_t i) {
  KV_DCHECK(i < order_.size());
  if (i < begin_of(at_bucket_)) at_bucket_ = 0;
  while (i >= ends_[at_bucket_]) ++at_bucket_;
  Sort(at_bucket_);
  return {weights_[order_[i]], static_cast<TokenId>(order_[i])};
}

std::optional<size_t> WeightOrder::Crossing(double x) {
  // Limit of the error of both ways of adding, and of rounding x +- error.
  const double error = 2 * RoundingOf(weights_.size() + 2) * total_;
  double sum = 0;
  for (size_t bucket = 0; bucket < kNumBuckets; ++bucket) {
    if (sum + sums_[bucket] <= x - error) {
      sum += sums_[bucket];
      continue;
    }
    Sort(bucket);
    for (size_t i = begin_of(bucket); i < ends_[bucket]; ++i) {
      sum += weights_[order_[i]];
      if (sum > x + error) return i;
      if (sum > x - error) return std::nullopt;
    }
  }
  return std::nullopt;
}

}  // namespace kvasir
