#include "text/unigram.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "base/random.h"

namespace kvasir {
namespace {

std::vector<TokenId> CutOf(const Unigram& unigram, std::string_view text) {
  std::vector<TokenId> ids;
  std::string joined;
  const Status cut = unigram.Cut(text, [&](std::string_view part, const Unigram::Piece* piece) {
    joined += part;
    EXPECT_TRUE(piece == nullptr || piece->text == part);
    ids.push_back(piece == nullptr ? -1 : piece->id);
    return true;
  });
  EXPECT_TRUE(cut);
  EXPECT_EQ(joined, text);
  return ids;
}

TEST(Unigram, TakesTheCutOfTheLargestSum) {
  const Unigram unigram(
      {{"a", -1, 0}, {"b", -1, 1}, {"ab", -1.5f, 2}, {"bc", -0.5f, 3}, {"c", -9, 4}});
  EXPECT_EQ(CutOf(unigram, "ab"), (std::vector<TokenId>{2}));
  EXPECT_EQ(CutOf(unigram, "abc"), (std::vector<TokenId>{0, 3}));
  EXPECT_EQ(CutOf(unigram, ""), (std::vector<TokenId>{}));
  // A character that no piece is costs 10 more than the worst piece.
  EXPECT_EQ(CutOf(unigram,
                  "a\xC3\xA9"
                  "ab"),
            (std::vector<TokenId>{0, -1, 2}));
}

TEST(Unigram, StopsWhereItsReaderDoes) {
  const Unigram unigram({{"a", -1, 0}});
  size_t parts = 0;
  EXPECT_TRUE(unigram.Cut("aaaa", [&](auto, auto) { return ++parts < 2; }));
  EXPECT_EQ(parts, 2u);
}

TEST(Unigram, RefusesARunThatNothingBounds) {
  std::string text(size_t{1} << 20, 'a');
  const Unigram unigram({{"a", -1, 0}, {"aa", -1, 1}});
  const auto cut = unigram.Cut(text + "a", [](auto, auto) { return true; });
  ASSERT_FALSE(cut);
  EXPECT_EQ(cut.error().code, Code::kInvalidArgument);
  EXPECT_TRUE(unigram.Cut(text.substr(1) + "b", [](auto, auto) { return true; }));
}

// Every cut of a text, by trying all.
struct Best {
  float score = -1e30f;
  std::vector<TokenId> ids;
};
void TryAll(const std::vector<Unigram::Piece>& pieces, std::string_view rest, float score,
            std::vector<TokenId>* ids, Best* best) {
  if (rest.empty()) {
    if (score > best->score) *best = {score, *ids};
    return;
  }
  for (const Unigram::Piece& piece : pieces) {
    if (!rest.starts_with(piece.text)) continue;
    ids->push_back(piece.id);
    TryAll(pieces, rest.substr(piece.text.size()), score + piece.score, ids, best);
    ids->pop_back();
  }
}

TEST(Unigram, EqualsTheBestOfAllCutsOfRandomTexts) {
  Random random(11);
  for (int round = 0; round < 300; ++round) {
    std::set<std::string> texts = {"a", "b", "c"};
    for (int i = 0; i < 8; ++i) {
      std::string text;
      for (uint64_t n = 2 + random.Below(4); n > 0; --n) text += "abc"[random.Below(3)];
      texts.insert(text);
    }
    std::vector<Unigram::Piece> pieces;
    for (const std::string& text : texts) {
      const float score = -static_cast<float>(random.Below(1 << 12)) / 256;  // sums are exact
      pieces.push_back({text, score, static_cast<TokenId>(pieces.size())});
    }
    const Unigram unigram(pieces);
    std::string text;
    for (int i = 0; i < 12; ++i) text += "abc"[random.Below(3)];
    Best best;
    std::vector<TokenId> ids;
    TryAll(pieces, text, 0, &ids, &best);
    float score = 0;
    for (const TokenId id : CutOf(unigram, text)) score += pieces[static_cast<size_t>(id)].score;
    EXPECT_EQ(score, best.score) << text << " in round " << round;
  }
}

}  // namespace
}  // namespace kvasir
