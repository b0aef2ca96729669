// How one token's K and V of a head are packed: integer code, so that every target writes the same
// bytes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "format/kv_format.h"

namespace kvasir {

// k [head_dim] goes to a column of a tile of 16 tokens: tile[i * 16 + lane].
void PackKey(const float* k, KvFormat format, uint32_t head_dim, uint32_t lane, std::byte* tile);

// v [head_dim] goes to a row, zero up to value_stride.
void PackValue(const float* v, KvFormat format, uint32_t head_dim, uint32_t value_stride,
               std::byte* row);

}  // namespace kvasir
