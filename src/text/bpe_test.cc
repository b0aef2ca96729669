#include "text/bpe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "base/random.h"
#include "base/rounds_for_test.h"

namespace kvasir {
namespace {

using nlohmann::json;
using Ids = std::vector<TokenId>;
using Texts = std::vector<std::string>;

constexpr size_t kNoLimit = 1 << 30;

Bpe MustParse(const json& model) {
  auto bpe = Bpe::Parse(model);
  EXPECT_TRUE(bpe) << bpe.error().message;
  return std::move(*bpe);
}

// Makes a model whose tokens have ids in their order.
json Model(const Texts& tokens, const Texts& merges, const json& options = json::object()) {
  json model = {{"type", "BPE"}, {"vocab", json::object()}, {"merges", merges}};
  for (size_t i = 0; i < tokens.size(); ++i) model["vocab"][tokens[i]] = i;
  model.update(options);
  return model;
}

Texts Encode(const Bpe& bpe, std::string_view word, Bpe::Special special = Bpe::Special::kAllowed) {
  Ids ids;
  const Status status = bpe.Encode(word, special, kNoLimit, &ids);
  if (!status) return {status.error().message};
  Texts texts;
  for (const TokenId id : ids) texts.emplace_back(bpe.TextOf(id));
  return texts;
}

void ExpectRefused(const json& model, Code code, std::string_view what) {
  const auto bpe = Bpe::Parse(model);
  ASSERT_FALSE(bpe) << model.dump();
  EXPECT_EQ(bpe.error().code, code) << bpe.error().message;
  EXPECT_NE(bpe.error().message.find(what), std::string::npos) << bpe.error().message;
}

TEST(Bpe, MergesTheLowestRankFirstAndTheLeftmostOfEqualOnes) {
  const Bpe bpe =
      MustParse(Model({"a", "b", "c", "bc", "ab", "aa", "abc"}, {"b c", "a b", "a a", "a bc"}));
  EXPECT_EQ(Encode(bpe, "abc"), (Texts{"abc"}));  // b c before a b
  EXPECT_EQ(Encode(bpe, "aaa"), (Texts{"aa", "a"}));
  EXPECT_EQ(Encode(bpe, "abab"), (Texts{"ab", "ab"}));
  EXPECT_EQ(Encode(bpe, "cab"), (Texts{"c", "ab"}));
  EXPECT_EQ(Encode(bpe, ""), Texts{});
}

TEST(Bpe, AppendsToWhatIsThere) {
  const Bpe bpe = MustParse(Model({"a", "b", "ab"}, {"a b"}));
  Ids ids = {7, 0};
  ASSERT_TRUE(bpe.Encode("bab", Bpe::Special::kAllowed, kNoLimit, &ids));
  EXPECT_EQ(ids, (Ids{7, 0, 1, 2}));
}

TEST(Bpe, TokensAreFoundByTextAndById) {
  const Bpe bpe = MustParse(
      {{"vocab", {{"a", 5}, {"\u00e9", 2}, {"\U0001F600", 9}}}, {"merges", json::array()}});
  EXPECT_EQ(bpe.IdOf("\u00e9"), 2);
  EXPECT_EQ(bpe.IdOf("b"), std::nullopt);
  EXPECT_EQ(bpe.TextOf(9), "\U0001F600");
  for (const TokenId none : {-1, 0, 10, 1 << 30}) EXPECT_EQ(bpe.TextOf(none), "") << none;
  EXPECT_EQ(bpe.num_tokens(), 3u);
  EXPECT_EQ(bpe.max_id(), 9);
  EXPECT_EQ(Encode(bpe, "\U0001F600a\u00e9"), (Texts{"\U0001F600", "a", "\u00e9"}));
  EXPECT_EQ(MustParse(Model({}, {})).max_id(), -1);
}

TEST(Bpe, MergesComeAsTextOrAsPairs) {
  const Texts tokens = {"a", "b", "ab", " ", "a ", "a b"};
  json pairs = Model(tokens, {});
  pairs["merges"].push_back(json::array({"a", "b"}));
  EXPECT_EQ(Encode(MustParse(pairs), "ab"), (Texts{"ab"}));
  EXPECT_EQ(Encode(MustParse(Model(tokens, {"#version: 0.2", "a b"})), "ab"), (Texts{"ab"}));
  // Tokens with spaces: the one split whose parts and whole are tokens.
  EXPECT_EQ(Encode(MustParse(Model(tokens, {"a  ", "a  b"})), "a b"), (Texts{"a b"}));
}

TEST(Bpe, AnUnknownCharacterIsDroppedOrTheUnknownToken) {
  const Texts tokens = {"a", "<unk>", "<0xC3>", "<0xA9>"};
  const Texts none;
  EXPECT_EQ(Encode(MustParse(Model(tokens, none)), "axya"), (Texts{"a", "a"}));
  const json unk = {{"unk_token", "<unk>"}};
  EXPECT_EQ(Encode(MustParse(Model(tokens, none, unk)), "axya"),
            (Texts{"a", "<unk>", "<unk>", "a"}));
  const json fused = {{"unk_token", "<unk>"}, {"fuse_unk", true}};
  EXPECT_EQ(Encode(MustParse(Model(tokens, none, fused)), "axya"), (Texts{"a", "<unk>", "a"}));
  const json absent = {{"unk_token", "<none>"}};
  EXPECT_EQ(Encode(MustParse(Model(tokens, none, absent)), "x").at(0),
            "tokenizer.json: model.unk_token is not in the vocabulary");
}

TEST(Bpe, BytesStandForACharacterWhereAllOfThemAreTokens) {
  const Texts tokens = {"a", "<unk>", "<0xC3>", "<0xA9>"};
  const json options = {{"unk_token", "<unk>"}, {"byte_fallback", true}};
  const Bpe bpe = MustParse(Model(tokens, {}, options));
  EXPECT_EQ(Encode(bpe, "a\u00e9"), (Texts{"a", "<0xC3>", "<0xA9>"}));
  EXPECT_EQ(Encode(bpe, "\u00e8a"), (Texts{"<unk>", "a"}));  // <0xA8> is not in the vocabulary
  // As `tokenizers`: what waits to be fused is written after the bytes.
  EXPECT_EQ(Encode(bpe, "x\u00e9"), (Texts{"<0xC3>", "<0xA9>", "<unk>"}));
}

TEST(Bpe, AWholeWordIsTakenWhereMergesAreIgnored) {
  const Texts tokens = {"a", "b", "aba", "ab"};
  const json ignore = {{"ignore_merges", true}};
  EXPECT_EQ(Encode(MustParse(Model(tokens, {"a b"})), "aba"), (Texts{"ab", "a"}));
  Bpe bpe = MustParse(Model(tokens, {"a b"}, ignore));
  EXPECT_EQ(Encode(bpe, "aba"), (Texts{"aba"}));
  EXPECT_EQ(Encode(bpe, "abab"), (Texts{"ab", "ab"}));
  bpe.Protect({false, false, true});
  EXPECT_EQ(Encode(bpe, "aba", Bpe::Special::kProtected), (Texts{"ab", "a"}));
  EXPECT_EQ(Encode(bpe, "aba"), (Texts{"aba"}));
}

TEST(Bpe, ProtectedIdsAreMadeInNoWay) {
  const Texts tokens = {"a", "b", "ab", "c", "<0x63>", "<unk>"};
  const json options = {{"byte_fallback", true}, {"unk_token", "<unk>"}};
  Bpe bpe = MustParse(Model(tokens, {"a b"}, options));
  bpe.Protect({false, false, true, true});
  EXPECT_EQ(Encode(bpe, "abc"), (Texts{"ab", "c"}));
  EXPECT_EQ(Encode(bpe, "abc", Bpe::Special::kProtected), (Texts{"a", "b", "<0x63>"}));
  bpe.Protect({false, false, true, true, true});
  EXPECT_EQ(Encode(bpe, "abc", Bpe::Special::kProtected), (Texts{"a", "b", "<unk>"}));
  std::string longer;
  for (int i = 0; i < 40; ++i) longer += "ab";
  const Texts texts = Encode(bpe, longer, Bpe::Special::kProtected);
  EXPECT_EQ(texts.size(), 80u);
}

TEST(Bpe, StopsSoonAfterTheMostIds) {
  const Bpe bpe = MustParse(Model({"a", "b", "ab"}, {"a b"}));
  Ids ids;
  const Status status = bpe.Encode(std::string(5000, 'b'), Bpe::Special::kAllowed, 100, &ids);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Code::kExhausted);
  EXPECT_LT(ids.size(), 200u);
}

TEST(Bpe, RefusesWhatItCannotEncodeWith) {
  const json good = Model({"a", "b", "ab"}, {"a b"});
  const auto with = [&](const json& change) {
    json model = good;
    model.update(change);
    return model;
  };
  using enum Code;
  ExpectRefused(json::array(), kCorruption, "model is not an object");
  ExpectRefused(with({{"type", "WordPiece"}}), kUnsupported, "WordPiece");
  ExpectRefused({{"vocab", json::array()}}, kUnsupported, "Unigram");
  ExpectRefused(with({{"vocab", 1}}), kCorruption, "vocab is missing");
  ExpectRefused(with({{"merges", 1}}), kCorruption, "merges is missing");
  ExpectRefused(with({{"continuing_subword_prefix", "##"}}), kUnsupported, "##");
  ExpectRefused(with({{"dropout", 0.1}}), kUnsupported, "dropout");
  ExpectRefused(with({{"fuse_unk", "yes"}}), kCorruption, "fuse_unk is not a boolean");
  for (const json& id : {json(-1), json(1.5), json("1"), json(1 << 22), json(~0ull)}) {
    ExpectRefused(with({{"vocab", {{"a", id}}}}), kCorruption, "id of token \"a\"");
  }
  ExpectRefused(with({{"merges", json::array({"ab"})}}), kCorruption, "is not two tokens");
  ExpectRefused(with({{"merges", json::array({"a c"})}}), kCorruption, "is not in the vocabulary");
  ExpectRefused(with({{"merges", json::array({"b a"})}}), kCorruption,
                "is not in the vocabulary");  // "ba"
  ExpectRefused(with({{"merges", json::array({json::array({"a", "b", "c"})})}}), kCorruption,
                "neither");
  EXPECT_TRUE(Bpe::Parse(with({{"dropout", 0.0}, {"unk_token", nullptr}})));
}

// Encodes by the definition: look for the lowest rank, leftmost first, join, and begin again.
Texts EncodeByDefinition(Texts symbols,
                         const std::map<std::pair<std::string, std::string>, int>& rank,
                         const std::set<std::string>& never) {
  while (true) {
    int best_rank = 1 << 30;
    size_t best = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto it = rank.find({symbols[i], symbols[i + 1]});
      if (it == rank.end() || it->second >= best_rank) continue;
      if (never.contains(symbols[i] + symbols[i + 1])) continue;
      best_rank = it->second;
      best = i;
    }
    if (best_rank == 1 << 30) return symbols;
    symbols[best] += symbols[best + 1];
    symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(best) + 1);
  }
}

