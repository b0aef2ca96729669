#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/random.h"
#include "format/pack.h"
#include "simd/half.h"
#include "tensor/kernels.h"
#include "tensor/reference.h"
#include "tensor/same_bits_for_test.h"

namespace kvasir {
namespace {

std::vector<float> RandomFloats(Random& random, size_t count, float scale = 1) {
  std::vector<float> x(count);
  for (float& v : x) v = static_cast<float>(random.Uniform() * 2 - 1) * scale;
  return x;
}

// Weights rounded to what `format` can hold, and their panels.
struct Weights {
  Weights(Random& random, WeightFormat format, uint32_t outputs, uint32_t k)
      : numbers(RandomFloats(random, size_t{outputs} * k)) {
    const uint32_t panels = (outputs + 15) / 16;
    const uint32_t bytes = format == WeightFormat::kF32 ? 4 : 2;
    packed.resize(size_t{panels} * 16 * k * bytes);
    for (uint32_t o = 0; o < outputs; ++o) {
      for (uint32_t i = 0; i < k; ++i) {
        float& x = numbers[size_t{o} * k + i];
        const size_t at = (size_t{o / 16} * k + i) * 16 + o % 16;
        if (format == WeightFormat::kF32) {
          std::memcpy(packed.data() + at * 4, &x, 4);
        } else {
          const uint16_t h = format == WeightFormat::kF16 ? ToF16(x) : ToBf16(x);
          x = format == WeightFormat::kF16 ? FromF16(h) : FromBf16(h);
          std::memcpy(packed.data() + at * 2, &h, 2);
        }
      }
    }
  }
  std::vector<float> numbers;
  std::vector<std::byte> packed;
};

class TensorTargets : public testing::TestWithParam<Target> {
 protected:
  const TensorKernels& kernels_ = TensorKernelsFor(GetParam());
};

TEST_P(TensorTargets, MatMulHasTheReferencesBitsInEveryShapeAndFormat) {
  Random random(7);
  for (WeightFormat format : {WeightFormat::kF32, WeightFormat::kF16, WeightFormat::kBf16}) {
    for (uint32_t rows : {1u, 2u, 3u, 5u, 7u, 12u, 13u, 31u, 48u, 49u, 101u}) {
      for (uint32_t outputs : {1u, 15u, 16u, 50u, 144u}) {
        const uint32_t k = 1 + static_cast<uint32_t>(random.Below(300));
        const Weights w(random, format, outputs, k);
        const auto x = RandomFloats(random, size_t{rows} * k);
        const auto bias = RandomFloats(random, outputs);
        std::vector<float> y(size_t{rows} * outputs, 9.0f);
        kernels_.mat_mul({x.data(), k, w.packed.data(), format, bias.data(), y.data(), outputs,
                          rows, k, outputs, 0, (outputs + 15) / 16, false});
        const auto expected = reference::MatMul(x, w.numbers, bias, rows, k, outputs);
        ASSERT_TRUE(SameBits(y, expected)) << rows << "x" << k << "x" << outputs;
        kernels_.mat_mul({x.data(), k, w.packed.data(), format, bias.data(), y.data(), outputs,
                          rows, k, outputs, 0, (outputs + 15) / 16, true});
        for (size_t i = 0; i < y.size(); ++i) ASSERT_EQ(y[i], expected[i] + expected[i]);
      }
    }
  }
}

TEST_P(TensorTargets, NormAndRopeHaveTheReferencesBits) {
  Random random(8);
  for (uint32_t n : {1u, 7u, 16u, 60u, 192u, 1000u}) {
    const auto x = RandomFloats(random, n, 3), w = RandomFloats(random, n);
    std::vector<float> y(n);
    kernels_.rms_norm(x.data(), w.data(), 1e-5f, n, y.data(), false);
    ASSERT_TRUE(SameBits(y, reference::RmsNorm(x, w, 1e-5f))) << n;
  }
  for (uint32_t d : {2u, 8u, 20u, 32u, 64u, 128u}) {
    auto x = RandomFloats(random, size_t{3} * d);
    const auto cos = RandomFloats(random, d / 2), sin = RandomFloats(random, d / 2);
    auto expected = x;
    for (uint32_t h = 0; h < 3; ++h) reference::Rope({expected.data() + h * d, d}, cos, sin);
    kernels_.rope(x.data(), 3, d, d, cos.data(), sin.data());
    ASSERT_TRUE(SameBits(x, expected)) << d;
  }
}

TEST_P(TensorTargets, PartialRopeLeavesTheRestOfEachHeadAlone) {
  Random random(13);
  constexpr uint32_t kDim = 80;
  for (const uint32_t rotated : {0u, 2u, 20u, 32u, 78u}) {
    auto x = RandomFloats(random, size_t{3} * kDim);
    const auto cos = RandomFloats(random, rotated / 2), sin = RandomFloats(random, rotated / 2);
    auto expected = x;
    for (uint32_t h = 0; h < 3; ++h) {
      reference::Rope({expected.data() + h * kDim, rotated}, cos, sin);
    }
    kernels_.rope(x.data(), 3, kDim, rotated, cos.data(), sin.data());
    ASSERT_TRUE(SameBits(x, expected)) << rotated;
  }
}

TEST_P(TensorTargets, LayerNormHasTheReferencesBitsAndIsCloseToDouble) {
  Random random(14);
  for (const uint32_t n : {1u, 7u, 16u, 60u, 192u, 1000u}) {
    auto x = RandomFloats(random, n, 3);
    for (float& v : x) v += 2;  // a mean that matters
    const auto w = RandomFloats(random, n), b = RandomFloats(random, n);
    std::vector<float> y(n);
    kernels_.layer_norm(x.data(), w.data(), b.data(), 1e-5f, n, y.data(), false);
    ASSERT_TRUE(SameBits(y, reference::LayerNorm(x, w, b, 1e-5f))) << n;
    double mean = 0, variance = 0;
    for (float v : x) mean += double{v} / n;
    for (float v : x) variance += (v - mean) * (v - mean) / n;
    for (uint32_t i = 0; i < n; ++i) {
      const double exact = (x[i] - mean) / std::sqrt(variance + 1e-5f) * w[i] + b[i];
      ASSERT_NEAR(y[i], exact, n == 1 ? 1e-4 : 2e-6) << n << " " << i;
    }
    kernels_.layer_norm(x.data(), w.data(), b.data(), 1e-5f, n, x.data(), false);  // in place
    ASSERT_TRUE(SameBits(x, y)) << n;
  }
}

TEST_P(TensorTargets, ALayerNormWhoseSquaresOverflowIsNoNumber) {
  for (const float huge : {1e20f, INFINITY, NAN}) {
    std::vector<float> x(48, 1.0f), w(48, 1.0f), b(48, 0.0f), y(48);
    x[40] = huge;
    kernels_.layer_norm(x.data(), w.data(), b.data(), 1e-5f, 48, y.data(), false);
    EXPECT_TRUE(std::isnan(y[0])) << huge;
  }
}

TEST_P(TensorTargets, AddScaledIsOneFma) {
  Random random(15);
  for (const uint32_t n : {1u, 16u, 77u}) {
    const auto x = RandomFloats(random, n), before = RandomFloats(random, n);
    auto y = before;
    kernels_.add_scaled(0.22f, x.data(), n, y.data());
    for (uint32_t i = 0; i < n; ++i) ASSERT_EQ(y[i], std::fma(0.22f, x[i], before[i]));
  }
}

// Exact in integers, by the definition: H[i][j] = -1 to the number of bits that i and j share.
TEST_P(TensorTargets, HadamardIsTheMatrixAndItsOwnInverse) {
  Random random(11);
  for (const uint32_t d : {2u, 6u, 20u, 32u, 64u, 80u, 512u}) {
    const uint32_t n = HadamardSize(d);
    std::vector<float> x(size_t{3} * d), twice(x.size());
    for (float& v : x) v = static_cast<float>(random.Below(2001)) - 1000;
    auto y = x;
    kernels_.hadamard(y.data(), 3, d);
    for (size_t i = 0; i < x.size(); ++i) {
      float sum = 0;
      for (uint32_t j = 0; j < n; ++j) {
        const bool odd = std::popcount(static_cast<uint32_t>(i % n) & j) % 2 != 0;
        sum += odd ? -x[i / n * n + j] : x[i / n * n + j];
      }
      ASSERT_EQ(y[i], sum) << d << " " << i;
      twice[i] = x[i] * static_cast<float>(n);
    }
    kernels_.hadamard(y.data(), 3, d);
    ASSERT_EQ(y, twice) << d;
  }
  auto x = RandomFloats(random, 640, 12), scalar = x;
  kernels_.hadamard(x.data(), 10, 64);
  TensorKernelsFor(Target::kScalar).hadamard(scalar.data(), 10, 64);
  EXPECT_TRUE(SameBits(x, scalar));
}

// The purpose of the rotation: in models with biases on K, one channel of the keys can be far
// larger than the others and then uses up a token's scale.
TEST_P(TensorTargets, HadamardSpreadsAnOutlierOverInt4sScale) {
  constexpr uint32_t kDim = 64;
  Random random(12);
  double error[2] = {};  // plain, rotated
  for (int round = 0; round < 100; ++round) {
    auto q = RandomFloats(random, kDim), k = RandomFloats(random, kDim);
    k[7] *= 40;
    double exact = 0;
    for (uint32_t i = 0; i < kDim; ++i) exact += double{q[i]} * k[i];
    for (const bool rotated : {false, true}) {
      if (rotated) {
        kernels_.hadamard(q.data(), 1, kDim);
        kernels_.hadamard(k.data(), 1, kDim);
      }
      std::vector<std::byte> run(KeyRunBytes(KvFormat::kInt4, kDim));
      uint16_t scale[kRunTokens] = {};
      PackKey(k.data(), KvFormat::kInt4, kDim, 0, run.data(), scale);
      double got = 0;
      for (uint32_t i = 0; i < kDim; ++i) {
        got += double{q[i]} * KeyNumber(KvFormat::kInt4, run.data(), 0, i) * FromBf16(scale[0]);
      }
      error[rotated] += std::fabs(got / (rotated ? kDim : 1) - exact);
    }
  }
  EXPECT_LT(error[1], error[0] / 3) << error[0] << " " << error[1];
}

TEST_P(TensorTargets, ANormWhoseSquaresOverflowIsNoNumber) {
  std::vector<float> x(48, 1.0f), w(48, 1.0f), y(48);
  for (float huge : {2e19f, INFINITY, NAN}) {
    x[40] = huge;
    kernels_.rms_norm(x.data(), w.data(), 1e-5f, 48, y.data(), false);
    EXPECT_FALSE(kernels_.all_finite(y.data(), 48)) << huge;
    EXPECT_TRUE(std::isnan(y[0])) << huge;
  }
}

double Exact(Activation act, double x) {
  switch (act) {
    case Activation::kSilu:
      return x / (1 + std::exp(-x));
    case Activation::kGeluTanh:
      return 0.5 * x *
             (1 + std::tanh(std::sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
    case Activation::kGelu:
      return 0.5 * x * std::erfc(-x * std::sqrt(0.5));
    case Activation::kRelu:
      return x < 0 ? 0 : x;
  }
  return x;
}

// Returns the absolute error of the product that 1 + Tanh and 1 + Erf lose to cancellation left of
// 0.
double ErrorBound(Activation act, double x, double exact) {
  const bool gelu = act == Activation::kGeluTanh || act == Activation::kGelu;
  return 5e-7 * std::fabs(exact) + (gelu ? 1.2e-7 * std::fabs(x) : 1e-36);
}

TEST_P(TensorTargets, ActivationsAreCloseToDoubleAndHaveTheReferencesBits) {
  Random random(9);
  std::vector<float> x = RandomFloats(random, 4001, 100);
  for (size_t i = 0; i < 3000; ++i) x[i] *= i % 3 == 0 ? 0.08f : i % 3 == 1 ? 0.01f : 1e-4f;
  const auto up = RandomFloats(random, x.size());
  const auto n = static_cast<uint32_t>(x.size());
  for (const Activation act : kAllActivations) {
    auto y = x;
    std::vector<float> gated(n), expected(n), expected_gated(n);
    kernels_.activate(act, n, y.data());
    kernels_.gated(act, x.data(), up.data(), n, gated.data());
    for (size_t i = 0; i < n; ++i) {
      expected[i] = reference::Activate(act, x[i]);
      expected_gated[i] = expected[i] * up[i];
      const double exact = Exact(act, x[i]);
      ASSERT_NEAR(y[i], exact, ErrorBound(act, x[i], exact)) << int(act) << " " << x[i];
    }
    ASSERT_TRUE(SameBits(y, expected)) << int(act);
    ASSERT_TRUE(SameBits(gated, expected_gated)) << int(act);
  }
}

TEST_P(TensorTargets, ActivationsOfWhatIsNoNumberAreNone) {
  for (const Activation act : kAllActivations) {
    for (const float bad : {NAN, -NAN, INFINITY, -INFINITY}) {
      std::vector<float> x(17, bad);
      kernels_.activate(act, 17, x.data());
      for (float v : x) EXPECT_FALSE(std::isfinite(v)) << int(act) << " " << bad;
    }
    std::vector<float> large = {3e38f, -3e38f, 1e13f, -1e13f, 0.0f};
    kernels_.activate(act, 5, large.data());
    EXPECT_TRUE(kernels_.all_finite(large.data(), 5)) << int(act);
  }
}

TEST_P(TensorTargets, SoftCapHasTheReferencesBitsAndIsCloseToDouble) {
  Random random(19);
  for (const float cap : {0.5f, 7.5f, 30.0f, 1e30f}) {
    for (const float scale : {1e-3f, 1.0f, 300.0f}) {  // far below, around and beyond
      const auto x = RandomFloats(random, 1003, scale);
      auto y = x;
      kernels_.soft_cap(cap, 1003, y.data());
      for (size_t i = 0; i < x.size(); ++i) {
        const double exact = double{cap} * std::tanh(x[i] / double{cap});
        ASSERT_NEAR(y[i], exact, 3e-7 * std::fabs(exact)) << cap << " " << x[i];
        ASSERT_EQ(y[i], reference::SoftCap(cap, x[i])) << cap << " " << x[i];
      }
    }
  }
}

TEST_P(TensorTargets, ASoftCapOfWhatIsNoNumberIsNone) {
  for (const float bad : {NAN, -NAN, INFINITY, -INFINITY}) {
    std::vector<float> x(17, 1.0f);
    x[3] = x[16] = bad;
    kernels_.soft_cap(30.0f, 17, x.data());
    EXPECT_TRUE(std::isnan(x[3]) && std::isnan(x[16])) << bad;
    EXPECT_TRUE(std::isfinite(x[4]));
  }
  std::vector<float> large = {3e38f, -3e38f};
  kernels_.soft_cap(0.5f, 2, large.data());  // x / cap overflows, x is a number
  EXPECT_EQ(large, (std::vector<float>{0.5f, -0.5f}));
}

// The bounds that simd/tanh16-inl.h states. Every target has the reference's bits, as seen above.
TEST(Reference, TanhAndErfAreCloseToDouble) {
  double tanh_error = 0, erf_error = 0;
  for (uint32_t bits = BitsOf(1e-6f); bits < BitsOf(12.0f); bits += 97) {
    const float x = FloatOf(bits);
    const double tanh = std::tanh(double{x}), erf = std::erf(double{x});
    tanh_error = std::max(tanh_error, std::fabs(reference::Tanh(x) - tanh) / tanh);
    erf_error = std::max(erf_error, std::fabs(reference::Erf(x) - erf) / erf);
    ASSERT_EQ(reference::Tanh(-x), -reference::Tanh(x)) << x;
    ASSERT_EQ(reference::Erf(-x), -reference::Erf(x)) << x;
  }
  EXPECT_LT(tanh_error, 2e-7);
  EXPECT_LT(erf_error, 3e-7);
  EXPECT_EQ(reference::Tanh(INFINITY), 1);
  EXPECT_EQ(reference::Erf(INFINITY), 1);
  EXPECT_TRUE(std::isnan(reference::Tanh(NAN)) && std::isnan(reference::Erf(NAN)));
}

TEST_P(TensorTargets, NonFiniteNumbersAreFound) {
  Random random(10);
  auto x = RandomFloats(random, 77);
  EXPECT_TRUE(kernels_.all_finite(x.data(), 77));
  for (float bad : {NAN, INFINITY, -INFINITY}) {
    auto y = x;
    y[random.Below(77)] = bad;
    EXPECT_FALSE(kernels_.all_finite(y.data(), 77));
  }
}

INSTANTIATE_TEST_SUITE_P(All, TensorTargets, testing::ValuesIn(SupportedTargets()),
                         [](const auto& info) { return std::string(NameOf(info.param)); });

}  // namespace
}  // namespace kvasir
