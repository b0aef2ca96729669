#include "text/score_merges.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "base/random.h"

namespace kvasir {
namespace {

using Merges = std::vector<std::tuple<TokenId, TokenId, TokenId>>;

Vocabulary Of(const std::vector<std::string>& texts) {
  Vocabulary vocabulary;
  vocabulary.file = "dir/tokenizer.model";
  for (const std::string& text : texts) vocabulary.tokens.push_back({text});
  return vocabulary;
}

Merges Sorted(const ScoreMerges& found) {
  Merges merges;
  for (const ScoreMerge& merge : found.merges) {
    merges.emplace_back(merge.left, merge.right, merge.joined);
  }
  std::ranges::sort(merges);
  return merges;
}

// Looks up every place of every token, on both sides.
Merges Naive(const Vocabulary& vocabulary) {
  std::map<std::string, TokenId> ids;
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const VocabularyToken& token = vocabulary.tokens[id];
    if (token.kind == TokenKind::kNormal) ids[token.text] = static_cast<TokenId>(id);
  }
  ids.erase("");
  Merges merges;
  for (const auto& [text, id] : ids) {
    for (size_t at = 1; at < text.size(); ++at) {
      const auto left = ids.find(text.substr(0, at)), right = ids.find(text.substr(at));
      if (left == ids.end() || right == ids.end()) continue;
      merges.emplace_back(left->second, right->second, id);
    }
  }
  std::ranges::sort(merges);
  return merges;
}

TEST(ScoreMerges, AreThoseOfANaiveSearch) {
  const uint64_t seed = 20261123;
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  Random random(seed);
  uint64_t merges = 0;
  for (int round = 0; round < 300; ++round) {
    std::vector<std::string> texts = {""};
    for (uint64_t i = 1 + random.Below(60); i > 0; --i) {
      std::string text;
      for (uint64_t n = 1 + random.Below(6); n > 0; --n) text += "ab\xC3"[random.Below(3)];
      if (std::ranges::find(texts, text) == texts.end()) texts.push_back(text);
    }
    Vocabulary vocabulary = Of(texts);
    for (VocabularyToken& token : vocabulary.tokens) {
      if (random.Below(8) == 0) token.kind = TokenKind::kControl;
    }
    const auto found = MergesByScore(vocabulary, 1'000'000);
    ASSERT_TRUE(found) << found.error().message;
    ASSERT_EQ(Sorted(*found), Naive(vocabulary)) << "round " << round;
    merges += found->merges.size();
  }
  EXPECT_GT(merges, 2'000u);
}

// Tokens of up to 1,024 bytes, each of which begins and ends with all the shorter ones: a search
// that looks up each place of each token reads 1,024 times as many bytes as there are.
TEST(ScoreMerges, TakeAtMostTwoStepsForEachByte) {
  std::vector<std::string> texts;
  uint64_t bytes = 0;
  for (size_t size = 1; size <= 1024; ++size) {
    texts.push_back(std::string(size, 'a'));
    bytes += size;
  }
  const auto found = MergesByScore(Of(texts), bytes);
  ASSERT_TRUE(found) << found.error().message;
  EXPECT_EQ(found->merges.size(), 1023u * 1024 / 2);
  EXPECT_LE(found->steps, 2 * bytes);
  // A token that begins with nothing known costs nothing, however long it is.
  texts.assign(1000, std::string(1024, 'b'));
  for (size_t i = 0; i < texts.size(); ++i) texts[i] += std::to_string(i) + "c";
  EXPECT_EQ(MergesByScore(Of(texts), 0)->steps, 0u);
}

TEST(ScoreMerges, RefuseMoreThanTheLimitAndNameTheFile) {
  std::vector<std::string> texts;
  for (size_t size = 1; size <= 100; ++size) texts.push_back(std::string(size, 'a'));
  EXPECT_TRUE(MergesByScore(Of(texts), 99 * 100 / 2));
  const auto refused = MergesByScore(Of(texts), 99 * 100 / 2 - 1);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kCorruption);
  for (const char* part : {"dir/tokenizer.model", "100 tokens", "4949 merges", "tokenizer.json"}) {
    EXPECT_NE(refused.error().message.find(part), std::string::npos) << refused.error().message;
  }
}

}  // namespace
}  // namespace kvasir
