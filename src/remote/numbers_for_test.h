// Numbers of 16 bits that look like KV, for tests of what compresses them.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/random.h"

namespace kvasir {

enum class NumbersLike : uint8_t { kF16, kBf16, kNoise, kZeros };

// Fills with numbers: of a normal distribution of width 1 in a format, of any bits, or zeros.
inline void FillNumbers(NumbersLike like, Random& random, std::span<std::byte> bytes) {
  for (size_t i = 0; i + 2 <= bytes.size(); i += 2) {
    uint16_t number = 0;
    if (like == NumbersLike::kNoise) number = static_cast<uint16_t>(random.Bits());
    if (like == NumbersLike::kF16 || like == NumbersLike::kBf16) {
      const auto x = static_cast<float>(std::sqrt(-2 * std::log(1 - random.Uniform())) *
                                        std::cos(6.283185307179586 * random.Uniform()));
      const auto bits = std::bit_cast<uint32_t>(x);
      const auto exponent = static_cast<int>(bits >> 23 & 255) - 112;  // f16's
      number = static_cast<uint16_t>(bits >> 16);
      if (like == NumbersLike::kF16) {
        number = static_cast<uint16_t>((bits >> 16 & 0x8000u) |
                                       static_cast<uint32_t>(std::max(exponent, 0)) << 10 |
                                       (bits >> 13 & 0x3FFu));
      }
    }
    std::memcpy(bytes.data() + i, &number, 2);
  }
}

}  // namespace kvasir
