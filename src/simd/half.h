// Conversions between f32 and the 16-bit formats, in integer code: the reference for every target.
#pragma once

#include <cstdint>
#include <cstring>

namespace kvasir {

inline uint32_t BitsOf(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}
inline float FloatOf(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

inline float FromBf16(uint16_t h) { return FloatOf(uint32_t{h} << 16); }

// Rounds to nearest even; NaN stays NaN (quiet).
inline uint16_t ToBf16(float x) {
  const uint32_t bits = BitsOf(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

inline float FromF16(uint16_t h) {
  const uint32_t sign = uint32_t{h & 0x8000u} << 16;
  const uint32_t exponent = (h >> 10) & 31, mantissa = h & 0x3ffu;
  if (exponent == 31)
    return FloatOf(sign | 0x7f800000u | (mantissa << 13) | (mantissa ? 0x400000u : 0));
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24 is exact in f32
    const float value = static_cast<float>(mantissa) * 0x1p-24f;
    return FloatOf(BitsOf(value) | sign);
  }
  return FloatOf(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

// Rounds to nearest even, saturating at 65504; NaN stays NaN. Without branches, so that loops of it
// become vectors.
inline uint16_t ToF16(float x) {
  const uint32_t bits = BitsOf(x);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1);
  // Adding 0.5 aligns the ulp of the sum with 2^-24, so the addition rounds to nearest even.
  const uint32_t shifted = BitsOf(FloatOf(magnitude) + 0.5f);
  const uint32_t normal = (rounded - 0x38000000u) >> 13, subnormal = shifted - 0x3f000000u;
  const auto select = [](bool first, uint32_t a, uint32_t b) {
    return b ^ ((a ^ b) & -uint32_t{first});
  };
  uint32_t half = select(magnitude < 0x38800000u, subnormal, normal);  // below 2^-14
  half = select(magnitude >= 0x477fe000u, 0x7bff, half);               // from 65504 on
  half = select(magnitude > 0x7f800000u, 0x7e00, half);
  return static_cast<uint16_t>(sign | half);
}

}  // namespace kvasir