// Words below and above the length where the way of merging changes; ASCII and long characters.
TEST(Bpe, RandomModelsEncodeRandomWordsByTheDefinition) {
  for (uint64_t seed = 1; seed <= Rounds(60u, 15u); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    const Texts chars = {"a", "b", "\u00e9", "\u4e2d", "\U0001F600"};
    const size_t num_chars = 2 + random.Below(4);
    Texts tokens(chars.begin(), chars.begin() + static_cast<ptrdiff_t>(num_chars));
    std::map<std::pair<std::string, std::string>, int> rank;
    json merges = json::array();
    for (uint64_t i = random.Below(30); i > 0; --i) {
      const std::string left = tokens[random.Below(tokens.size())];
      const std::string right = tokens[random.Below(tokens.size())];
      if (!rank.emplace(std::pair(left, right), static_cast<int>(rank.size())).second) continue;
      merges.push_back(json::array({left, right}));
      if (std::ranges::find(tokens, left + right) == tokens.end()) tokens.push_back(left + right);
    }
    Bpe bpe = MustParse(Model(tokens, {}, {{"merges", merges}}));
    std::vector<bool> protect(tokens.size());
    std::set<std::string> never;
    for (size_t i = num_chars; i < tokens.size(); ++i) {
      if (random.Below(4) != 0) continue;
      protect[i] = true;
      never.insert(tokens[i]);
    }
    bpe.Protect(protect);
    for (int round = 0; round < 60; ++round) {
      Texts symbols(random.Below(random.Below(2) == 0 ? 12 : 150));
      std::string word;
      for (std::string& symbol : symbols) word += symbol = chars[random.Below(num_chars)];
      ASSERT_EQ(Encode(bpe, word), EncodeByDefinition(symbols, rank, {})) << word;
      ASSERT_EQ(Encode(bpe, word, Bpe::Special::kProtected),
                EncodeByDefinition(symbols, rank, never))
          << word;
    }
  }
}

}  // namespace
}  // namespace kvasir
