// The readable form of paged attention: what portable-1 prescribes, in plain loops over unpacked K
// and V. Tests hold every target to these bits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvasir::reference {

// One query over tokens [0, limit): q [head_dim], already scaled; k, v [limit][head_dim] as read
// back from their packed form -> [head_dim]. O(limit * head_dim).
std::vector<float> Attention(std::span<const float> q, std::span<const float> k,
                             std::span<const float> v, uint32_t limit);

// e^x as the kernels compute it (kernels: Exp in simd/vec16-inl.h).
float Exp(float x);

}  // namespace kvasir::reference
