#include "api/tokens_text.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace kvasir {
namespace {

// As Llama 2's: a character that is not a token is one token for each byte.
constexpr const char* kByteFallback = R"({
  "added_tokens": [{"id": 7, "content": "<s>", "special": true}],
  "normalizer": null, "pre_tokenizer": null, "post_processor": null,
  "decoder": {"type": "Sequence", "decoders": [
    {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"},
    {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
  "model": {"type": "BPE", "byte_fallback": true, "unk_token": "<unk>", "merges": [],
            "vocab": {"<unk>": 0, "<0xC3>": 1, "<0xA9>": 2, "\u2581": 3, "a": 4, "x": 5, "\u2581x": 6}}})";
// As GPT-2's: tokens are bytes, and "a\xC3" is one.
constexpr const char* kByteLevel = R"({
  "added_tokens": [], "normalizer": null, "post_processor": null,
  "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
  "decoder": {"type": "ByteLevel"},
  "model": {"type": "BPE", "merges": ["a Ã"], "vocab": {"a": 0, "Ã": 1, "©": 2, "aÃ": 3}}})";
constexpr TokenId kC3 = 1, kA9 = 2, kSpace = 3, kA = 4, kX = 5, kSpaceX = 6, kBegin = 7;

class TokensTextTest : public testing::Test {
 protected:
  void ExpectAt(const std::vector<TokenId>& ids, const ContentBytes& bytes, size_t first,
                size_t last) const {
    const TokensText tokens(ids, *tokenizer_);
    const TokenRange found = tokens.Find(bytes);
    EXPECT_EQ(found.first, first) << tokens.text();
    EXPECT_EQ(found.last, last) << tokens.text();
  }
  const std::unique_ptr<const Tokenizer> tokenizer_ = *Tokenizer::Parse(kByteFallback, "{}");
};

// Their text comes with the token after them, or with the end.
TEST_F(TokensTextTest, ByteTokensHaveTheirBytes) {
  ExpectAt({kA, kC3, kA9, kX}, {1, 3}, 1, 2);
  ExpectAt({kA, kC3, kA9, kX}, {3, 4}, 3, 3);
  ExpectAt({kA, kC3, kA9, kC3, kA9, kX}, {1, 3}, 1, 2);
  ExpectAt({kA, kC3, kA9, kC3, kA9, kX}, {3, 5}, 3, 4);
  ExpectAt({kA, kC3, kA9}, {1, 3}, 1, 2);
  ExpectAt({kA, kC3, kA9, kSpace}, {1, 3}, 1, 2);
  ExpectAt({kA, kC3, kA9, kC3, kA9, kSpaceX}, {1, 3}, 1, 2);
  ExpectAt({kA, kC3, kA9, kC3, kA9, kSpaceX}, {3, 6}, 3, 5);
}

// A stream says the text of so many before the run ends.
TEST_F(TokensTextTest, ALongRunOfThemHasTheirsToo) {
  std::vector<TokenId> ids = {kA};
  for (int i = 0; i < 400; ++i) ids.insert(ids.end(), {kC3, kA9});
  ids.push_back(kX);
  for (const size_t at :
       {size_t{0}, size_t{100}, size_t{255}, size_t{256}, size_t{300}, size_t{399}}) {
    ExpectAt(ids, {1 + 2 * at, 3 + 2 * at}, 1 + 2 * at, 2 + 2 * at);
  }
}

// Bytes that make no character are U+FFFD in the text: which of them has which is not known.
TEST_F(TokensTextTest, ALongRunWithOtherBytesIsFoundWhole) {
  std::vector<TokenId> ids = {kA};
  for (int i = 0; i < 100; ++i) ids.push_back(kA9);
  for (int i = 0; i < 300; ++i) ids.insert(ids.end(), {kC3, kA9});
  ids.push_back(kX);
  const TokensText tokens(ids, *tokenizer_);
  const TokenRange found = tokens.Find({301, 303});
  EXPECT_LE(found.first, 101u);
  EXPECT_GE(found.last, 102u);
}

TEST_F(TokensTextTest, AMarkBeforeThemIsNotOfTheirText) {
  ExpectAt({kBegin, kC3, kA9, kX}, {3, 5}, 1, 2);
  ExpectAt({kBegin, kA, kX}, {3, 4}, 1, 1);
}

// An answer may be cut there, and a mark of the template follow.
TEST_F(TokensTextTest, HalfACharacterAtTheEndIsOfTheLastToken) {
  for (const std::vector<TokenId>& ids :
       {std::vector<TokenId>{kA, kX, kC3}, {kA, kX, kC3, kBegin}, {kA, kX, kC3, kBegin, kX, kA}}) {
    const auto found = FindText(ids, {"ax\uFFFD", {0, 5}}, *tokenizer_);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->first, 0u);
    EXPECT_EQ(found->last, 2u);
  }
  const auto tokenizer = *Tokenizer::Parse(kByteLevel, "{}");
  for (const std::vector<TokenId>& ids : {std::vector<TokenId>{0, 3}, {0, 0, 1}}) {
    const std::string text = "aa\uFFFD";
    const auto found = FindText(ids, {text, {0, text.size()}}, *tokenizer);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->first, 0u);
    EXPECT_EQ(found->last, ids.size() - 1);
  }
}

TEST_F(TokensTextTest, ATextIsFoundWhereItStandsOnce) {
  const std::vector<TokenId> once = {kBegin, kA, kC3, kA9, kX}, twice = {kA, kX, kA, kX};
  const auto found = FindText(once, {"a\xC3\xA9x", {1, 3}}, *tokenizer_);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->first, 2u);
  EXPECT_EQ(found->last, 3u);
  EXPECT_FALSE(FindText(twice, {"ax", {0, 1}}, *tokenizer_));
  EXPECT_FALSE(FindText(once, {"xx", {0, 1}}, *tokenizer_));
}

}  // namespace
}  // namespace kvasir
