#include "format/codec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/random.h"
#include "format/pack.h"

namespace kvasir {
namespace {

constexpr KvFormat kScaled[] = {KvFormat::kFp8E4m3, KvFormat::kFp8E5m2, KvFormat::kInt8,
                                KvFormat::kInt4, KvFormat::kNf4};

uint32_t Codes(KvFormat format) { return 1u << TraitsOf(format).bits; }

// Tells whether no finite number has the code: fp8's NaN and infinities, int8's -128.
bool Unused(KvFormat format, uint32_t code) {
  if (format == KvFormat::kFp8E4m3) return (code & 0x7f) > 0x7e;
  if (format == KvFormat::kFp8E5m2) return (code & 0x7f) > 0x7b;
  return format == KvFormat::kInt8 && code == 0x80;
}

std::vector<float> AllNumbers(KvFormat format) {
  std::vector<float> numbers;
  for (uint32_t code = 0; code < Codes(format); ++code) {
    if (!Unused(format, code)) numbers.push_back(Decode(format, static_cast<uint8_t>(code)));
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

TEST(Codec, EveryCodeComesBack) {
  for (const KvFormat format : kScaled) {
    for (uint32_t code = 0; code < Codes(format); ++code) {
      if (Unused(format, code)) continue;
      const float number = Decode(format, static_cast<uint8_t>(code));
      EXPECT_EQ(Encode(format, number), code) << TraitsOf(format).name << " " << number;
    }
  }
}

TEST(Codec, Fp8HasTheNumbersOfItsDefinition) {
  for (uint32_t code = 0; code < 256; ++code) {
    const int sign = code & 0x80 ? -1 : 1;
    if (!Unused(KvFormat::kFp8E4m3, code)) {  // OCP OFP8: bias 7; read as number / 2^8
      const int exponent = static_cast<int>(code >> 3 & 15), mantissa = static_cast<int>(code & 7);
      const double value =
          exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
      EXPECT_EQ(Decode(KvFormat::kFp8E4m3, static_cast<uint8_t>(code)), sign * value / 256);
    }
    if (!Unused(KvFormat::kFp8E5m2, code)) {  // bias 15
      const int exponent = static_cast<int>(code >> 2 & 31), mantissa = static_cast<int>(code & 3);
      const double value =
          exponent == 0 ? std::ldexp(mantissa, -16) : std::ldexp(4 + mantissa, exponent - 17);
      EXPECT_EQ(Decode(KvFormat::kFp8E5m2, static_cast<uint8_t>(code)), sign * value);
    }
  }
}

// Between any two neighbours: the nearer one, at the middle the even code (nf4: the lower level).
TEST(Codec, RoundsToTheNearestNumber) {
  for (const KvFormat format : kScaled) {
    const std::vector<float> numbers = AllNumbers(format);
    for (size_t i = 0; i + 1 < numbers.size(); ++i) {
      const float low = numbers[i], high = numbers[i + 1], middle = low / 2 + high / 2;
      if (low == high) continue;  // -0 and 0
      EXPECT_EQ(Decode(format, Encode(format, std::nextafterf(middle, low))), low);
      EXPECT_EQ(Decode(format, Encode(format, std::nextafterf(middle, high))), high);
      const uint8_t code = Encode(format, middle);
      const float chosen = Decode(format, code);
      EXPECT_TRUE(chosen == low || chosen == high);
      if (format == KvFormat::kNf4) {
        EXPECT_EQ(chosen, low);
      } else {
        EXPECT_EQ(code % 2, 0) << TraitsOf(format).name << " " << middle;
      }
    }
    for (const float far : {1e30f, INFINITY}) {
      EXPECT_EQ(Decode(format, Encode(format, far)), numbers.back());
      EXPECT_EQ(Decode(format, Encode(format, -far)), numbers.front());
    }
    EXPECT_EQ(Decode(format, Encode(format, NAN)), 0.0f);
  }
}

// Returns half the largest gap between neighbours, and what the scale's own rounding (2^-9) adds.
double RelativeBound(KvFormat format) {
  switch (format) {
    case KvFormat::kFp8E4m3:
      return 1.0 / 16 / 2;  // of the top binade: its gap is 1/8 of 1 to 1.75
    case KvFormat::kFp8E5m2:
      return 1.0 / 8 / 1.5;
    case KvFormat::kInt8:
      return 0.5 / 127;
    case KvFormat::kInt4:
      return 1.0 / 8;  // 8 becomes 7
    default:
      return 17.5 / 127;  // nf4: from -127 to -88 it is 39
  }
}

TEST(Codec, ErrorsStayWithinTheBoundOfTheFormat) {
  Random random(5);
  for (const KvFormat format : kScaled) {
    const double bound = format == KvFormat::kNf4 ? 19.5 / 127 : RelativeBound(format);
    for (int round = 0; round < 3000; ++round) {
      const double magnitude = std::ldexp(1.0, static_cast<int>(random.Below(160)) - 95);
      std::vector<float> x(1 + random.Below(80));
      float amax = 0;
      for (float& value : x) {
        value = static_cast<float>((random.Uniform() * 2 - 1) * magnitude);
        amax = std::max(amax, std::fabs(value));
      }
      const float scale = FromBf16(ScaleOf(format, x));
      for (const float value : x) {
        const float back =
            scale == 0 ? 0 : Decode(format, Encode(format, value * (1 / scale))) * scale;
        ASSERT_LE(std::fabs(back - value), (bound + 0.005) * amax)
            << TraitsOf(format).name << " " << value << " of " << amax;
      }
    }
  }
}

TEST(Codec, ScalesOfExtremes) {
  for (const KvFormat format : kScaled) {
    const std::vector<float> zeros(8), tiny(8, 0x1p-101f), subnormal(8, 0x1p-140f);
    EXPECT_EQ(ScaleOf(format, zeros), 0);
    EXPECT_EQ(ScaleOf(format, tiny), 0);
    EXPECT_EQ(ScaleOf(format, subnormal), 0);
    for (const float bad : {INFINITY, -INFINITY, NAN}) {
      EXPECT_TRUE(std::isnan(FromBf16(ScaleOf(format, std::vector<float>{1, bad, 2}))));
    }
    for (const float amax : {0x1p-100f, 1.0f, 3e38f}) {
      const float scale = FromBf16(ScaleOf(format, std::vector<float>{0, -amax, amax / 2}));
      ASSERT_TRUE(std::isfinite(scale) && scale != 0);
      EXPECT_NEAR(Decode(format, Encode(format, -amax * (1 / scale))) * scale / -amax, 1, 0.005);
    }
  }
  // int4: the first of largest magnitude becomes -8, whatever its sign.
  EXPECT_LT(FromBf16(ScaleOf(KvFormat::kInt4, std::vector<float>{1, 2, -2})), 0);
  EXPECT_GT(FromBf16(ScaleOf(KvFormat::kInt4, std::vector<float>{1, -2, 2})), 0);
}

// Each token of a run in any order: its numbers come back, and no other token's byte changes.
TEST(Pack, ATokenWritesItsOwnBytesAlone) {
  Random random(6);
  for (uint32_t f = 1; f <= 8; ++f) {
    const auto format = static_cast<KvFormat>(f);
    for (const uint32_t head_dim : {2u, 8u, 20u, 64u, 80u}) {
      for (const bool key : {true, false}) {
        const uint64_t bytes =
            key ? KeyRunBytes(format, head_dim) : ValueRunBytes(format, head_dim);
        std::vector<std::byte> run(bytes, std::byte{0xa5});
        std::vector<uint16_t> scales(16, 0x1234);
        std::vector<uint32_t> writers(bytes);
        for (uint32_t turn = 0; turn < 16; ++turn) {
          const uint32_t lane = turn * 5 % 16;
          std::vector<float> x(head_dim);
          for (float& value : x) value = static_cast<float>(random.Uniform() * 2 - 1);
          std::vector<std::byte> other(bytes, std::byte{0x5a});
          const std::vector<std::byte> before = run;
          (key ? PackKey : PackValue)(x.data(), format, head_dim, lane, run.data(), scales.data());
          (key ? PackKey : PackValue)(x.data(), format, head_dim, lane, other.data(),
                                      std::vector<uint16_t>(16).data());
          for (uint64_t i = 0; i < bytes; ++i) {
            const bool written = other[i] != std::byte{0x5a} || run[i] != before[i];
            writers[i] += written && run[i] == other[i];
            if (!written) {
              EXPECT_EQ(run[i], before[i]);
            }
          }
          const float scale = TraitsOf(format).scaled ? FromBf16(scales[lane]) : 1;
          for (uint32_t i = 0; i < head_dim; ++i) {
            const float number = key ? KeyNumber(format, run.data(), lane, i)
                                     : ValueNumber(format, head_dim, run.data(), lane, i);
            ASSERT_NEAR(number * scale, x[i], 0.17) << TraitsOf(format).name << " " << i;
          }
        }
        for (const uint32_t count : writers) EXPECT_LE(count, 1u) << TraitsOf(format).name;
      }
    }
  }
}

TEST(KvFormat, NamesOfOneOrTwo) {
  EXPECT_EQ(ParseKvFormats("int8"), KvFormats(KvFormat::kInt8));
  EXPECT_EQ(ParseKvFormats("k=int8,v=f16"), KvFormats(KvFormat::kInt8, KvFormat::kF16));
  EXPECT_EQ(ParseKvFormats("v=nf4,k=bf16"), KvFormats(KvFormat::kBf16, KvFormat::kNf4));
  for (const char* wrong :
       {"", "int3", "k=int8", "k=int8,", "k=int8,k=f16", "int8,f16", "k=f,v=f16"}) {
    EXPECT_FALSE(ParseKvFormats(wrong)) << wrong;
  }
  EXPECT_EQ(NameOf(KvFormat::kFp8E4m3), "fp8_e4m3");
  EXPECT_EQ(NameOf({KvFormat::kInt8, KvFormat::kF16}), "k=int8,v=f16");
}

TEST(KvFormat, NamesOfOtherEnginesAreKnownForHintsOnly) {
  EXPECT_EQ(SimilarKvFormats("q8_0"), KvFormats(KvFormat::kInt8));
  EXPECT_EQ(SimilarKvFormats("FP8"), KvFormats(KvFormat::kFp8E4m3));
  EXPECT_EQ(SimilarKvFormats("k=half,v=Q4_0"), KvFormats(KvFormat::kF16, KvFormat::kInt4));
  EXPECT_EQ(SimilarKvFormats("k=int8,v=iq4_nl"), KvFormats(KvFormat::kInt8, KvFormat::kNf4));
  for (const char* none : {"", "int3", "q5_0", "k=q8_0", "q8_0,q8_0"}) {
    EXPECT_FALSE(SimilarKvFormats(none)) << none;
  }
  EXPECT_FALSE(ParseKvFormats("q8_0") || ParseKvFormats("k=half,v=f16"));
}

}  // namespace
}  // namespace kvasir
