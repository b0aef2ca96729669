// Frequencies of the rotary embedding, in double with our own elementary functions.
#pragma once

#include <cstdint>
#include <vector>

#include "import/model_config.h"

namespace kvasir {

// inv_freq[i], i < head_dim/2, in radians per position: theta^(-2i/head_dim) (Su et al., 2021),
// then scaled: linear divides by factor (Chen et al., 2023); llama3 divides low frequencies by
// factor and blends between two wavelengths (Llama 3.1's model card); freq_factors divide one by
// one.
std::vector<double> RopeFrequencies(const RopeConfig& rope, uint32_t head_dim);

}  // namespace kvasir
