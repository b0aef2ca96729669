#include "sampling/weighted_draw.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "base/random.h"
#include "sampling/logit_scan.h"
#include "simd/math.h"

namespace kvasir {
namespace {

constexpr float kMax = std::numeric_limits<float>::max();

// A row of logits and the draws from it.
class Row {
 public:
  explicit Row(std::vector<float> logits, float temperature = 1)
      : logits_(std::move(logits)),
        temperature_(temperature),
        block_max_(LogitBlocks(static_cast<uint32_t>(logits_.size()))),
        draw_(static_cast<uint32_t>(logits_.size())) {
    MaxOfBlocks(logits_, block_max_.data());
    max_ = *std::max_element(logits_.begin(), logits_.end());
  }

  WeightedDraw& Start(double u, double least = 0) {
    draw_.Start(logits_, block_max_, max_, temperature_, u, least);
    return draw_;
  }
  double WeightOf(size_t id) const { return Exp((double{logits_[id]} - max_) / temperature_); }
  size_t size() const { return logits_.size(); }

 private:
  const std::vector<float> logits_;
  const float temperature_;
  float max_;
  std::vector<float> block_max_;
  WeightedDraw draw_;
};

// Draws logits whose blocks differ: peaks, plains and a last block that is not whole.
std::vector<float> Hilly(uint32_t vocab, uint64_t seed) {
  Random random(seed);
  std::vector<float> logits(vocab);
  for (size_t id = 0; id < vocab; ++id) {
    const double hill = 3 * std::sin(static_cast<double>(id) / 90);
    logits[id] = static_cast<float>(hill + 2 * random.Uniform());
  }
  return logits;
}

// Returns how far the counts of `draws` draws are from their shares, by Pearson's chi-square: in
// standard deviations of that number, which has mean and half the variance of its degrees of
// freedom. Tokens that are expected less than 10 times count together.
double Deviation(const std::vector<double>& shares, const std::vector<uint64_t>& counts,
                 uint64_t draws) {
  double chi = 0, rare_expected = 0, cells = 0;
  uint64_t rare_count = 0;
  const auto add = [&](double expected, double count) {
    chi += (count - expected) * (count - expected) / expected;
    ++cells;
  };
  for (size_t id = 0; id < shares.size(); ++id) {
    const double expected = shares[id] * static_cast<double>(draws);
    EXPECT_TRUE(shares[id] > 0 || counts[id] == 0) << id;
    if (expected >= 10) {
      add(expected, static_cast<double>(counts[id]));
    } else {
      rare_expected += expected;
      rare_count += counts[id];
    }
  }
  if (rare_expected >= 10) add(rare_expected, static_cast<double>(rare_count));
  return cells < 2 ? 0 : (chi - (cells - 1)) / std::sqrt(2 * (cells - 1));
}

// Returns the shares of the weights that are at least `least`, as WeightedDraw has them.
std::vector<double> SharesOf(const Row& row, double least) {
  std::vector<double> shares(row.size());
  double sum = 0;
  for (size_t id = 0; id < row.size(); ++id) {
    shares[id] = row.WeightOf(id) >= least ? row.WeightOf(id) : 0;
    sum += shares[id];
  }
  for (double& share : shares) share /= sum;
  return shares;
}

TEST(WeightedDraw, DrawsEachTokenAsOftenAsItsWeightSays) {
  constexpr uint64_t kDraws = 30000;
  struct Case {
    std::string name;
    Row row;
  };
  std::vector<Case> cases;
  cases.push_back({"two tokens", Row({0, std::log(0.25f)})});
  cases.push_back({"one block", Row(Hilly(100, 1))});
  cases.push_back({"many blocks", Row(Hilly(1000, 2))});
  cases.push_back({"cold", Row(Hilly(1000, 3), 0.25f)});
  cases.push_back({"hot", Row(Hilly(700, 4), 30)});
  cases.push_back({"flat", Row(std::vector<float>(300, 7))});
  for (Case& each : cases) {
    for (const double least : {0.0, 0.05, 0.5}) {
      const std::vector<double> shares = SharesOf(each.row, least);
      // The second draw continues where the first ended and must be as good.
      std::vector<uint64_t> first(shares.size()), second(shares.size());
      for (uint64_t i = 0; i < kDraws; ++i) {
        WeightedDraw& draw = each.row.Start(DrawUniform(11, 0, i), least);
        for (auto* counts : {&first, &second}) {
          const std::optional<Candidate> drawn = draw.Next();
          ASSERT_TRUE(drawn);
          const auto id = static_cast<size_t>(drawn->id);
          ASSERT_LT(id, shares.size());
          ASSERT_EQ(drawn->weight, each.row.WeightOf(id));
          ++(*counts)[id];
        }
      }
      // Seven standard deviations; the seeds are fixed.
      EXPECT_LT(std::fabs(Deviation(shares, first, kDraws)), 7) << each.name << " " << least;
      EXPECT_LT(std::fabs(Deviation(shares, second, kDraws)), 7) << each.name << " " << least;
    }
  }
}

TEST(WeightedDraw, TwoDrawsOfOneStartAreIndependent) {
  constexpr uint64_t kDraws = 100000;
  Row row({0, -0.5f, -1, -2});
  const std::vector<double> shares = SharesOf(row, 0);
  std::vector<double> pairs(16);
  for (size_t i = 0; i < 16; ++i) pairs[i] = shares[i / 4] * shares[i % 4];
  std::vector<uint64_t> counts(16);
  for (uint64_t i = 0; i < kDraws; ++i) {
    WeightedDraw& draw = row.Start(DrawUniform(13, 0, i));
    const auto first = static_cast<size_t>(draw.Next()->id);
    ++counts[first * 4 + static_cast<size_t>(draw.Next()->id)];
  }
  EXPECT_LT(std::fabs(Deviation(pairs, counts, kDraws)), 7);
}

TEST(WeightedDraw, ARaiseLeavesTheSharesOfWhatIsLeft) {
  constexpr uint64_t kDraws = 50000;
  Row row(Hilly(500, 5));
  constexpr double kLeast = 0.3;
  const std::vector<double> shares = SharesOf(row, kLeast);
  std::vector<uint64_t> counts(shares.size());
  for (uint64_t i = 0; i < kDraws; ++i) {
    WeightedDraw& draw = row.Start(DrawUniform(17, 0, i));
    ASSERT_TRUE(draw.Next());
    draw.Raise(kLeast);
    ++counts[static_cast<size_t>(draw.Next()->id)];
  }
  EXPECT_LT(std::fabs(Deviation(shares, counts, kDraws)), 7);
  // Only the largest is left.
  for (uint64_t i = 0; i < 100; ++i) {
    WeightedDraw& draw = row.Start(DrawUniform(17, 1, i));
    draw.Raise(1);
    EXPECT_EQ(draw.Next()->weight, 1);
  }
}

TEST(WeightedDraw, IsAFunctionOfLogitsTemperatureAndU) {
  Row row(Hilly(1000, 6)), same(Hilly(1000, 6)), other(Hilly(400, 7));
  int changes = 0;
  std::optional<TokenId> last;
  for (uint64_t i = 0; i < 200; ++i) {
    const double u = DrawUniform(19, 0, i);
    std::vector<TokenId> tokens;
    WeightedDraw& draw = row.Start(u);
    for (int k = 0; k < 5; ++k) tokens.push_back(draw.Next()->id);
    changes += last != tokens[0];
    last = tokens[0];
    WeightedDraw& again = same.Start(u, 0);
    again.Raise(0);  // it already has 0
    for (const TokenId id : tokens) ASSERT_EQ(again.Next()->id, id);
    other.Start(u).Next();  // must not depend on earlier draws
  }
  EXPECT_GT(changes, 150);
  // Pins the tokens of seeds: users rely on them (docs/numerics.md).
  std::vector<TokenId> pinned;
  for (const double u : {0.0, 0.25, 0.5, 1 - 0x1p-53}) {
    WeightedDraw& draw = row.Start(u);
    pinned.push_back(draw.Next()->id);
    pinned.push_back(draw.Next()->id);
  }
  EXPECT_EQ(pinned, (std::vector<TokenId>{199, 87, 55, 81, 584, 88, 148, 733}));
}

TEST(WeightedDraw, ALeastAtTheStartIsARaiseAfterIt) {
  Row row(Hilly(1000, 8)), raised(Hilly(1000, 8));
  for (uint64_t i = 0; i < 1000; ++i) {
    const double u = DrawUniform(23, 0, i), least = DrawUniform(23, 1, i);
    WeightedDraw& draw = row.Start(u, least);
    WeightedDraw& other = raised.Start(u);
    other.Raise(least);
    for (int k = 0; k < 3; ++k) ASSERT_EQ(draw.Next()->id, other.Next()->id);
  }
}

TEST(WeightedDraw, TheOnlyTokenOfWeightIsDrawn) {
  std::vector<std::pair<std::vector<float>, TokenId>> rows = {
      {{5}, 0}, {{-kMax}, 0}, {{0, -800}, 0}, {{-kMax, kMax}, 1}};
  std::vector<float> last_of_its_block(129, -1e6f);
  last_of_its_block[128] = 1e6f;
  rows.emplace_back(last_of_its_block, 128);
  std::vector<float> within(1000, -1000);
  within[500] = 0;
  rows.emplace_back(within, 500);
  for (const auto& [logits, id] : rows) {
    Row row(logits);
    for (uint64_t i = 0; i < 50; ++i) {
      const std::optional<Candidate> drawn = row.Start(DrawUniform(29, 0, i)).Next();
      ASSERT_TRUE(drawn);
      ASSERT_EQ(drawn->id, id);
      ASSERT_EQ(drawn->weight, 1);
    }
  }
  // A temperature so low that the second best, one float below, has no weight.
  Row cold({1, std::nextafter(1.0f, 0.0f)}, 1e-30f);
  for (uint64_t i = 0; i < 50; ++i) EXPECT_EQ(cold.Start(DrawUniform(31, 0, i)).Next()->id, 0);
}

TEST(WeightedDraw, HugeLogitsKeepTheirShares) {
  constexpr uint64_t kDraws = 20000;
  // Two of weight 1 and one of 1/e, of logits near the largest float.
  Row row({kMax, kMax, kMax / 2, -kMax}, kMax / 2);
  const std::vector<double> shares = SharesOf(row, 0);
  std::vector<uint64_t> counts(4);
  for (uint64_t i = 0; i < kDraws; ++i) {
    ++counts[static_cast<size_t>(row.Start(DrawUniform(37, 0, i)).Next()->id)];
  }
  EXPECT_LT(std::fabs(Deviation(shares, counts, kDraws)), 7);
}

TEST(WeightedDraw, GivesUpAfterSoManyTries) {
  Row row({1});  // one try of 128 finds it
  WeightedDraw& draw = row.Start(0.5);
  uint32_t found = 0;
  while (draw.Next()) ++found;
  constexpr double kExpected = WeightedDraw::kMaxTries / 128.0;
  EXPECT_NEAR(found, kExpected, 6 * std::sqrt(kExpected));
  EXPECT_FALSE(draw.Next());
  EXPECT_TRUE(row.Start(0.5).Next());  // counted anew
}

TEST(WeightedDraw, ItsBytesAreThosePlanned) {
  for (const uint32_t vocab : {1u, 128u, 129u, 151936u}) {
    EXPECT_EQ(WeightedDraw(vocab).bytes(), WeightedDraw::BytesFor(vocab));
  }
}

}  // namespace
}  // namespace kvasir
