#include "eval/statistics.h"

#include <gtest/gtest.h>

#include <cmath>

namespace kvasir::eval {
namespace {

std::vector<float> Logs(std::initializer_list<double> probabilities, double shift = 0) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p) + shift));
  return logits;
}

TEST(EvalStatistics, KlIsThatOfTheTwoDistributions) {
  // p = (1/2, 1/4, 1/4), q = (1/4, 1/4, 1/2):
  // KL = 1/2 ln 2 + 0 - 1/4 ln 2 = 1/4 ln 2; logits may be shifted.
  const RowFigures row =
      CompareRows(Logs({0.5, 0.25, 0.25}), Logs({0.25, 0.25, 0.5}, 31), TokenId{0}, 7);
  EXPECT_NEAR(row.kl, 0.25 * std::log(2.0), 1e-6);
  EXPECT_NEAR(row.reference_nll, std::log(2.0), 1e-6);
  EXPECT_NEAR(row.nll, std::log(4.0), 1e-6);
  EXPECT_NEAR(row.probability_change, -0.25, 1e-6);
  EXPECT_FALSE(row.same_top);
  EXPECT_EQ(row.depth, 7u);
}

TEST(EvalStatistics, KlIsNotSymmetric) {
  const auto p = Logs({0.9, 0.1}), q = Logs({0.5, 0.5});
  EXPECT_NEAR(CompareRows(p, q, TokenId{0}, 0).kl,
              0.9 * std::log(0.9 / 0.5) + 0.1 * std::log(0.1 / 0.5), 1e-6);
  EXPECT_NEAR(CompareRows(q, p, TokenId{0}, 0).kl,
              0.5 * std::log(0.5 / 0.9) + 0.5 * std::log(0.5 / 0.1), 1e-6);
}

TEST(EvalStatistics, EqualRowsGiveExactlyZeroAndOneHundredPercent) {
  std::vector<float> logits(1000);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = std::sin(float(i)) * 37;
  std::vector<RowFigures> rows;
  for (uint32_t i = 0; i < 9; ++i) rows.push_back(CompareRows(logits, logits, TokenId{3}, i));
  const Quality quality = Summarise(rows);
  EXPECT_EQ(quality.kl.value, 0);
  EXPECT_EQ(quality.kl_max, 0);
  EXPECT_EQ(quality.same_top.value, 1);
  EXPECT_EQ(quality.same_top.error, 0);
  EXPECT_EQ(quality.perplexity.value, quality.reference_perplexity.value);
  EXPECT_EQ(quality.log_perplexity_ratio.value, 0);
  EXPECT_EQ(quality.probability_rms, 0);
}

TEST(EvalStatistics, LargeLogitsNeitherOverflowNorVanish) {
  const std::vector<float> p = {3e4f, -3e4f, 0}, q = {-3e4f, 3e4f, 0};
  const RowFigures row = CompareRows(p, q, TokenId{1}, 0);
  EXPECT_NEAR(row.kl, 6e4, 1e-6);
  EXPECT_NEAR(row.reference_nll, 6e4, 1e-6);
  EXPECT_EQ(row.nll, 0);
  EXPECT_EQ(row.probability_change, 1);
}

TEST(EvalStatistics, OfEqualLogitsTheLowerIdIsOnTop) {
  const std::vector<float> tie = {1, 2, 2}, second = {1, 2, 1.5f}, third = {1, 1.5f, 2};
  EXPECT_TRUE(CompareRows(tie, second, TokenId{0}, 0).same_top);
  EXPECT_FALSE(CompareRows(tie, third, TokenId{0}, 0).same_top);
}

RowFigures Row(double kl, bool same, uint32_t depth = 0, double nll = 0, double reference = 0) {
  return {.depth = depth, .same_top = same, .kl = kl, .reference_nll = reference, .nll = nll};
}

TEST(EvalStatistics, MeansErrorsAndRanksAreThoseOfTheTextbook) {
  const std::vector<RowFigures> rows = {Row(1, true), Row(2, true), Row(3, false), Row(6, true)};
  const Quality quality = Summarise(rows);
  EXPECT_EQ(quality.tokens, 4u);
  EXPECT_DOUBLE_EQ(quality.kl.value, 3);
  // s^2 = (4 + 1 + 0 + 9) / 3
  EXPECT_DOUBLE_EQ(quality.kl.error, std::sqrt(14.0 / 3 / 4));
  EXPECT_EQ(quality.kl_median, 2);
  EXPECT_EQ(quality.kl_p99, 6);
  EXPECT_EQ(quality.kl_max, 6);
  EXPECT_DOUBLE_EQ(quality.same_top.value, 0.75);
  EXPECT_DOUBLE_EQ(quality.same_top.error, std::sqrt(0.75 * 0.25 / 4));
}

TEST(EvalStatistics, PerplexityIsTheExponentOfTheMean) {
  const std::vector<RowFigures> rows = {Row(0, true, 0, std::log(2.0), std::log(4.0)),
                                        Row(0, true, 0, std::log(8.0), std::log(4.0))};
  const Quality quality = Summarise(rows);
  EXPECT_NEAR(quality.perplexity.value, 4, 1e-12);
  EXPECT_NEAR(quality.perplexity.error, 4 * std::log(2.0), 1e-12);  // s = sqrt(2) ln 2, n = 2
  EXPECT_NEAR(quality.reference_perplexity.value, 4, 1e-12);
  EXPECT_EQ(quality.reference_perplexity.error, 0);
  EXPECT_NEAR(quality.log_perplexity_ratio.value, 0, 1e-12);
}

TEST(EvalStatistics, NothingIsZero) {
  EXPECT_EQ(Summarise({}).tokens, 0u);
  EXPECT_EQ(Summarise(std::vector{Row(5, true)}).kl.error, 0);
  EXPECT_TRUE(ByDepth({}).empty());
}

TEST(EvalStatistics, DepthsDoubleAndEmptyOnesAreLeftOut) {
  const std::vector<RowFigures> rows = {Row(1, true, 0), Row(3, true, 255), Row(5, true, 256),
                                        Row(7, true, 1024), Row(9, true, 2047)};
  const std::vector<DepthQuality> depths = ByDepth(rows);
  ASSERT_EQ(depths.size(), 3u);
  EXPECT_EQ(depths[0].begin, 0u);
  EXPECT_EQ(depths[0].end, 256u);
  EXPECT_EQ(depths[0].quality.kl.value, 2);
  EXPECT_EQ(depths[1].quality.kl.value, 5);
  EXPECT_EQ(depths[2].begin, 1024u);
  EXPECT_EQ(depths[2].end, 2048u);
  EXPECT_EQ(depths[2].quality.tokens, 2u);
}

}  // namespace
}  // namespace kvasir::eval
