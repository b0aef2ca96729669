#include "grammar/grammar_store.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "base/result.h"
#include "grammar/grammar_text.h"
#include "grammar/matcher.h"

namespace kvasir {
namespace {

std::shared_ptr<const TokenTrie> LettersTrie() {
  std::vector<std::string> texts;
  for (int byte = 0; byte < 256; ++byte) texts.emplace_back(1, static_cast<char>(byte));
  return std::make_shared<const TokenTrie>(texts, std::vector<TokenId>());
}

Result<std::shared_ptr<const Grammar>> Get(GrammarStore& store, FormatLanguage language,
                                           std::string_view text) {
  Sha256 sha;
  return store.Get(sha.UpdateU64(static_cast<uint64_t>(language)).Update(text).Finish(),
                   [&] { return CompileGrammarText(language, text); });
}

TEST(GrammarStore, CompilesEachTextOnce) {
  GrammarStore store(LettersTrie(), 1 << 20);
  const auto one = Get(store, FormatLanguage::kGbnf, "root ::= \"a\"");
  ASSERT_TRUE(one.has_value());
  EXPECT_EQ(*Get(store, FormatLanguage::kGbnf, "root ::= \"a\""), *one);
  EXPECT_NE(*Get(store, FormatLanguage::kGbnf, "root ::= \"b\""), *one);
  EXPECT_NE(*Get(store, FormatLanguage::kRegularExpression, "a"), *one);
  EXPECT_GE(store.bytes(), 2 * (*one)->bytes());
}

TEST(GrammarStore, ReadsEachLanguage) {
  GrammarStore store(LettersTrie(), 1 << 20);
  const auto has = [&](FormatLanguage language, std::string_view text, std::string_view answer) {
    const auto grammar = Get(store, language, text);
    EXPECT_TRUE(grammar.has_value()) << grammar.error().message;
    if (!grammar) return false;
    Matcher matcher(*grammar);
    return matcher.Advance(answer) && matcher.Accepts();
  };
  EXPECT_TRUE(has(FormatLanguage::kJsonSchema, R"({"type":"null","x":1})", "null"));
  EXPECT_FALSE(
      Get(store, FormatLanguage::kStrictJsonSchema, R"({"type":"null","x":1})").has_value());
  EXPECT_TRUE(has(FormatLanguage::kRegularExpression, "a+", "aa"));
  EXPECT_TRUE(has(FormatLanguage::kTexts, R"(["yes","no"])", "no"));
  for (const std::string_view wrong : {"[]", "[1]", "[1,\"a\"]", "{}", "[", "\"a\""}) {
    EXPECT_FALSE(Get(store, FormatLanguage::kTexts, wrong).has_value()) << wrong;
  }
  const std::string deep = std::string(1000, '[') + std::string(1000, ']');
  EXPECT_FALSE(Get(store, FormatLanguage::kJsonSchema, deep).has_value());
}

TEST(GrammarStore, StaysWithinItsBudgetWithManyThreads) {
  static constexpr uint64_t kBudget = 64 << 10;
  GrammarStore store(LettersTrie(), kBudget);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&store, thread] {
      std::vector<uint64_t> words(MaskWords(256));
      for (int i = 0; i < 300; ++i) {
        const std::string text = fmt::format("[a-z]{{1,{}}}x", 1 + (i * 7 + thread) % 60);
        const auto grammar = Get(store, FormatLanguage::kRegularExpression, text);
        ASSERT_TRUE(grammar.has_value());
        Matcher matcher(*grammar);
        matcher.Mask(store.masks(), words);
        EXPECT_TRUE(IsLegal(words, 'a'));
        EXPECT_FALSE(IsLegal(words, 'A'));
        EXPECT_LE(store.bytes(), kBudget);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(store.bytes(), kBudget / 8);
}

TEST(GrammarStore, WhoHoldsAGrammarKeepsIt) {
  GrammarStore store(LettersTrie(), 0);
  const auto grammar = Get(store, FormatLanguage::kRegularExpression, "ab");
  ASSERT_TRUE(grammar.has_value());
  EXPECT_GE(store.bytes(), (*grammar)->bytes());  // it counts, though it is too large to be kept
  EXPECT_EQ(Get(store, FormatLanguage::kRegularExpression, "cd").error().code, Code::kExhausted);
  Matcher matcher(*grammar);
  EXPECT_TRUE(matcher.Advance("ab"));
}

TEST(GrammarStore, AGrammarWaitsForTheRoomOfAnother) {
  GrammarStore store(LettersTrie(), 0);
  auto held = Get(store, FormatLanguage::kRegularExpression, "ab");
  ASSERT_TRUE(held.has_value());
  std::thread other([&] {
    const auto grammar = store.Get(
        Sha256().Update("cd").Finish(),
        [] { return CompileGrammarText(FormatLanguage::kRegularExpression, "cd"); },
        std::chrono::minutes(1));
    EXPECT_TRUE(grammar.has_value());
  });
  held = Fail(Code::kCancelled, "given back");
  other.join();
  EXPECT_EQ(store.bytes(), 0U);
}

}  // namespace
}  // namespace kvasir
