#include "model/rope_table.h"

#include <algorithm>

#include "simd/math.h"

namespace kvasir {
namespace {

double Llama3Scaled(const RopeConfig& rope, double frequency) {
  const double wavelength = 2 * 3.14159265358979323846 / frequency;
  if (wavelength < rope.original_max_positions / rope.high_freq_factor) return frequency;
  if (wavelength > rope.original_max_positions / rope.low_freq_factor) {
    return frequency / rope.factor;
  }
  const double smooth = (rope.original_max_positions / wavelength - rope.low_freq_factor) /
                        (rope.high_freq_factor - rope.low_freq_factor);
  return (1 - smooth) * frequency / rope.factor + smooth * frequency;
}

// Where yarn's ramp over the pairs begins and ends.
struct YarnRange {
  double low, high;
};

YarnRange YarnRangeOf(const RopeConfig& rope, uint32_t dims) {
  const auto pair_of_turns = [&](double turns) {
    return dims * Log(rope.original_max_positions / (turns * 2 * 3.14159265358979323846)) /
           (2 * Log(rope.theta));
  };
  double low = std::clamp(pair_of_turns(rope.beta_fast), 0.0, 2.0 * dims);
  double high = std::clamp(pair_of_turns(rope.beta_slow), -1.0, dims - 1.0);
  if (rope.truncate) {  // floor and ceil without libm
    low = static_cast<int>(low);
    high = dims - static_cast<int>(dims - high);
  }
  if (low == high) high += 0.001;
  return {low, high};
}

double YarnScaled(const RopeConfig& rope, const YarnRange& range, uint32_t pair, double frequency) {
  const double ramp = std::clamp((pair - range.low) / (range.high - range.low), 0.0, 1.0);
  return frequency / rope.factor * ramp + frequency * (1 - ramp);
}

}  // namespace

std::vector<double> RopeFrequencies(const RopeConfig& rope, uint32_t head_dim) {
  const uint32_t dims = rope.rotated_dims.value_or(head_dim);
  std::vector<double> frequencies(dims / 2);
  const double log_theta = Log(rope.theta);
  const bool yarn = rope.type == RopeType::kYarn;
  const YarnRange range = yarn ? YarnRangeOf(rope, dims) : YarnRange{};
  for (uint32_t i = 0; i < dims / 2; ++i) {
    double f = Exp(-2.0 * i / dims * log_theta);
    if (yarn) f = YarnScaled(rope, range, i, f);
    if (rope.type == RopeType::kLinear) f /= rope.factor;
    if (rope.type == RopeType::kLlama3) f = Llama3Scaled(rope, f);
    if (!rope.freq_factors.empty()) f /= rope.freq_factors[i];
    frequencies[i] = f;
  }
  return frequencies;
}

}  // namespace kvasir
