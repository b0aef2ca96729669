// Frequencies of the rotary embedding, in double with our own elementary functions.
#pragma once

#include <cstdint>
#include <vector>

#include "import/model_config.h"

namespace kvasir {

// inv_freq[i], i < d/2, in radians per position, d being the rotated numbers of a head:
// theta^(-2i/d) (Su et al., 2021), then scaled: linear divides by factor (Chen et al., 2023);
// llama3 divides low frequencies by factor and blends between two wavelengths (Llama 3.1's model
// card); yarn divides by factor the pairs that turn less than beta_slow times in the original
// context, does not change those that turn more than beta_fast times, and blends between them by a
// ramp over i (Peng et al., 2023); freq_factors divide each frequency by its own factor, which is
// all that longrope does (Ding et al., 2024).
std::vector<double> RopeFrequencies(const RopeConfig& rope, uint32_t head_dim);

}  // namespace kvasir
