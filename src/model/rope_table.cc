#include "model/rope_table.h"

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

}  // namespace

std::vector<double> RopeFrequencies(const RopeConfig& rope, uint32_t head_dim) {
  std::vector<double> frequencies(head_dim / 2);
  const double log_theta = Log(rope.theta);
  for (uint32_t i = 0; i < head_dim / 2; ++i) {
    double f = Exp(-2.0 * i / head_dim * log_theta);
    if (rope.type == RopeType::kLinear) f /= rope.factor;
    if (rope.type == RopeType::kLlama3) f = Llama3Scaled(rope, f);
    if (!rope.freq_factors.empty()) f /= rope.freq_factors[i];
    frequencies[i] = f;
  }
  return frequencies;
}

}  // namespace kvasir
