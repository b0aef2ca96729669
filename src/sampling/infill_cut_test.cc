#include "sampling/infill_cut.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace kvasir {
namespace {

struct Word {
  double share;
  std::string text;  // "<end>" ends
};

// Returns the texts that are kept, in order. `end`: the id that may be taken where nothing is
// certain.
std::vector<std::string> Kept(const std::vector<Word>& given, std::optional<TokenId> end) {
  std::vector<Candidate> candidates;
  for (const Word& word : given) {
    candidates.push_back({word.share * 7, static_cast<TokenId>(candidates.size())});
  }
  const InfillWords words{
      .text = [&](TokenId id) { return std::string_view(given[static_cast<size_t>(id)].text); },
      .ends = [&](TokenId id) { return given[static_cast<size_t>(id)].text == "<end>"; },
      .end = end};
  candidates.resize(CutForInfill(candidates, words));
  std::vector<std::string> kept;
  for (const Candidate& one : candidates) {
    kept.push_back(one.id == 99 ? "99" : given[static_cast<size_t>(one.id)].text);
  }
  return kept;
}

using Lines = std::vector<std::string>;

TEST(InfillCut, EndsWhereAnEndIsLikelyEnough) {
  EXPECT_EQ(Kept({{0.5, "a"}, {0.3, "<end>"}, {0.2, "b"}}, 99), Lines{"<end>"});
  // 3 * 2 * 0.14 < 0.86: the text is likely enough, and the end stays.
  EXPECT_EQ(Kept({{0.86, "a"}, {0.14, "<end>"}}, 99), (Lines{"a", "<end>"}));
  EXPECT_EQ(Kept({{0.85, "a"}, {0.15, "<end>"}}, 99), Lines{"<end>"});
}

TEST(InfillCut, JoinsTextsThatBeginOthers) {
  // a takes ab's and abc's shares; x has less than a third.
  EXPECT_EQ(Kept({{0.3, "a"}, {0.25, "ab"}, {0.24, "abc"}, {0.21, "x"}}, 99), Lines{"a"});
  // The likelier one takes over, whichever is longer; equal texts join too.
  EXPECT_EQ(Kept({{0.45, "ab"}, {0.3, "a"}, {0.25, "x"}}, 99), Lines{"ab"});
  EXPECT_EQ(Kept({{0.4, "x"}, {0.15, "a"}, {0.15, "a"}, {0.15, "ab"}, {0.15, "ac"}}, 99),
            (Lines{"x", "a"}));
  // Tokens without text join nothing.
  EXPECT_EQ(Kept({{0.41, ""}, {0.35, "a"}, {0.24, "b"}}, 99), (Lines{"", "a"}));
}

TEST(InfillCut, TakesTheEndWhereNothingIsCertain) {
  const std::vector<Word> flat = {{0.19, "a"}, {0.18, "b"}, {0.17, "c"},
                                  {0.16, "d"}, {0.15, "e"}, {0.15, "f"}};
  EXPECT_EQ(Kept(flat, 99), Lines{"99"});
  EXPECT_EQ(Kept(flat, std::nullopt), Lines{"a"});
}

TEST(InfillCut, KeepsOneCandidate) {
  EXPECT_EQ(Kept({{1, "a"}}, 99), Lines{"a"});
  EXPECT_EQ(Kept({{1, "<end>"}}, 99), Lines{"<end>"});
}

}  // namespace
}  // namespace kvasir
