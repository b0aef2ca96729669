// Packs one token's K and V of a head with integer code and IEEE operations, so that every CPU
// writes the same bytes. Layouts: kv_format.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "format/kv_format.h"

namespace kvasir {

// Packs k [head_dim] as token `lane` of a run of 16, and its scale into scales[lane] (not written
// for a format without scales). Writes no byte of another token; bytes of padding become zeros.
void PackKey(const float* k, KvFormat format, uint32_t head_dim, uint32_t lane, std::byte* run,
             uint16_t* scales);
void PackValue(const float* v, KvFormat format, uint32_t head_dim, uint32_t lane, std::byte* run,
               uint16_t* scales);

// Returns the stored number of dim `i` of token `lane`, without its scale.
float KeyNumber(KvFormat format, const std::byte* run, uint32_t lane, uint32_t i);
float ValueNumber(KvFormat format, uint32_t head_dim, const std::byte* run, uint32_t lane,
                  uint32_t i);

}  // namespace kvasir
