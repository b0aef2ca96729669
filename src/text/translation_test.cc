// Vocabularies and languages of translation models.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "base/bytes_for_test.h"
#include "base/needs_for_test.h"
#include "source_paths.h"
#include "text/charsmap.h"
#include "text/language_codes.h"
#include "text/language_names.h"
#include "text/languages.h"
#include "text/sentencepiece_model.h"
#include "text/tokenizer.h"
#include "text/translation_vocabulary.h"

namespace kvasir {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<TokenId>;
using nlohmann::json;

const std::string kSpace = "\xE2\x96\x81";

// Returns a table that turns A into b and fi (U+FB01) into f i, as Darts-clone lays it out.
std::string SmallCharsmap() {
  std::vector<uint32_t> trie(512, 0);
  const auto child = [&](uint32_t base, uint8_t byte, uint32_t next, bool leaf) {
    trie[base ^ byte] = next << 10 | (leaf ? 1u << 8 : 0u) | byte;
  };
  // A unit's offset is relative to its own place (xor).
  trie[0] = 256u << 10;
  child(256, 'A', (256u ^ 'A') ^ 1u, true);
  trie[1] = 1u << 31 | 0;
  child(256, 0xEF, (256u ^ 0xEF) ^ 16u, false);
  child(16, 0xAC, (16u ^ 0xAC) ^ 300u, false);
  child(300, 0x81, (300u ^ 0x81) ^ 2u, true);
  trie[2] = 1u << 31 | 2;
  std::string bytes;
  const auto u32 = [&](uint32_t value) {
    for (int i = 0; i < 4; ++i) bytes.push_back(static_cast<char>(value >> (8 * i)));
  };
  u32(static_cast<uint32_t>(trie.size() * 4));
  for (uint32_t unit : trie) u32(unit);
  return bytes + std::string("b\0fi\0", 5);
}

TEST(Charsmap, FindsWhatATextBeginsWith) {
  const auto map = Charsmap::Parse(SmallCharsmap(), "f");
  ASSERT_TRUE(map) << map.error().message;
  const auto a = map->Longest("AA");
  ASSERT_TRUE(a);
  EXPECT_EQ(a->size, 1u);
  EXPECT_EQ(a->becomes, "b");
  const auto fi = map->Longest("\xEF\xAC\x81x");
  ASSERT_TRUE(fi);
  EXPECT_EQ(fi->size, 3u);
  EXPECT_EQ(fi->becomes, "fi");
  EXPECT_FALSE(map->Longest("\xEF\xAC\x82"));
  EXPECT_FALSE(map->Longest("b"));
  EXPECT_FALSE(map->Longest(""));
  EXPECT_FALSE(Charsmap::Parse("", "f")->Longest("A"));
}

TEST(Charsmap, RefusesDamageWithItsPlace) {
  const std::string whole = SmallCharsmap();
  for (size_t size = 1; size < whole.size(); size += size < 8 ? 1 : 97) {
    EXPECT_EQ(Charsmap::Parse(whole.substr(0, size), "f").error().code, Code::kCorruption) << size;
  }
  std::string far = whole;
  far[4 + 4 + 1] = 1;  // the value of trie[1]
  const auto no_text = Charsmap::Parse(far, "dir/f");
  ASSERT_FALSE(no_text);
  for (const char* part : {"dir/f", "at byte 8 of", "points to no text", "fetch"}) {
    EXPECT_NE(no_text.error().message.find(part), std::string::npos) << no_text.error().message;
  }
  std::string middle = whole;  // the second value is 2, which is inside of U+20AC
  middle.replace(middle.size() - 5, 5, std::string("a\xE2\x82\xAC\0", 5));
  EXPECT_EQ(Charsmap::Parse(middle, "f").error().code, Code::kCorruption);
  std::string one = whole;
  one[4 + 8] = 0;  // both values point to the first text
  const std::string too_long =
      one.substr(0, one.size() - 5) + std::string(65, 'b') + std::string("\0", 1);
  EXPECT_EQ(Charsmap::Parse(too_long, "f").error().code, Code::kUnsupported);
  EXPECT_EQ(Charsmap::Parse(whole.substr(0, whole.size() - 2) + "\xFF" + std::string("\0", 1), "f")
                .error()
                .code,
            Code::kCorruption);
}

VocabularyToken Normal(const std::string& text, float score) {
  return {.text = text, .kind = TokenKind::kNormal, .score = score};
}

// Returns "a", "b" and "ab", with a table.
Vocabulary SmallPieces() {
  Vocabulary pieces;
  pieces.kind = VocabularyKind::kSentencePiece;
  pieces.file = "m/sentencepiece.bpe.model";
  pieces.collapse_spaces = true;
  pieces.charsmap = SmallCharsmap();
  pieces.tokens = {{.text = "<unk>", .kind = TokenKind::kUnknown},
                   {.text = "<s>", .kind = TokenKind::kControl},
                   {.text = "</s>", .kind = TokenKind::kControl},
                   Normal(kSpace + "a", -1),
                   Normal("ab", -2),
                   Normal(kSpace, -3),
                   Normal("a", -4),
                   Normal("b", -5),
                   Normal("_", -6),
                   Normal("f", -7),
                   Normal("i", -8),
                   Normal("<", -9),
                   Normal("/", -10),
                   Normal("s", -11),
                   Normal(">", -12),
                   Normal("r", -13)};
  return pieces;
}

json SmallVocab() {
  json vocab = {{"<s>", 0}, {"<pad>", 1}, {"</s>", 2}, {"<unk>", 3}};
  for (const VocabularyToken& token : SmallPieces().tokens) {
    if (token.kind == TokenKind::kNormal) vocab[token.text] = vocab.size();
  }
  return vocab;
}
const size_t kSmall = SmallVocab().size();

Result<Vocabulary> Small(const json& vocab, size_t vocab_size, std::string_view config = "") {
  return M2mVocabulary(SmallPieces(), {vocab.dump(), "m/vocab.json", config}, vocab_size);
}

std::unique_ptr<Tokenizer> SmallTokenizer() {
  const auto vocabulary = Small(SmallVocab(), kSmall + 108);
  EXPECT_TRUE(vocabulary) << vocabulary.error().message;
  auto tokenizer = Tokenizer::Make(*vocabulary);
  EXPECT_TRUE(tokenizer) << tokenizer.error().message;
  return std::move(*tokenizer);
}

TEST(M2mVocabulary, NumbersPiecesByVocabJsonAndLanguagesBehind) {
  const auto tokenizer = SmallTokenizer();
  const auto id = [&](const std::string& text) { return tokenizer->IdOf(text).value(); };
  const auto last = static_cast<TokenId>(kSmall);
  EXPECT_EQ(id("__af__"), last);
  EXPECT_EQ(id("__zu__"), last + 99);
  EXPECT_EQ(tokenizer->vocab_size(), kSmall + 100);
  EXPECT_EQ(tokenizer->eos(), TokenId{2});
  const Languages languages = Languages::Of(*tokenizer);
  const TokenId french = languages.Find("fr")->id;
  const auto source = [&](std::string_view text, LanguagePlace place) {
    return EncodeSource(*tokenizer, text, FrameOf(*tokenizer, french, place), 100).value();
  };
  const Ids expected = {french, id(kSpace + "a"), id("b"), id(kSpace + "a"), id("f"), id("i"), 2};
  EXPECT_EQ(source("  aA  a\xEF\xAC\x81 ", LanguagePlace::kInFront), expected);
  EXPECT_EQ(source("a", LanguagePlace::kBehind), (Ids{id(kSpace + "a"), 2, french}));
  EXPECT_EQ(source("", LanguagePlace::kInFront), (Ids{french, 2}));
  EXPECT_EQ(tokenizer->Decode(expected), "ab afi");
  EXPECT_EQ(tokenizer->Decode(Ids{2, french, id(kSpace), id(kSpace + "a")}), "a");
}

TEST(M2mVocabulary, NoTextBecomesASpecialTokenOrALanguage) {
  const auto tokenizer = SmallTokenizer();
  const TokenId language = Languages::Of(*tokenizer).Find("af")->id;
  const SourceFrame frame = FrameOf(*tokenizer, language, LanguagePlace::kInFront);
  for (const char* text : {"</s>", "a</s>b", "__fr__", "a __fr__", "<s>a", "<unk>", "<pad>"}) {
    const auto ids = EncodeSource(*tokenizer, text, frame, 100);
    ASSERT_TRUE(ids) << text;
    for (size_t i = 1; i + 1 < ids->size(); ++i) {
      const TokenId id = (*ids)[i];
      EXPECT_TRUE(id == 3 || !tokenizer->IsSpecial(id)) << text << " " << id;
    }
  }
}

TEST(M2mVocabulary, TurnsPiecesWithoutAnIdIntoTheUnknownToken) {
  Vocabulary pieces = SmallPieces();
  for (int i = 0; i < 20; ++i) {
    pieces.tokens.push_back(Normal("x" + std::to_string(i), -20 - static_cast<float>(i)));
  }
  json vocab = {{"<s>", 0}, {"<pad>", 1}, {"</s>", 2}, {"<unk>", 3}};
  for (const VocabularyToken& token : pieces.tokens) {
    if (token.kind == TokenKind::kNormal && token.text != "ab") vocab[token.text] = vocab.size();
  }
  vocab["extra"] = vocab.size();  // a token without a piece
  const size_t size = vocab.size() + 108;
  const auto vocabulary = M2mVocabulary(pieces, {vocab.dump(), "v", ""}, size);
  ASSERT_TRUE(vocabulary) << vocabulary.error().message;
  EXPECT_EQ(vocabulary->vocab_size(), size - 8);
  const auto tokenizer = Tokenizer::Make(*vocabulary);
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  EXPECT_EQ((*tokenizer)->vocab_size(), size - 8);
  const TokenId a = vocab[kSpace + "a"], space = vocab[kSpace], b = vocab["b"];
  EXPECT_EQ((*tokenizer)->Encode("ab bab extra").value()[0], a);
  EXPECT_EQ((*tokenizer)->Encode("bab").value(), (Ids{space, b, 3}));
}

TEST(M2mVocabulary, RefusesFilesThatDoNotBelongTogether) {
  const auto refused = [](const Result<Vocabulary>& result, std::vector<std::string> parts) {
    ASSERT_FALSE(result) << parts.front();
    EXPECT_EQ(result.error().code, Code::kCorruption);
    for (const std::string& part : parts) {
      EXPECT_NE(result.error().message.find(part), std::string::npos) << result.error().message;
    }
  };
  json vocab = SmallVocab();
  refused(Small(vocab, kSmall + 107), {"m/vocab.json", "num_madeup_words", "has 124"});
  EXPECT_TRUE(Small(vocab, kSmall + 107, R"({"num_madeup_words": 7})"));
  EXPECT_TRUE(Small(vocab, kSmall + 8, R"({"num_madeup_words": 0, "language_codes": "wmt21"})"));
  refused(Small(vocab, kSmall + 8, R"({"num_madeup_words": -1})"), {"num_madeup_words"});
  EXPECT_EQ(Small(vocab, 1, R"({"language_codes": "x"})").error().code, Code::kUnsupported);
  refused(Small(json::array(), 1), {"m/vocab.json"});
  vocab["a"] = vocab["b"];
  refused(Small(vocab, kSmall + 108), {"has the pieces"});
  vocab["a"] = 999;
  refused(Small(vocab, kSmall + 108), {"not in 0..", "'a'"});
  vocab["a"] = "7";
  refused(Small(vocab, kSmall + 108), {"not in 0.."});
  vocab = SmallVocab();
  const json id = vocab["</s>"];
  vocab.erase("</s>");
  vocab["other"] = id;
  refused(Small(vocab, kSmall + 108), {"no token </s>"});
  json others = {{"<s>", 0}, {"<pad>", 1}, {"</s>", 2}, {"<unk>", 3}};
  while (others.size() < kSmall) others["p" + std::to_string(others.size())] = others.size();
  refused(Small(others, kSmall + 108), {"are missing", "m/sentencepiece.bpe.model"});
  Vocabulary doubled = SmallPieces();
  doubled.tokens.push_back(Normal("ab", -9));
  refused(M2mVocabulary(doubled, {SmallVocab().dump(), "v", ""}, kSmall + 108), {"are both 'ab'"});
}

TEST(NllbVocabulary, NumbersPiecesByTheirPlace) {
  const size_t size = SmallPieces().tokens.size() + 1 + 202 + 1;
  const auto vocabulary = NllbVocabulary(SmallPieces(), size + 2);
  ASSERT_TRUE(vocabulary) << vocabulary.error().message;
  const auto tokenizer = Tokenizer::Make(*vocabulary);
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  EXPECT_EQ((*tokenizer)->IdOf("ab"), TokenId{5});
  EXPECT_EQ((*tokenizer)->IdOf("ace_Arab"), static_cast<TokenId>(SmallPieces().tokens.size() + 1));
  const Languages languages = Languages::Of(**tokenizer);
  EXPECT_EQ(languages.all().size(), 202u);
  EXPECT_EQ((*tokenizer)->IdOf("zul_Latn"), languages.Find("zu")->id);
  // As the published models have them: 256047, 256057 and 256201 of 256000 pieces.
  const TokenId first = languages.all().front().id;
  EXPECT_EQ(languages.Find("eng_Latn")->id - first, 46);
  EXPECT_EQ(languages.Find("fra_Latn")->id - first, 56);
  EXPECT_EQ(NllbVocabulary(SmallPieces(), size - 1).error().code, Code::kCorruption);
  EXPECT_EQ(NllbVocabulary(SmallPieces(), size + 128).error().code, Code::kCorruption);
  Vocabulary others = SmallPieces();
  std::swap(others.tokens[0], others.tokens[1]);
  EXPECT_EQ(NllbVocabulary(others, size).error().code, Code::kCorruption);
}

TEST(Languages, AreFoundByNameAndByCode) {
  const auto m2m = SmallTokenizer();
  const Languages few = Languages::Of(*m2m);
  EXPECT_EQ(few.all().size(), 100u);
  for (const char* code : {"en", "EN", "eng"}) EXPECT_EQ(few.Find(code)->name, "en") << code;
  EXPECT_EQ(few.Find("nob")->name, "no");
  EXPECT_EQ(few.Find("nso")->name, "ns");
  EXPECT_EQ(few.Find("ast")->code, "ast");
  EXPECT_EQ(few.Find("ns")->code, "nso");
  const auto nllb =
      Tokenizer::Make(NllbVocabulary(SmallPieces(), SmallPieces().tokens.size() + 204).value());
  const Languages many = Languages::Of(**nllb);
  const auto name = [&](const char* code) { return many.Find(code)->name; };
  EXPECT_EQ(name("eng_Latn"), "eng_Latn");
  EXPECT_EQ(name("ENG_latn"), "eng_Latn");
  EXPECT_EQ(name("en"), "eng_Latn");
  EXPECT_EQ(name("ar"), "arb_Arab");
  EXPECT_EQ(name("ara"), "arb_Arab");
  EXPECT_EQ(name("ary"), "ary_Arab");
  EXPECT_EQ(name("zh"), "zho_Hans");
  EXPECT_EQ(name("zho"), "zho_Hans");
  EXPECT_EQ(name("zh-Hant"), "zho_Hant");
  EXPECT_EQ(many.Find("zho_Hant")->code, "zh-Hant");
  std::set<std::string> codes;
  for (const Language& language : many.all()) {
    EXPECT_TRUE(codes.insert(language.code).second) << language.code;
    EXPECT_EQ(many.Find(language.code)->id, language.id) << language.code;
  }
}

TEST(Languages, HaveEnglishNames) {
  const auto nllb =
      Tokenizer::Make(NllbVocabulary(SmallPieces(), SmallPieces().tokens.size() + 204).value());
  for (const Languages& languages : {Languages::Of(*SmallTokenizer()), Languages::Of(**nllb)}) {
    std::set<std::string> names;
    for (const Language& language : languages.all()) {
      const std::string name = EnglishName(language);
      EXPECT_NE(name, language.code);
      EXPECT_TRUE(names.insert(name).second) << name;
    }
    EXPECT_EQ(EnglishName(*languages.Find("fr")), "French");
    EXPECT_EQ(EnglishName(*languages.Find("zh")), "Chinese");
  }
  const Languages many = Languages::Of(**nllb);
  EXPECT_EQ(EnglishName(*many.Find("zho_Hant")), "Chinese (traditional)");
  EXPECT_EQ(EnglishName(*many.Find("kas_Deva")), "Kashmiri (Devanagari)");
  EXPECT_EQ(EnglishName({.name = "qqq", .code = "qqq", .id = 1}), "qqq");
}

TEST(Languages, TellTheNearestAndAllOfThem) {
  const auto tokenizer = SmallTokenizer();
  const Languages languages = Languages::Of(*tokenizer);
  for (const char* code : {"", "english", "e n", "en-US", "__en__", "\xFF"}) {
    EXPECT_EQ(languages.Find(code).error().code, Code::kInvalidArgument) << code;
  }
  const std::string message = languages.Find("cebb").error().message;
  EXPECT_NE(message.find("did you mean 'ceb'?"), std::string::npos) << message;
  EXPECT_NE(message.find("(known: af, am, ar,"), std::string::npos) << message;
}

TEST(EncodeSource, StopsAtTheLimit) {
  const auto tokenizer = SmallTokenizer();
  const SourceFrame frame = FrameOf(*tokenizer, 16, LanguagePlace::kInFront);
  const auto of = [&](size_t max_tokens) {
    return EncodeSource(*tokenizer, "a a a", frame, max_tokens);
  };
  EXPECT_EQ(of(5)->size(), 5u);
  EXPECT_EQ(of(4).error().code, Code::kExhausted);
  EXPECT_EQ(of(1).error().code, Code::kExhausted);
  EXPECT_EQ(EncodeSource(*tokenizer, "\xFF", frame, 9).error().code, Code::kInvalidArgument);
}

TEST(EncodeSource, ReadsByTheVocabularyOfSources) {
  const auto numbered = [](const std::vector<std::string>& tokens) {
    const auto vocabulary =
        Ct2Vocabulary(SmallPieces(), {tokens, "m/vocabulary", "<unk>", "<s>", "</s>"});
    EXPECT_TRUE(vocabulary) << vocabulary.error().message;
    return *vocabulary;
  };
  std::vector<std::string> tokens;
  for (const VocabularyToken& piece : SmallPieces().tokens) tokens.push_back(piece.text);
  const Vocabulary target = numbered(tokens);
  std::ranges::reverse(tokens);
  Vocabulary both = target;
  both.sources = std::make_shared<const Vocabulary>(numbered(tokens));
  EXPECT_EQ(both.memory_bytes(), target.memory_bytes() + both.sources->memory_bytes());
  const auto plain = *Tokenizer::Make(target), tokenizer = *Tokenizer::Make(both);
  EXPECT_NE(plain->digest(), tokenizer->digest());
  const SourceFrame frame{.before = {13}, .after = {}};
  EXPECT_EQ(*EncodeSource(*plain, "ab ar", frame, 9), (std::vector<TokenId>{13, 3, 7, 3, 15}));
  EXPECT_EQ(*EncodeSource(*tokenizer, "ab ar", frame, 9), (std::vector<TokenId>{13, 12, 8, 12, 0}));
  EXPECT_EQ(*tokenizer->Encode("ab ar"), *plain->Encode("ab ar"));
  EXPECT_EQ(tokenizer->Decode(std::vector<TokenId>{3, 7, 3, 15}), "ab ar");
}

TEST(LanguagePlaceOf, IsWhatTheConfigSays) {
  EXPECT_EQ(LanguagePlaceOf(""), LanguagePlace::kInFront);
  EXPECT_EQ(LanguagePlaceOf(R"({"legacy_behaviour": true})"), LanguagePlace::kBehind);
  EXPECT_EQ(LanguagePlaceOf(R"({"legacy_behaviour": false})"), LanguagePlace::kInFront);
  EXPECT_EQ(LanguagePlaceOf("[").error().code, Code::kCorruption);
  EXPECT_EQ(LanguagePlaceOf(R"({"legacy_behaviour": 1})").error().code, Code::kCorruption);
}

TEST(EncodeSource, EqualsTheGolden) {
  const fs::path folder = fs::path(KVASIR_SHARED_DIR) / "goldens" / "m2m100";
  KV_NEEDS(folder / "golden.json");
  const auto pieces =
      ParseSentencePiece(ReadFile(folder / "sentencepiece.bpe.model"), "sentencepiece.bpe.model");
  ASSERT_TRUE(pieces) << pieces.error().message;
  const std::string vocab = ReadFile(folder / "vocab.json");
  const auto vocabulary = M2mVocabulary(
      *pieces, {vocab, "vocab.json", ReadFile(folder / "tokenizer_config.json")}, 1024);
  ASSERT_TRUE(vocabulary) << vocabulary.error().message;
  const auto tokenizer = Tokenizer::Make(*vocabulary);
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  const Languages languages = Languages::Of(**tokenizer);
  EXPECT_EQ(languages.Find("fr")->id, 940);
  const SourceFrame frame = FrameOf(**tokenizer, languages.Find("en")->id, LanguagePlace::kInFront);
  const json golden = json::parse(ReadFile(folder / "golden.json"));
  ASSERT_EQ(golden["sources"].size(), 4u);
  for (const json& source : golden["sources"]) {
    const std::string text = source["text"];
    const auto ids = EncodeSource(**tokenizer, text, frame, 256);
    ASSERT_TRUE(ids) << ids.error().message;
    EXPECT_EQ(*ids, source["ids"].get<Ids>()) << text;
    EXPECT_EQ((*tokenizer)->Decode(*ids), text);
  }
}

}  // namespace
}  // namespace kvasir
