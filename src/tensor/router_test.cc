#include "tensor/router.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "base/random.h"

namespace kvasir {
namespace {

struct Routed {
  std::vector<uint32_t> chosen;
  std::vector<float> weights;
};

Routed RouteOf(Routing routing, const std::vector<float>& logits, size_t k) {
  Routed routed{std::vector<uint32_t>(k), std::vector<float>(k)};
  EXPECT_TRUE(ChooseExperts(routing, logits, routed.chosen, routed.weights));
  return routed;
}

// Computes the same in double, by sorting all.
std::vector<double> InDouble(Routing routing, const std::vector<float>& logits,
                             std::vector<uint32_t>& chosen) {
  std::vector<uint32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](uint32_t a, uint32_t b) { return logits[a] > logits[b]; });
  std::copy_n(order.begin(), chosen.size(), chosen.begin());
  std::ranges::sort(chosen);
  const double largest = *std::ranges::max_element(logits);
  double all = 0, of_chosen = 0;
  for (const float x : logits) all += std::exp(x - largest);
  std::vector<double> weights;
  for (const uint32_t i : chosen) {
    weights.push_back(std::exp(logits[i] - largest));
    of_chosen += weights.back();
  }
  for (double& weight : weights) weight /= routing == Routing::kAll ? all : of_chosen;
  return weights;
}

TEST(Router, ChoosesAndWeighsAsInDouble) {
  double worst = 0;
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    const size_t experts = 1 + Mix64(seed) % 128, k = 1 + Mix64(seed ^ 99) % experts;
    std::vector<float> logits(experts);
    for (size_t i = 0; i < experts; ++i) {  // in steps of 1/8, so that many are equal
      logits[i] = static_cast<float>(Mix64(seed * 1000 + i) % 200) / 8 - 12;
    }
    for (const Routing routing : {Routing::kChosen, Routing::kAll, Routing::kAllNormed}) {
      const Routed got = RouteOf(routing, logits, k);
      std::vector<uint32_t> chosen(k);
      const std::vector<double> want = InDouble(routing, logits, chosen);
      ASSERT_EQ(got.chosen, chosen) << "seed " << seed;
      for (size_t i = 0; i < k; ++i) {
        worst = std::max(worst, std::abs(got.weights[i] / want[i] - 1));
      }
    }
  }
  EXPECT_LT(worst, 4e-6);  // 128 roundings of a sum, at most
}

TEST(Router, GivesTiesToTheLowerIndex) {
  const Routed routed = RouteOf(Routing::kChosen, {1, 3, 3, 0, 3, 1}, 2);
  EXPECT_EQ(routed.chosen, (std::vector<uint32_t>{1, 2}));
  EXPECT_EQ(routed.weights, (std::vector<float>{0.5f, 0.5f}));
  EXPECT_EQ(RouteOf(Routing::kAll, {0.0f, -0.0f, 0.0f}, 1).chosen, (std::vector<uint32_t>{0}));
}

TEST(Router, RefusesLogitsThatAreNotFinite) {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf(""),
                          -std::numeric_limits<float>::infinity()}) {
    std::vector<uint32_t> chosen(1, 7);
    std::vector<float> weights(1, 7);
    EXPECT_FALSE(ChooseExperts(Routing::kAll, std::vector<float>{1, bad, 2}, chosen, weights));
    EXPECT_EQ(chosen[0], 7u);
  }
}

}  // namespace
}  // namespace kvasir
