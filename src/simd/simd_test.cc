#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/random.h"
#include "simd/half.h"
#include "simd/math.h"
#include "simd/target.h"

namespace kvasir {
namespace {

#if defined(__aarch64__)
using CompilersHalf = __fp16;
#else
using CompilersHalf = _Float16;
#endif

TEST(Half, EveryF16SurvivesARoundTrip) {
  for (uint32_t h = 0; h < 0x10000; ++h) {
    const float x = FromF16(static_cast<uint16_t>(h));
    if (std::isnan(x)) {
      EXPECT_TRUE(std::isnan(FromF16(ToF16(x))));
    } else if (std::isinf(x)) {
      EXPECT_EQ(ToF16(x), (h & 0x8000u) | 0x7bffu);  // saturates
    } else {
      ASSERT_EQ(ToF16(x), h);
    }
  }
}

TEST(Half, F16RoundsToNearestEvenLikeTheCompilersOwn) {
  Random random(1);
  for (int i = 0; i < 2000000; ++i) {
    const float x = FloatOf(static_cast<uint32_t>(random.Bits()));
    if (!(std::fabs(x) < 65504.0f)) continue;
    const CompilersHalf expected = static_cast<CompilersHalf>(x);
    uint16_t bits;
    std::memcpy(&bits, &expected, sizeof(bits));
    if (FromF16(bits) > 65504.0f || FromF16(bits) < -65504.0f) continue;
    ASSERT_EQ(ToF16(x), bits) << x;
  }
}

TEST(Half, Bf16RoundsToNearestEven) {
  EXPECT_EQ(ToBf16(1.0f), 0x3f80);
  EXPECT_EQ(ToBf16(FloatOf(0x3f808000u)), 0x3f80);  // a tie goes to even
  EXPECT_EQ(ToBf16(FloatOf(0x3f818000u)), 0x3f82);
  EXPECT_EQ(ToBf16(FloatOf(0x3f808001u)), 0x3f81);
  EXPECT_TRUE(std::isnan(FromBf16(ToBf16(NAN))));
  for (uint32_t h = 0; h < 0x10000; ++h) {
    const float x = FromBf16(static_cast<uint16_t>(h));
    if (!std::isnan(x)) {
      ASSERT_EQ(ToBf16(x), h);
    }
  }
}

TEST(Math, ExpAndLogAgreeWithTheLibraryToAFewUlps) {
  Random random(2);
  for (int i = 0; i < 200000; ++i) {
    const double x = (random.Uniform() - 0.5) * 1390;
    EXPECT_NEAR(Exp(x) / std::exp(x), 1.0, 1e-15) << x;
    const double y = std::exp((random.Uniform() - 0.5) * 80);
    EXPECT_NEAR(Log(y), std::log(y), 4e-16 * std::max(1.0, std::fabs(std::log(y)))) << y;
  }
  EXPECT_EQ(Exp(0), 1.0);
  EXPECT_EQ(Log(1), 0.0);
  EXPECT_EQ(Exp(-1000), 0.0);
}

TEST(Math, SinCosAgreeWithTheLibraryAtEveryPosition) {
  Random random(3);
  for (int i = 0; i < 500000; ++i) {
    const double x = random.Uniform() * (i % 3 == 0 ? 10.0 : i % 3 == 1 ? 1e6 : 0x1p30);
    double s, c;
    SinCos(x, &s, &c);
    ASSERT_NEAR(s, std::sin(x), 4e-16) << x;
    ASSERT_NEAR(c, std::cos(x), 4e-16) << x;
  }
}

TEST(Target, NamesParseBackAndTheBestIsSupported) {
  for (Target target : SupportedTargets()) EXPECT_EQ(ParseTarget(NameOf(target)), target);
  EXPECT_EQ(ParseTarget("sse9"), std::nullopt);
  EXPECT_EQ(SupportedTargets().front(), Target::kScalar);
}

}  // namespace
}  // namespace kvasir
