#include "text/decoder.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/random.h"
#include "base/utf8.h"

namespace kvasir {
namespace {

using nlohmann::json;
using Texts = std::vector<std::string>;

Decoder MustParseDecoder(const std::string& text) {
  auto decoder = Decoder::Parse(json::parse(text));
  EXPECT_TRUE(decoder) << decoder.error().message;
  return std::move(*decoder);
}

// Returns what each token makes certain, and last what Finish adds.
Texts Steps(const Decoder& decoder, const Texts& tokens) {
  DecoderRun run = decoder.Start();
  Texts steps;
  for (const std::string& token : tokens) run.Append(token, &steps.emplace_back());
  run.Finish(&steps.emplace_back());
  return steps;
}

std::string Decode(const Decoder& decoder, const Texts& tokens) {
  std::string text;
  for (const std::string& step : Steps(decoder, tokens)) text += step;
  return text;
}
std::string Decode(const std::string& value, const Texts& tokens) {
  return Decode(MustParseDecoder(value), tokens);
}

void ExpectDecoderRefused(const std::string& value, Code code, std::string_view what) {
  const auto decoder = Decoder::Parse(json::parse(value));
  ASSERT_FALSE(decoder) << value;
  EXPECT_EQ(decoder.error().code, code) << decoder.error().message;
  EXPECT_NE(decoder.error().message.find(what), std::string::npos) << decoder.error().message;
}

std::string Sequence(const Texts& decoders) {
  std::string list;
  for (const std::string& decoder : decoders) list += (list.empty() ? "" : ",") + decoder;
  return R"({"type":"Sequence","decoders":[)" + list + "]}";
}

const std::string kFuse = R"({"type":"Fuse"})";
const std::string kByteFallback = R"({"type":"ByteFallback"})";
const std::string kByteLevel = R"({"type":"ByteLevel"})";
const std::string kMetaspace =
    R"({"type":"Metaspace","replacement":"▁","prepend_scheme":"always"})";

std::string Replace(const std::string& from, const std::string& to) {
  return json{{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}}.dump();
}
std::string Strip(const std::string& content, int start, int stop) {
  return json{{"type", "Strip"}, {"content", content}, {"start", start}, {"stop", stop}}.dump();
}

// Returns Llama 2's, as its tokenizer.json has it.
std::string Llama() {
  return Sequence({Replace("▁", " "), kByteFallback, kFuse, Strip(" ", 1, 0)});
}

TEST(Decoder, WithoutOnePutsSpacesBetweenTokens) {
  EXPECT_EQ(Decode("null", {"a", "b", "", "c"}), "a b  c");
  EXPECT_EQ(Decode("null", {}), "");
  EXPECT_EQ(Decode(Sequence({}), {"a", "b"}), "ab");
}

TEST(Decoder, ByteLevelTurnsItsAlphabetIntoBytes) {
  EXPECT_EQ(Decode(kByteLevel, {"Hello", "Ġworld", "Ċ"}), "Hello world\n");
  EXPECT_EQ(Decode(kByteLevel, {"Ã", "©"}), "é");        // one character of two tokens
  EXPECT_EQ(Decode(kByteLevel, {"Ã", "a"}), "\uFFFDa");  // which never becomes whole
  EXPECT_EQ(Decode(kByteLevel, {"aÃ"}), "a\uFFFD");
  EXPECT_EQ(Decode(kByteLevel, {"a b"}), "a b");  // a space is not of the alphabet: plain text
}

TEST(Decoder, TextComesOutAsSoonAsItIsCertain) {
  EXPECT_EQ(Steps(MustParseDecoder(kByteLevel), {"a", "ð", "Ł", "ĺ", "Ģ"}),
            (Texts{"a", "", "", "", "\U0001F600", ""}));
  EXPECT_EQ(Steps(MustParseDecoder(Llama()), {"▁a", "<0xC3>", "<0xA9>", "b"}),
            (Texts{"a", "", "", "éb", ""}));
  EXPECT_EQ(
      Steps(MustParseDecoder(Sequence({kFuse, Replace("abc", "x")})), {"za", "b", "b", "ab", "c"}),
      (Texts{"z", "", "abb", "", "x", ""}));
}

TEST(Decoder, ARunOfBytesIsTextOrOneReplacementEach) {
  EXPECT_EQ(Decode(kByteFallback, {"a", "<0xE4>", "<0xB8>", "<0xAD>", "b"}), "a中b");
  EXPECT_EQ(Decode(kByteFallback, {"<0xE4>", "<0xB8>", "b"}), "\uFFFD\uFFFDb");
  EXPECT_EQ(Decode(kByteFallback, {"<0x41>", "<0xFF>"}), "\uFFFD\uFFFD");
  EXPECT_EQ(Decode(kByteFallback, {"<0xe4>", "<0xb8>", "<0xad>"}), "中");
  EXPECT_EQ(Decode(kByteFallback, {"<0xGG>", "<0x4>", "<0x041>"}), "<0xGG><0x4><0x041>");
}

TEST(Decoder, StripTakesCharactersOffTheEndsOfEachToken) {
  EXPECT_EQ(Decode(Strip(" ", 1, 0), {"  a ", " b", "c"}), " a bc");
  EXPECT_EQ(Decode(Strip(" ", 0, 2), {"a   ", "b "}), "a b");
  EXPECT_EQ(Decode(Strip("é", 2, 1), {"éééaé", "é"}), "éa");
  EXPECT_EQ(Decode(Sequence({kFuse, Strip(" ", 1, 1)}), {" ", " a", " "}), " a");
}

TEST(Decoder, ReplaceWorksWithinATokenAndAcrossFusedOnes) {
  EXPECT_EQ(Decode(Replace("ab", "x"), {"ab", "a", "b", "aabb"}), "xabaxb");
  EXPECT_EQ(Decode(Sequence({kFuse, Replace("ab", "x")}), {"ab", "a", "b", "aabb"}), "xxaxb");
  EXPECT_EQ(Decode(Sequence({kFuse, Replace("aab", "x")}), {"a", "a", "a", "b"}), "ax");
  EXPECT_EQ(
      Decode(R"({"type":"Replace","pattern":{"Regex":"[0-9]+"},"content":"#"})", {"a12", "3", "b"}),
      "a##b");
}

TEST(Decoder, MetaspaceDropsTheFirstSpaceAlone) {
  EXPECT_EQ(Decode(kMetaspace, {"▁Hi", "▁you", "▁▁"}), "Hi you  ");
  EXPECT_EQ(
      Decode(R"({"type":"Metaspace","replacement":"_","prepend_scheme":"never"})", {"_a", "_b"}),
      " a b");
  EXPECT_EQ(
      Decode(R"({"type":"Metaspace","replacement":"_","add_prefix_space":false})", {"_a", "_b"}),
      " a b");
}

TEST(Decoder, RunsOfOneDecoderKnowNothingOfEachOther) {
  const Decoder decoder = MustParseDecoder(Llama());
  DecoderRun one = decoder.Start(), two = decoder.Start();
  std::string a, b;
  one.Append("<0xC3>", &a);
  two.Append("▁x", &b);
  one.Append("<0xA9>", &a);
  two.Append("<0xC3>", &b);
  one.Finish(&a);
  two.Finish(&b);
  EXPECT_EQ(a, "é");
  EXPECT_EQ(b, "x\uFFFD");
}

TEST(Decoder, RefusesWhatItCannotStream) {
  using enum Code;
  ExpectDecoderRefused(R"({"type":"WordPiece"})", kUnsupported, "decoder \"WordPiece\"");
  ExpectDecoderRefused("[]", kCorruption, "not an object");
  ExpectDecoderRefused(R"({"type":"Sequence"})", kCorruption, "has no list");
  ExpectDecoderRefused(Sequence({kFuse, kByteFallback}), kUnsupported,
                       "after one that joins all tokens");
  ExpectDecoderRefused(Sequence({kByteLevel, kByteLevel}), kUnsupported,
                       "after one that joins all tokens");
  ExpectDecoderRefused(
      Sequence({kFuse, R"({"type":"Replace","pattern":{"Regex":"a"},"content":""})"}), kUnsupported,
      "after one that joins all tokens");
  ExpectDecoderRefused(Strip("ab", 1, 0), kCorruption, "not one character");
  ExpectDecoderRefused(Strip("a", -1, 0), kCorruption, "Strip.start is not in 0..1024");
  ExpectDecoderRefused(Strip("a", 0, 1025), kCorruption, "Strip.stop is not in 0..1024");
  ExpectDecoderRefused(R"({"type":"Metaspace","replacement":""})", kCorruption,
                       "not one character");
  std::string nested = kFuse;
  for (int i = 0; i < 100; ++i) nested = Sequence({nested});
  ExpectDecoderRefused(nested, kCorruption, "nests too deep");
}

// With all tokens as one, where a token ends decides nothing: any cut of a text decodes alike.
TEST(Decoder, FusedTextDoesNotDependOnWhereTokensEnd) {
  const Decoder decoders[] = {
      MustParseDecoder(Sequence({kFuse, Replace("aba", "c"), Strip("a", 2, 3)})),
      MustParseDecoder(Sequence({kFuse, Replace("▁", " "), Strip(" ", 1, 1)})),
      MustParseDecoder(Sequence({kFuse, kMetaspace, Replace("a a", "bb")}))};
  const Texts pieces = {"a", "b", "▁", " ", "é", "aba", ""};
  Random random(17);
  for (int round = 0; round < 3000; ++round) {
    Texts cut(1);
    std::string whole;
    for (uint64_t i = random.Below(14); i > 0; --i) {
      const std::string& piece = pieces[random.Below(pieces.size())];
      if (random.Below(2) == 0) cut.emplace_back();
      cut.back() += piece;
      whole += piece;
    }
    for (const Decoder& decoder : decoders) {
      ASSERT_EQ(Decode(decoder, cut), Decode(decoder, {whole})) << round << " " << whole;
    }
  }
}

TEST(Decoder, WhatComesOutIsAlwaysUtf8) {
  const Decoder decoders[] = {MustParseDecoder(kByteLevel), MustParseDecoder(Llama()),
                              MustParseDecoder(kMetaspace)};
  const Texts tokens = {"<0xF0>", "<0x9F>", "<0x41>", "ð", "Ł", "é", "▁a", "", "<unk>"};
  Random random(18);
  for (int round = 0; round < 3000; ++round) {
    Texts some(random.Below(12));
    for (std::string& token : some) token = tokens[random.Below(tokens.size())];
    for (const Decoder& decoder : decoders) {
      for (const std::string& step : Steps(decoder, some)) {
        ASSERT_EQ(FirstInvalidUtf8(step), step.size()) << round;
      }
    }
  }
}

}  // namespace
}  // namespace kvasir
