// tokenizer.model, *.tiktoken, and the JSON files beside them.
#include <gtest/gtest.h>

#include <bit>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "base/bytes_for_test.h"
#include "base/needs_for_test.h"
#include "source_paths.h"
#include "text/sentencepiece_model.h"
#include "text/tiktoken_ranks.h"
#include "text/tokenizer.h"
#include "text/vocabulary_config.h"

namespace kvasir {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<TokenId>;
using nlohmann::json;

std::string Varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes.push_back(static_cast<char>(value | 0x80));
  bytes.push_back(static_cast<char>(value));
  return bytes;
}
std::string Message(int field, const std::string& bytes) {
  return Varint(static_cast<uint64_t>(field) << 3 | 2) + Varint(bytes.size()) + bytes;
}
std::string Number(int field, uint64_t value) {
  return Varint(static_cast<uint64_t>(field) << 3) + Varint(value);
}
std::string Piece(const std::string& text, float score, int kind) {
  std::string raw = Varint(2 << 3 | 5);
  const auto bits = std::bit_cast<uint32_t>(score);
  for (int i = 0; i < 4; ++i) raw.push_back(static_cast<char>(bits >> (8 * i)));
  return Message(1, Message(1, text) + raw + Number(3, static_cast<uint64_t>(kind)));
}

const std::string kPieces = Piece("<unk>", 0, 2) + Piece("<s>", 0, 3) + Piece("</s>", 0, 3) +
                            Piece("\xE2\x96\x81", -1, 1) + Piece("a", -2, 1) +
                            Piece(
                                "\xE2\x96\x81"
                                "a",
                                -3, 1);
const std::string kBpe = Message(2, Number(3, 2));
const std::string kPlain = Message(3, Number(4, 0));

Result<std::unique_ptr<Tokenizer>> LoadBytes(const std::string& bytes,
                                             const VocabularyConfig& config = {}) {
  auto vocabulary = ParseSentencePiece(bytes, "tokenizer.model");
  if (!vocabulary) return tl::unexpected(vocabulary.error());
  if (const Status applied = Apply(config, &*vocabulary); !applied) {
    return tl::unexpected(applied.error());
  }
  return Tokenizer::Make(*vocabulary);
}

TEST(SentencePieceModel, IsReadWithWhatTheFolderSays) {
  const auto plain = LoadBytes(kPieces + kBpe + kPlain);
  ASSERT_TRUE(plain) << plain.error().message;
  EXPECT_EQ((*plain)->Encode("a a</s>a").value(), (Ids{1, 5, 5, 2, 5}));
  EXPECT_EQ((*plain)->eos(), TokenId{2});
  const char* config = R"({"add_bos_token": false, "eos_token": "<e>", "legacy": false,
      "added_tokens_decoder": {"7": {"content": "<e>", "special": true, "rstrip": true},
                               "0": {"content": "<unk>", "special": true}}})";
  const auto chat = LoadBytes(kPieces + kBpe + kPlain, {config, "", R"({"<e>": 7, "  ": 6})"});
  ASSERT_TRUE(chat) << chat.error().message;
  EXPECT_EQ((*chat)->eos_text(), "<e>");
  EXPECT_EQ((*chat)->Encode("a<e> \na  ?").value(), (Ids{5, 7, 4, 6, 0}));
}

TEST(SentencePieceModel, RefusesOtherKindsByName) {
  const auto refused = [](const std::string& bytes, const char* part) {
    const auto tokenizer = LoadBytes(bytes);
    ASSERT_FALSE(tokenizer);
    EXPECT_EQ(tokenizer.error().code, Code::kUnsupported);
    EXPECT_NE(tokenizer.error().message.find(part), std::string::npos) << tokenizer.error().message;
  };
  refused(kPieces + Message(2, Number(3, 3)), "neither unigram nor BPE");
  refused(kPieces + kBpe + Message(3, Number(5, 0)), "keeps spaces");
  refused(kPieces + Message(2, Number(3, 2) + Number(24, 1)), "after words");
}

TEST(SentencePieceModel, RefusesDamage) {
  const std::string whole = kPieces + kBpe + kPlain;
  std::set<size_t> field_ends;  // where a cut file is a shorter model
  for (size_t at = 0; at < whole.size(); at += 2 + static_cast<uint8_t>(whole[at + 1])) {
    field_ends.insert(at);
  }
  EXPECT_EQ(field_ends.size(), 8u);
  for (size_t size = 0; size < whole.size(); ++size) {
    const auto cut = LoadBytes(whole.substr(0, size));
    if (size > 0 && field_ends.contains(size)) {
      EXPECT_EQ(cut.has_value(), size == (kPieces + kBpe).size()) << size;
      continue;
    }
    ASSERT_FALSE(cut) << size;
    EXPECT_EQ(cut.error().code, Code::kCorruption) << size;
    EXPECT_NE(cut.error().message.find("not a SentencePiece model"), std::string::npos) << size;
  }
  EXPECT_EQ(LoadBytes("").error().code, Code::kCorruption);
  EXPECT_EQ(LoadBytes("{}").error().code, Code::kCorruption);
  const auto table = LoadBytes(kPieces + kBpe + Message(3, Message(2, "table")));
  EXPECT_EQ(table.error().code, Code::kCorruption);
  EXPECT_NE(table.error().message.find("precompiled_charsmap"), std::string::npos);
  EXPECT_EQ(LoadBytes(kPieces + Piece("b", 0, 9) + kBpe).error().code, Code::kCorruption);
  EXPECT_EQ(LoadBytes(kPieces + Piece("a", 0, 1) + kBpe).error().code, Code::kCorruption);
  for (const char* config :
       {"[", R"({"added_tokens_decoder": {"x": {}}})", R"({"add_bos_token": 1})",
        R"({"added_tokens_decoder": {"7": {"content": 1}}})", R"({"eos_token": {"content": 1}})",
        R"({"added_tokens_decoder": {"7": {"content": "q", "special": 1}}})",
        R"({"added_tokens_decoder": {"99999999999": {"content": "q"}}})"}) {
    const auto refused = LoadBytes(whole, {config, "", ""});
    EXPECT_EQ(refused.error().code, Code::kCorruption) << config;
    EXPECT_TRUE(refused.error().message.starts_with("tokenizer_config.json: "))
        << refused.error().message;
  }
  const auto specials = LoadBytes(whole, {"", R"({"eos_token": {"content": 1}})", ""});
  EXPECT_TRUE(specials.error().message.starts_with("special_tokens_map.json: "))
      << specials.error().message;
  EXPECT_EQ(LoadBytes(whole, {"", "", R"({"q": -1})"}).error().code, Code::kCorruption);
}

TEST(SentencePieceModel, KeepsNoMoreTokensThanTheModelHas) {
  const std::string whole = kPieces + kBpe + kPlain;
  EXPECT_TRUE(ParseSentencePiece(whole, "dir/tokenizer.model", 6));
  const auto refused = ParseSentencePiece(whole, "dir/tokenizer.model", 5);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kInvalidArgument);
  for (const char* part : {"dir/tokenizer.model", "which has 5", "another model"}) {
    EXPECT_NE(refused.error().message.find(part), std::string::npos) << refused.error().message;
  }
}

TEST(SentencePieceModel, GivesTheIdsOfTheTokenizerJsonBesideIt) {
  const fs::path goldens = fs::path(KVASIR_SHARED_DIR) / "goldens";
  KV_NEEDS(goldens);
  size_t count = 0;
  for (const auto& folder : fs::directory_iterator(goldens)) {
    const fs::path model = folder.path() / "tokenizer.model";
    if (!fs::exists(model)) continue;
    const std::string config = ReadFile(folder.path() / "tokenizer_config.json");
    const auto tokenizer = LoadBytes(ReadFile(model), {config, "", ""});
    ASSERT_TRUE(tokenizer) << model << ": " << tokenizer.error().message;
    const json golden = json::parse(ReadFile(folder.path() / "golden.json"));
    for (const json& test : golden["tokenizer"]["texts"]) {
      const Ids ids = test["ids"];
      EXPECT_EQ((*tokenizer)->Encode(test["text"].get<std::string>()).value(), ids) << folder;
      EXPECT_EQ((*tokenizer)->Decode(ids), test["decoded"].get<std::string>()) << folder;
      ++count;
    }
  }
  EXPECT_GE(count, 30u);
}

TEST(SentencePieceModel, GivesTheIdsOfSentencePiece) {
  const fs::path folder = fs::path(KVASIR_SOURCE_DIR) / "tests/data/tokenizer";
  const char* config = R"({"add_bos_token": false})";
  const auto tokenizer = LoadBytes(ReadFile(folder / "spm-tiny.model"), {config, "", ""});
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  std::ifstream golden(folder / "spm-tiny.jsonl");
  size_t count = 0;
  for (std::string line; std::getline(golden, line); ++count) {
    const json test = json::parse(line);
    const Ids ids = test["ids"];
    EncodeOptions options;
    options.parse_special = false;  // SentencePiece never reads </s> in a text
    EXPECT_EQ((*tokenizer)->Encode(test["text"].get<std::string>(), options).value(), ids) << line;
  }
  EXPECT_EQ(count, 60u);
}

// "a", "b", " ", "ab", and a byte that is not a character.
const char* const kRanks = "YQ== 0\nYg== 1\nIA== 2\nYWI= 3\n/w== 4\n";

TEST(TiktokenRanks, HaveThePatternAndTheSpecialTokensOfTheFamily) {
  EXPECT_TRUE(LooksLikeTiktoken(kRanks));
  EXPECT_FALSE(LooksLikeTiktoken(kPieces));
  const auto vocabulary = ParseTiktoken(kRanks, "dir/tokenizer.model", "llama");
  ASSERT_TRUE(vocabulary) << vocabulary.error().message;
  EXPECT_EQ(vocabulary->pre, "llama-bpe");
  const auto tokenizer = Tokenizer::Make(*vocabulary);
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  EXPECT_EQ((*tokenizer)->Encode("ab a<|eot_id|>").value(), (Ids{5, 3, 2, 0, 14}));
  EXPECT_EQ((*tokenizer)->Decode(Ids{4}), "\xEF\xBF\xBD");
  EXPECT_EQ(ParseTiktoken(kRanks, "dir/qwen.tiktoken", "else")->pre, "qwen2");
}

// Writes each rank in base64 (three bytes of it), but the one of `gap`.
std::string Ranks(uint32_t count, uint32_t gap) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string ranks;
  for (uint32_t rank = 0; rank < count; ++rank) {
    if (rank == gap) continue;
    for (const int shift : {18, 12, 6, 0}) ranks += kDigits[(rank >> shift) & 63];
    ranks += " " + std::to_string(rank) + "\n";
  }
  return ranks;
}

// Ids of tiktoken's own encodings.
TEST(TiktokenRanks, HaveTheSpecialTokensOfTiktokensEncodings) {
  struct Case {
    const char *file, *architecture;
    uint32_t ranks, gap;
    std::vector<std::pair<const char*, TokenId>> specials;
  };
  const uint32_t none = UINT32_MAX;
  for (const Case& known :
       std::vector<Case>{{"r50k_base.tiktoken", "else", 50256, none, {{"<|endoftext|>", 50256}}},
                         {"x.tiktoken", "gpt2", 50256, none, {{"<|endoftext|>", 50256}}},
                         {"p50k_base.tiktoken", "else", 50281, 50256, {{"<|endoftext|>", 50256}}},
                         {"x.tiktoken",
                          "phi3",
                          100256,
                          none,
                          {{"<|endoftext|>", 100257},
                           {"<|fim_prefix|>", 100258},
                           {"<|fim_middle|>", 100259},
                           {"<|fim_suffix|>", 100260},
                           {"<|endofprompt|>", 100276}}},
                         {"o200k_base.tiktoken",
                          "else",
                          199998,
                          none,
                          {{"<|endoftext|>", 199999}, {"<|endofprompt|>", 200018}}}}) {
    const auto vocabulary =
        ParseTiktoken(Ranks(known.ranks, known.gap), known.file, known.architecture);
    ASSERT_TRUE(vocabulary) << vocabulary.error().message;
    EXPECT_EQ(vocabulary->eos, known.specials[0].second) << known.file;
    for (const auto& [text, id] : known.specials) {
      EXPECT_EQ(vocabulary->tokens[static_cast<size_t>(id)].text, text) << known.file;
      EXPECT_EQ(vocabulary->tokens[static_cast<size_t>(id)].kind, TokenKind::kControl);
    }
    EXPECT_EQ(vocabulary->tokens.size(),
              std::max<size_t>(known.ranks, static_cast<size_t>(known.specials.back().second) + 1));
  }
  EXPECT_FALSE(ParseTiktoken(kRanks, "x.tiktoken", "dbrx")) << "no family that runs";
}

TEST(TiktokenRanks, SpecialTokensWithFreeIdsBetweenThemAreRead) {
  const auto vocabulary = ParseTiktoken(kRanks, "cl100k_base.tiktoken", "");
  ASSERT_TRUE(vocabulary);
  const auto tokenizer = Tokenizer::Make(*vocabulary);
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  EXPECT_EQ((*tokenizer)->Encode("ab<|endoftext|>a<|endofprompt|>").value(), (Ids{3, 6, 0, 25}));
}

TEST(TiktokenRanks, RefuseUnknownFamiliesAndDamage) {
  const auto unknown = ParseTiktoken(kRanks, "x.tiktoken", "mystery");
  EXPECT_EQ(unknown.error().code, Code::kUnsupported);
  EXPECT_NE(unknown.error().message.find("tokenizer.json"), std::string::npos);
  for (const char* line :
       {"YQ==", "YQ== x", "YQ== -1", "Y! 5", " 5", "YQ== 99999999", "YQ== 999999", "Yw== 1"}) {
    const auto broken = ParseTiktoken(std::string(kRanks) + line + "\n", "x", "llama");
    EXPECT_EQ(broken.error().code, Code::kCorruption) << line;
    EXPECT_NE(broken.error().message.find("line 6"), std::string::npos) << line;
  }
}

}  // namespace
}  // namespace kvasir
