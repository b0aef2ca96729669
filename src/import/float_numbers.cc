#include "import/float_numbers.h"

#include <cstring>

#include "simd/half.h"

namespace kvasir {
namespace {

// `exponent`: the bits that are all set in what is not finite.
template <typename Bits>
bool AllFiniteBits(const std::byte* from, uint64_t count, Bits exponent) {
  Bits bad = 0;
  for (uint64_t i = 0; i < count; ++i) {
    Bits bits;
    std::memcpy(&bits, from + i * sizeof(Bits), sizeof(Bits));
    bad |= (bits & exponent) == exponent;
  }
  return bad == 0;
}

template <typename Integer>
void Divide(const std::byte* from, float scale, uint64_t count, float* to) {
  for (uint64_t i = 0; i < count; ++i) {
    Integer integer;
    std::memcpy(&integer, from + i * sizeof(Integer), sizeof(Integer));
    to[i] = static_cast<float>(integer) / scale;
  }
}

// Returns what FromF16 does, without branches, so that a loop of it becomes vectors.
float FromF16InLoop(uint16_t half) {
  const uint32_t magnitude = uint32_t{half & 0x7fffu} << 13;
  // The exponents' biases differ by 112; exact, of subnormal numbers too.
  const uint32_t finite = BitsOf(FloatOf(magnitude) * 0x1p112f);
  const uint32_t other = magnitude | 0x7f800000u | uint32_t{(half & 0x3ffu) != 0} << 22;
  const uint32_t is_other = -uint32_t{(half & 0x7c00u) == 0x7c00u};
  return FloatOf(uint32_t{half & 0x8000u} << 16 | (finite ^ ((finite ^ other) & is_other)));
}

}  // namespace

void Widen(DType dtype, const std::byte* from, uint64_t count, float* to) {
  if (dtype == DType::kF32) {
    std::memcpy(to, from, count * sizeof(float));
    return;
  }
  const auto widen = [&](auto from_half) {
    for (uint64_t i = 0; i < count; ++i) {
      uint16_t half;
      std::memcpy(&half, from + i * sizeof(half), sizeof(half));
      to[i] = from_half(half);
    }
  };
  dtype == DType::kF16 ? widen(FromF16InLoop) : widen(FromBf16);
}

bool AllFinite(DType dtype, const std::byte* from, uint64_t count) {
  if (dtype == DType::kF32) return AllFiniteBits<uint32_t>(from, count, 0x7f800000u);
  return AllFiniteBits<uint16_t>(from, count, dtype == DType::kF16 ? 0x7c00 : 0x7f80);
}

void WidenRow(const ScaledIntegers& integers, uint64_t row, uint64_t columns, float* to) {
  float scale;
  std::memcpy(&scale, integers.scales + (integers.is_scale_of_row ? row * sizeof(float) : 0),
              sizeof(float));
  const std::byte* from = integers.data + row * columns * integers.bytes;
  if (integers.bytes == 1) return Divide<int8_t>(from, scale, columns, to);
  Divide<int16_t>(from, scale, columns, to);
}

}  // namespace kvasir
