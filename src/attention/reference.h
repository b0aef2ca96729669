// The readable form of paged attention: the rules of portable-1 in plain loops over unpacked K and
// V. Tests compare the bits of every target with it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "format/kv_format.h"

namespace kvasir::reference {

// K or V of one head as read back from their packed form.
struct Numbers {
  KvFormat format;
  std::vector<float> x;      // [token][head_dim], before the scale
  std::vector<float> scale;  // [token]; 1 where the format has none
};

// Computes one query over the tokens of [0, limit) that it sees (`seen` [token]; empty: all): q
// [head_dim], already scaled -> [head_dim]. A softcap that is not 0 makes each score softcap *
// tanh(score). O(limit * head_dim).
std::vector<float> Attention(std::span<const float> q, const Numbers& k, const Numbers& v,
                             uint32_t limit, const std::vector<bool>& seen = {}, float softcap = 0);

// x as integers in [-32767, 32767] and their common scale (docs/numerics.md, rule 8).
struct Rounded {
  std::vector<int> x;
  float scale;
};
Rounded RoundToInt16(std::span<const float> x);

// Computes e^x as the kernels do (kernels: Exp in simd/vec16-inl.h).
float Exp(float x);

}  // namespace kvasir::reference
