// Tokenizers of vocabularies from files other than tokenizer.json.
#include "text/vocabulary.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <utility>

#include "base/hex.h"
#include "text/tokenizer.h"

namespace kvasir {
namespace {

using Ids = std::vector<TokenId>;
using Kind = TokenKind;

std::unique_ptr<Tokenizer> MakeFrom(const Vocabulary& vocabulary) {
  auto tokenizer = Tokenizer::Make(vocabulary);
  EXPECT_TRUE(tokenizer) << tokenizer.error().message;
  return tokenizer ? std::move(*tokenizer) : nullptr;
}

// Makes a SentencePiece vocabulary without a space prefix and BOS.
Vocabulary Pieces(std::vector<VocabularyToken> tokens) {
  Vocabulary vocabulary;
  vocabulary.kind = VocabularyKind::kSentencePiece;
  vocabulary.file = "v";
  vocabulary.tokens = std::move(tokens);
  vocabulary.space_prefix = SpacePrefix::kNever;
  return vocabulary;
}

Ids EncodeWith(const Vocabulary& vocabulary, const std::string& text) {
  return MakeFrom(vocabulary)->Encode(text).value();
}

TEST(Vocabulary, TheHighestScoreMergesFirstAndTheLeftmostOfEqualOnes) {
  const std::vector<VocabularyToken> letters = {
      {"a", Kind::kNormal, -9}, {"b", Kind::kNormal, -9}, {"c", Kind::kNormal, -9}};
  auto tokens = letters;
  tokens.push_back({"ab", Kind::kNormal, -2});
  tokens.push_back({"bc", Kind::kNormal, -1});
  EXPECT_EQ(EncodeWith(Pieces(tokens), "abc"), (Ids{0, 4}));
  tokens[4].score = -3;
  EXPECT_EQ(EncodeWith(Pieces(tokens), "abc"), (Ids{3, 2}));
  tokens[4].score = -2;
  EXPECT_EQ(EncodeWith(Pieces(tokens), "abc"), (Ids{3, 2}));
  tokens.push_back({"abc", Kind::kNormal, -5});  // "ab" and "c", or "a" and "bc"
  EXPECT_EQ(EncodeWith(Pieces(tokens), "abcab"), (Ids{5, 3}));
}

TEST(Vocabulary, UnknownCharactersAreTheirBytesElseUnknownOnce) {
  std::vector<VocabularyToken> tokens = {{"<unk>", Kind::kUnknown}, {"a"}};
  EXPECT_EQ(EncodeWith(Pieces(tokens),
                       "a\xC3\xA9\xC3\xA9"
                       "a"),
            (Ids{1, 0, 1}));
  tokens.push_back({"<0xC3>", Kind::kByte});
  tokens.push_back({"<0xA9>", Kind::kByte});
  const Vocabulary bytes = Pieces(tokens);
  EXPECT_EQ(EncodeWith(bytes, "a\xC3\xA9"), (Ids{1, 2, 3}));
  EXPECT_EQ(MakeFrom(bytes)->Decode(Ids{1, 2, 3}), "a\xC3\xA9");
}

TEST(Vocabulary, SpacesAreWrittenBeforeTheTextAsItSays) {
  const std::string space = "\xE2\x96\x81";
  Vocabulary vocabulary = Pieces({{space}, {"a"}, {space + "a"}, {"<e>", Kind::kControl}});
  EXPECT_EQ(EncodeWith(vocabulary, "a a<e>a"), (Ids{1, 2, 3, 1}));
  vocabulary.space_prefix = SpacePrefix::kEveryText;
  EXPECT_EQ(EncodeWith(vocabulary, "a<e>a"), (Ids{2, 3, 2}));
  EXPECT_EQ(MakeFrom(vocabulary)->Decode(Ids{2, 2}), "a a");
  vocabulary.space_prefix = SpacePrefix::kFirst;
  EXPECT_EQ(EncodeWith(vocabulary, "a<e>a"), (Ids{2, 3, 1}));
  vocabulary.space_prefix = SpacePrefix::kNever;
  vocabulary.collapse_spaces = true;
  EXPECT_EQ(EncodeWith(vocabulary, "  a   a "), (Ids{1, 2}));
}

TEST(Vocabulary, MergingMakesNoTokenThatIsNotText) {
  for (const Kind kind : {Kind::kControl, Kind::kByte, Kind::kUnused, Kind::kUnknown}) {
    const Vocabulary vocabulary = Pieces({{"<"}, {"e"}, {">"}, {"<e"}, {"<e>", kind, 9}});
    EncodeOptions options;
    options.parse_special = false;
    EXPECT_EQ(MakeFrom(vocabulary)->Encode("<e>", options).value(), (Ids{3, 2}));
    options.parse_special = true;
    options.literal = {{0, 3}};
    EXPECT_EQ(MakeFrom(vocabulary)->Encode("<e>", options).value(), (Ids{3, 2}));
  }
}

TEST(Vocabulary, AUsersTextForgesNoUserDefinedMarkerByMerging) {
  const Vocabulary vocabulary =
      Pieces({{"<"}, {"e"}, {">"}, {"<e"}, {"<e>", Kind::kUserDefined, 9}});
  EncodeOptions options;
  EXPECT_EQ(MakeFrom(vocabulary)->Encode("<e>", options).value(), (Ids{4}));
  options.literal = {{0, 3}};
  EXPECT_EQ(MakeFrom(vocabulary)->Encode("<e>", options).value(), (Ids{3, 2}));
}

// Byte-level: whole words would be looked up before anything merges.
TEST(Vocabulary, AUsersTextForgesNoSpecialTokenOfAByteLevelVocabulary) {
  Vocabulary vocabulary;
  vocabulary.file = "v";
  vocabulary.pre = "llama-bpe";
  vocabulary.tokens = {{"x"}, {"y"}, {"xy", Kind::kControl}, {"<|im_end|>", Kind::kControl}};
  vocabulary.merges = std::vector<std::string>{"x y"};
  vocabulary.eos = 2;
  const auto tokenizer = MakeFrom(vocabulary);
  EXPECT_EQ(tokenizer->Encode("xy").value(), (Ids{2}));
  EncodeOptions options;
  options.literal = {{0, 2}};
  EXPECT_EQ(tokenizer->Encode("xy", options).value(), (Ids{0, 1}));
  options.literal = {{0, 10}};
  EXPECT_EQ(tokenizer->Encode("<|im_end|>", options).value(), Ids{});
}

TEST(Vocabulary, WithoutMergesByteLevelMergesByScore) {  // as tiktoken does
  Vocabulary vocabulary;
  vocabulary.file = "v";
  vocabulary.pre = "gpt-2";
  vocabulary.tokens = {{"a", Kind::kNormal, 0}, {"b", Kind::kNormal, -1}, {"c", Kind::kNormal, -2}};
  vocabulary.tokens.push_back({"bc", Kind::kNormal, -3});
  vocabulary.tokens.push_back({"ab", Kind::kNormal, -4});
  EXPECT_EQ(EncodeWith(vocabulary, "abc"), (Ids{0, 3}));
  vocabulary.tokens.push_back({"abca", Kind::kNormal, -5});  // no pair makes it: a whole word
  EXPECT_EQ(EncodeWith(vocabulary, "abca"), (Ids{5}));
}

TEST(Vocabulary, TheDigestKnowsEverythingThatDecidesIds) {
  const Vocabulary base = Pieces({{"a", Kind::kNormal, -1}, {"b", Kind::kNormal, -2}});
  const std::vector<void (*)(Vocabulary&)> changes = {
      [](Vocabulary& v) { v.tokens[0].score = -3; },
      [](Vocabulary& v) { v.tokens[0].kind = Kind::kUserDefined; },
      [](Vocabulary& v) { v.tokens[0].rstrip = true; },
      [](Vocabulary& v) { v.tokens[0].text = "c"; },
      [](Vocabulary& v) { std::swap(v.tokens[0].text, v.tokens[1].text); },
      [](Vocabulary& v) { v.tokens.emplace_back(); },
      [](Vocabulary& v) { v.kind = VocabularyKind::kByteLevel; },
      [](Vocabulary& v) { v.bos = 0; },
      [](Vocabulary& v) { v.eos = 0; },
      [](Vocabulary& v) { v.add_bos = false; },
      [](Vocabulary& v) { v.add_bos = true; },
      [](Vocabulary& v) { v.add_eos = false; },
      [](Vocabulary& v) { v.add_eos = true; },
      [](Vocabulary& v) { v.pre = "gpt-2"; },
      [](Vocabulary& v) { v.space_prefix = SpacePrefix::kFirst; },
      [](Vocabulary& v) { v.space_prefix = SpacePrefix::kEveryText; },
      [](Vocabulary& v) { v.collapse_spaces = true; },
      [](Vocabulary& v) { v.merges = std::vector<std::string>{}; },
      [](Vocabulary& v) { v.merges = std::vector<std::string>{"a b"}; },
      [](Vocabulary& v) { v.merges = std::vector<std::string>{"b a"}; },
  };
  std::set<std::string> digests = {ToHex(DigestOf(base))};
  for (size_t i = 0; i < changes.size(); ++i) {
    Vocabulary other = base;
    changes[i](other);
    EXPECT_TRUE(digests.insert(ToHex(DigestOf(other))).second) << "change " << i;
  }
  Vocabulary elsewhere = base;
  elsewhere.file = "w";
  EXPECT_EQ(DigestOf(base), DigestOf(elsewhere));
}

TEST(Vocabulary, WrongTokensAreNamed) {
  const auto message = [](std::vector<VocabularyToken> tokens) {
    const auto tokenizer = Tokenizer::Make(Pieces(std::move(tokens)));
    EXPECT_FALSE(tokenizer);
    EXPECT_EQ(tokenizer.error().code, Code::kCorruption);
    return tokenizer.error().message;
  };
  EXPECT_NE(message({{"a"}, {"b"}, {"a"}}).find("tokens 0 and 2 are both 'a'"), std::string::npos);
  EXPECT_NE(message({{"a", Kind::kNormal, std::nanf("")}}).find("not a number"), std::string::npos);
  EXPECT_NE(message({{"\xC3"}}).find("not UTF-8"), std::string::npos);
  EXPECT_NE(message({{std::string(2000, 'a')}}).find("2000 bytes"), std::string::npos);
  Vocabulary vocabulary = Pieces({{"a"}});
  vocabulary.eos = 1;
  EXPECT_EQ(Tokenizer::Make(vocabulary).error().code, Code::kCorruption);
  vocabulary.eos.reset();
  vocabulary.tokens.resize(3);  // ids without a token
  EXPECT_TRUE(Tokenizer::Make(vocabulary));
}

}  // namespace
}  // namespace kvasir
