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

namespace kvasir {
namespace {

std::vector<float> RandomFloats(Random& random, size_t count, float scale = 1) {
  std::vector<float> x(count);
  for (float& v : x) v = static_cast<float>(random.Uniform() * 2 - 1) * scale;
  return x;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
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
    kernels_.rope(x.data(), 3, d, cos.data(), sin.data());
    ASSERT_TRUE(SameBits(x, expected)) << d;
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

TEST_P(TensorTargets, SwiGluIsCloseToDoubleAndEqualToScalar) {
  Random random(9);
  const auto gate = RandomFloats(random, 4001, 100), up = RandomFloats(random, 4001);
  std::vector<float> y(4001), scalar(4001);
  kernels_.swiglu(gate.data(), up.data(), 4001, y.data());
  TensorKernelsFor(Target::kScalar).swiglu(gate.data(), up.data(), 4001, scalar.data());
  ASSERT_TRUE(SameBits(y, scalar));
  for (size_t i = 0; i < y.size(); ++i) {
    const double silu = gate[i] / (1 + std::exp(-double{gate[i]}));
    ASSERT_NEAR(y[i], silu * up[i], 5e-7 * std::fabs(silu * up[i]) + 1e-36) << gate[i];
  }
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
