#include "import/float_numbers.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "simd/half.h"

namespace kvasir {
namespace {

// Copies bytes to where they begin at an odd address.
std::vector<std::byte> Odd(const void* data, size_t bytes) {
  std::vector<std::byte> out(bytes + 1);
  std::memcpy(out.data() + 1, data, bytes);
  return out;
}

TEST(FloatNumbers, EveryHalfIsWidenedAndKnownToBeFiniteOrNot) {
  for (const DType dtype : {DType::kF16, DType::kBf16}) {
    for (uint32_t i = 0; i <= 0xffff; ++i) {
      const uint16_t halves[2] = {0, static_cast<uint16_t>(i)};
      const float want = dtype == DType::kF16 ? FromF16(halves[1]) : FromBf16(halves[1]);
      const auto bytes = Odd(halves, sizeof(halves));
      float got[2];
      Widen(dtype, bytes.data() + 1, 2, got);
      ASSERT_EQ(std::bit_cast<uint32_t>(got[1]), std::bit_cast<uint32_t>(want)) << i;
      ASSERT_EQ(AllFinite(dtype, bytes.data() + 1, 2), std::isfinite(want)) << i;
    }
  }
}

TEST(FloatNumbers, FloatsAreCopiedAndAnyThatIsNotFiniteIsSeen) {
  using Limits = std::numeric_limits<float>;
  std::vector<float> numbers(67, -1.5f);
  numbers[3] = Limits::max();
  numbers[4] = Limits::denorm_min();
  const auto finite = [&] {
    const auto bytes = Odd(numbers.data(), numbers.size() * sizeof(float));
    return AllFinite(DType::kF32, bytes.data() + 1, numbers.size());
  };
  EXPECT_TRUE(finite());
  for (const float bad : {Limits::infinity(), -Limits::infinity(), Limits::quiet_NaN()}) {
    for (const size_t at : {size_t{0}, size_t{31}, size_t{66}}) {
      const float kept = std::exchange(numbers[at], bad);
      EXPECT_FALSE(finite()) << at;
      numbers[at] = kept;
    }
  }
  float out[67];
  const auto bytes = Odd(numbers.data(), sizeof(out));
  Widen(DType::kF32, bytes.data() + 1, 67, out);
  EXPECT_EQ(std::memcmp(out, numbers.data(), sizeof(out)), 0);
  EXPECT_TRUE(AllFinite(DType::kF32, nullptr, 0));
}

}  // namespace
}  // namespace kvasir
