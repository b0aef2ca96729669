#include "sampling/weight_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

#include "base/random.h"
#include "simd/math.h"

namespace kvasir {
namespace {

// Draws logits within `width` of their largest, of `levels` different values if that is not 0.
std::vector<float> Flat(uint32_t vocab, double width, uint64_t levels, Random& random) {
  std::vector<float> logits(vocab);
  for (float& logit : logits) {
    const double place =
        levels == 0 ? random.Uniform()
                    : static_cast<double>(random.Below(levels)) / static_cast<double>(levels);
    logit = static_cast<float>(2 + width * place);
  }
  return logits;
}

float MaxOf(const std::vector<float>& logits) {
  return *std::max_element(logits.begin(), logits.end());
}

std::vector<Candidate> Sorted(const std::vector<float>& logits, float temperature) {
  const double max = MaxOf(logits);
  std::vector<Candidate> sorted;
  for (size_t id = 0; id < logits.size(); ++id) {
    sorted.push_back({Exp((logits[id] - max) / temperature), static_cast<TokenId>(id)});
  }
  std::ranges::stable_sort(sorted, std::ranges::greater(), &Candidate::weight);
  return sorted;
}

TEST(WeightOrder, HasTheOrderOfAStableSort) {
  Random random(3);
  for (const uint32_t vocab : {1u, 5u, 127u, 3000u}) {
    WeightOrder order(vocab);
    EXPECT_EQ(order.bytes(), WeightOrder::BytesFor(vocab));
    for (const double width : {0.0, 1e-6, 1.0, 30.0, 2000.0}) {
      for (const uint64_t levels : {0, 3}) {
        const std::vector<float> logits = Flat(vocab, width, levels, random);
        const std::vector<Candidate> sorted = Sorted(logits, 0.8f);
        double total = 0;
        for (const float logit : logits) total += Exp((double{logit} - MaxOf(logits)) / 0.8f);
        ASSERT_EQ(order.Fill(logits, MaxOf(logits), 0.8f), total);
        const auto check = [&](size_t i) {
          const Candidate at = order.At(i);
          ASSERT_EQ(at.id, sorted[i].id) << i;
          ASSERT_EQ(at.weight, sorted[i].weight) << i;
        };
        for (int look = 0; look < 20; ++look) check(random.Below(vocab));  // any order
        for (size_t i = 0; i < vocab; ++i) check(i);
      }
    }
  }
}

// Crossing agrees with the running sums, even if x is very close to one; and it gives a place
// unless x is within the error of adding.
TEST(WeightOrder, CrossingIsThatOfTheRunningSums) {
  Random random(5);
  for (const uint32_t vocab : {300u, 262144u}) {
    WeightOrder order(vocab);
    const double error = 3e-16 * vocab;  // relative to the sum of all
    for (const double width : {0.0, 1e-6, 0.3, 8.0}) {
      for (const uint64_t levels : {0, 7}) {
        const std::vector<float> logits = Flat(vocab, width, levels, random);
        const std::vector<Candidate> sorted = Sorted(logits, 1);
        const double total = order.Fill(logits, MaxOf(logits), 1);
        std::vector<double> running;
        for (double sum = 0; const Candidate& candidate : sorted) {
          running.push_back(sum += candidate.weight);
        }
        const auto check = [&](double x) {
          const auto exact = static_cast<size_t>(
              std::upper_bound(running.begin(), running.end(), x) - running.begin());
          double distance = std::numeric_limits<double>::infinity();
          if (exact > 0) distance = x - running[exact - 1];
          if (exact < vocab) distance = std::min(distance, running[exact] - x);
          const std::optional<size_t> place = order.Crossing(x);
          if (place) {
            ASSERT_EQ(*place, exact) << x;
          } else {
            ASSERT_TRUE(exact == vocab || distance < 2 * error * total) << x;
          }
        };
        check(0);
        check(total * 1.01);
        for (int look = 0; look < 60; ++look) {
          const size_t i = look == 0 ? vocab - 1 : random.Below(vocab);
          for (const double off : {0.0, 1e-16, 1e-14, 1e-12, 1e-11, 5e-11, 2e-10}) {
            check(running[i] * (1 - off));
            check(running[i] * (1 + off));
          }
          check(((i == 0 ? 0 : running[i - 1]) + running[i]) / 2);
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvasir
