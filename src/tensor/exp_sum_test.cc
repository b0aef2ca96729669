#include "tensor/exp_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "base/random.h"

namespace kvasir {
namespace {

// Computes e^x as simd/vec16-inl.h defines it, lane by lane.
float ReferenceExp(float x) {
  if (x < -87.3f) return 0;
  const float n = std::nearbyint(x * 1.44269504088896341f);
  float r = std::fma(n, -0.693359375f, x);
  r = std::fma(n, 2.12194440e-4f, r);
  float p = 1.0f / 5040;
  for (const float c : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) {
    p = std::fma(p, r, c);
  }
  return std::ldexp(p, static_cast<int>(n));
}

float ReferenceSum(const std::vector<float>& x, float max) {
  float lanes[16] = {};
  for (size_t i = 0; i < x.size(); ++i) lanes[i % 16] += ReferenceExp(x[i] - max);
  for (size_t half = 8; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

class ExpSumTargets : public testing::TestWithParam<Target> {};

TEST_P(ExpSumTargets, HasTheReferencesBits) {
  const ExpSum sum = ExpSumFor(GetParam());
  Random random(3);
  for (const uint32_t n : {1u, 2u, 15u, 16u, 17u, 63u, 64u, 65u, 127u, 1000u, 1024u, 20011u}) {
    for (const float scale : {0.0f, 1e-3f, 4.0f, 60.0f, 1e30f}) {
      std::vector<float> x(n);
      for (float& v : x) v = static_cast<float>(random.Uniform() * 2 - 1) * scale;
      const float max = *std::ranges::max_element(x);
      const float got = sum(x.data(), n, max), expected = ReferenceSum(x, max);
      EXPECT_EQ(std::bit_cast<uint32_t>(got), std::bit_cast<uint32_t>(expected))
          << n << " " << scale;
    }
  }
}

TEST_P(ExpSumTargets, IsNearTheSum) {
  Random random(4);
  std::vector<float> x(128112);
  for (float& v : x) v = static_cast<float>(random.Uniform() * 20 - 10);
  const float max = *std::ranges::max_element(x);
  double exact = 0;
  for (const float v : x) exact += std::exp(double{v} - max);
  const float got = ExpSumFor(GetParam())(x.data(), static_cast<uint32_t>(x.size()), max);
  EXPECT_NEAR(got / exact, 1, 2e-5);
}

INSTANTIATE_TEST_SUITE_P(Cpu, ExpSumTargets, testing::ValuesIn(SupportedTargets()),
                         [](const auto& info) { return std::string(NameOf(info.param)); });

}  // namespace
}  // namespace kvasir
