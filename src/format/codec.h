// Codecs of the scaled formats: convert one number to a code and back, and compute the scale of a
// token's numbers. Integer code and IEEE operations define the result on every CPU
// (docs/numerics.md).
#pragma once

#include <cstdint>
#include <span>

#include "format/kv_format.h"
#include "simd/half.h"

namespace kvasir {

// nf4 (QLoRA, Dettmers et al., 2023): its levels x 127, rounded to int8.
inline constexpr int8_t kNf4Levels[16] = {-127, -88, -67, -50, -36, -23, -12, 0,
                                          10,   20,  31,  43,  56,  71,  92,  127};
// int4: code = number + kInt4Bias.
inline constexpr int kInt4Bias = 8;

// Returns the scale that x's numbers are divided by, rounded to bf16 (to even): amax / the format's
// largest number; int4: the first x of largest magnitude / -8. 0 if amax < 2^-100: then all codes
// are those of 0. NaN if any x is not finite. REQUIRES: the format is scaled.
uint16_t ScaleOf(KvFormat format, std::span<const float> x);

namespace codec {

inline constexpr uint32_t kInfinityBits = 0x7f800000u;

// Rounds |y| to the nearest number with f16's exponents and `mantissa` bits of mantissa.
inline uint8_t EncodeFp8(float y, uint32_t mantissa, uint32_t max_code) {
  const uint32_t bits = BitsOf(y), magnitude = bits & 0x7fffffffu;
  if (magnitude > kInfinityBits) return 0;
  uint32_t code;
  if (magnitude < 0x38800000u) {  // below 2^-14: a multiple of 2^-(14 + mantissa)
    const float step = static_cast<float>(1u << (14 + mantissa));
    code = static_cast<uint32_t>(__builtin_rintf(FloatOf(magnitude) * step));
  } else {
    const uint32_t drop = 23 - mantissa;
    const uint32_t rounded = magnitude + (1u << (drop - 1)) - 1 + ((magnitude >> drop) & 1);
    code = (rounded >> drop) - (112u << mantissa);
  }
  return static_cast<uint8_t>((code < max_code ? code : max_code) | (bits >> 31) << 7);
}

inline float DecodeFp8(uint8_t code, uint32_t mantissa) {
  return FromF16(static_cast<uint16_t>((code & 0x80u) << 8 | (code & 0x7fu) << (10 - mantissa)));
}

inline int RoundToInteger(float y, float low, float high) {
  if (!(y == y)) return 0;
  return static_cast<int>(__builtin_rintf(y < low ? low : y > high ? high : y));
}

inline uint8_t EncodeNf4(float y) {
  uint8_t code = 0;
  for (int i = 0; i < 15; ++i) {
    const float middle = 0.5f * static_cast<float>(kNf4Levels[i] + kNf4Levels[i + 1]);
    code += y > middle;
  }
  return y == y ? code : 7;
}

}  // namespace codec

// Returns the code of the number nearest to y = x * (1 / scale), ties to even (nf4: to the lower
// level); larger numbers saturate, NaN becomes 0. 8-bit formats use the whole byte, 4-bit formats
// the low nibble. A format without a scale has no codes: 0.
inline uint8_t Encode(KvFormat format, float y) {
  switch (format) {
    case KvFormat::kFp8E4m3:
      return codec::EncodeFp8(y, 3, 0x7e);
    case KvFormat::kFp8E5m2:
      return codec::EncodeFp8(y, 2, 0x7b);
    case KvFormat::kInt8:
      return static_cast<uint8_t>(codec::RoundToInteger(y, -127, 127));
    case KvFormat::kInt4:
      return static_cast<uint8_t>(codec::RoundToInteger(y, -8, 7) + kInt4Bias);
    case KvFormat::kNf4:
      return codec::EncodeNf4(y);
    default:
      return 0;
  }
}

// Returns the number of a code, exact: an integer in [-128, 127], or fp8 as a multiple of 2^-17
// (e4m3 is read as its usual number / 2^8, and the scale compensates).
inline float Decode(KvFormat format, uint8_t code) {
  switch (format) {
    case KvFormat::kFp8E4m3:
      return codec::DecodeFp8(code, 3);
    case KvFormat::kFp8E5m2:
      return codec::DecodeFp8(code, 2);
    case KvFormat::kInt8:
      return static_cast<float>(static_cast<int8_t>(code));
    case KvFormat::kInt4:
      return static_cast<float>((code & 15) - kInt4Bias);
    case KvFormat::kNf4:
      return static_cast<float>(kNf4Levels[code & 15]);
    default:
      return 0;
  }
}

}  // namespace kvasir
