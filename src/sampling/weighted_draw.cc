#include "sampling/weighted_draw.h"

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "base/random.h"
#include "sampling/logit_scan.h"
#include "simd/math.h"

namespace kvasir {
namespace {

constexpr double FractionOf(uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1p-53; }

}  // namespace

WeightedDraw::WeightedDraw(uint32_t vocab_size)
    : bounds_(LogitBlocks(vocab_size)), running_(LogitBlocks(vocab_size)) {}

uint64_t WeightedDraw::BytesFor(uint32_t vocab_size) {
  return uint64_t{LogitBlocks(vocab_size)} * 2 * sizeof(double);
}

uint64_t WeightedDraw::bytes() const {
  return (bounds_.capacity() + running_.capacity()) * sizeof(double);
}

void WeightedDraw::Zero() {
  logits_ = {};
  std::ranges::fill(bounds_, 0.0);
  std::ranges::fill(running_, 0.0);
}

void WeightedDraw::Start(std::span<const float> logits, std::span<const float> block_max, float max,
                         float temperature, double u, double least) {
  KV_DCHECK(block_max.size() == bounds_.size());
  logits_ = logits;
  max_ = max;
  temperature_ = temperature;
  tries_ = 0;
  counter_ = Mix64(std::bit_cast<uint64_t>(u));
  ExpWeights(block_max, max, temperature, bounds_.data());
  Raise(least);
}

void WeightedDraw::Raise(double least) {
  least_ = least;
  double sum = 0;
  for (size_t block = 0; block < bounds_.size(); ++block) {
    if (bounds_[block] >= least) sum += bounds_[block];
    running_[block] = sum;
  }
}

std::optional<Candidate> WeightedDraw::Next() {
  static_assert(kLogitBlock == 128);
  while (tries_ < kMaxTries) {
    ++tries_;
    const double place = FractionOf(Mix64(counter_++)) * running_.back();
    const uint64_t bits = Mix64(counter_++);
    const auto block = static_cast<size_t>(
        std::upper_bound(running_.begin(), running_.end(), place) - running_.begin());
    if (block == running_.size()) continue;  // by rounding
    const size_t id = block * kLogitBlock + bits % kLogitBlock;
    if (id >= logits_.size()) continue;
    const double weight = Exp((double{logits_[id]} - max_) / temperature_);
    if (weight > FractionOf(bits) * bounds_[block] && weight >= least_) {
      return Candidate{weight, static_cast<TokenId>(id)};
    }
  }
  return std::nullopt;
}

}  // namespace kvasir
