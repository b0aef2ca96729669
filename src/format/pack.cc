#include "format/pack.h"

#include "simd/half.h"

namespace kvasir {

void PackKey(const float* k, KvFormat format, uint32_t head_dim, uint32_t lane, std::byte* tile) {
  if (format == KvFormat::kF32) {
    float* column = reinterpret_cast<float*>(tile) + lane;
    for (uint32_t i = 0; i < head_dim; ++i) column[size_t{i} * 16] = k[i];
    return;
  }
  uint16_t* column = reinterpret_cast<uint16_t*>(tile) + lane;
  for (uint32_t i = 0; i < head_dim; ++i) {
    column[size_t{i} * 16] = format == KvFormat::kF16 ? ToF16(k[i]) : ToBf16(k[i]);
  }
}

void PackValue(const float* v, KvFormat format, uint32_t head_dim, uint32_t value_stride,
               std::byte* row) {
  for (uint32_t i = 0; i < value_stride; ++i) {
    const float x = i < head_dim ? v[i] : 0.0f;
    if (format == KvFormat::kF32) {
      reinterpret_cast<float*>(row)[i] = x;
    } else {
      reinterpret_cast<uint16_t*>(row)[i] = format == KvFormat::kF16 ? ToF16(x) : ToBf16(x);
    }
  }
}

}  // namespace kvasir
