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

}  // namespace

void Widen(DType dtype, const std::byte* from, uint64_t count, float* to) {
  if (dtype == DType::kF32) {
    std::memcpy(to, from, count * sizeof(float));
    return;
  }
  for (uint64_t i = 0; i < count; ++i) {
    uint16_t half;
    std::memcpy(&half, from + i * sizeof(half), sizeof(half));
    to[i] = dtype == DType::kF16 ? FromF16(half) : FromBf16(half);
  }
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
