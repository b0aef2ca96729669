#include "schedule/answer_formats.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "chat/answer_format.h"
#include "schedule/bytes_tokenizer_for_test.h"

namespace kvasir {
namespace {

constexpr uint32_t kFormatVocab = 260;
constexpr uint64_t kFormatBudget = 8 << 20;

AnswerFormat DigitsFormat() {
  return {.text = AnswerFormat::Text{.language = FormatLanguage::kRegularExpression,
                                     .text = "[0-9]{3}",
                                     .field = "pattern"}};
}

AnswerFormat ToolFormat() {
  AnswerFormat format;
  format.calls = &FindCallFormat("<tool_call>");
  format.tools = {{.name = "clock", .parameters = ""}};
  return format;
}

class AnswerFormatsTest : public testing::Test {
 protected:
  const std::unique_ptr<Tokenizer> tokenizer_ = BytesTokenizer();
  AnswerFormats formats_{tokenizer_.get(), kFormatVocab, {256}, kFormatBudget};
};

TEST_F(AnswerFormatsTest, AnyTextNeedsNothing) {
  const auto compiled = formats_.Compile({}, "a");
  ASSERT_TRUE(compiled);
  EXPECT_EQ(compiled->whole, nullptr);
  EXPECT_EQ(compiled->masks, nullptr);
  EXPECT_EQ(formats_.bytes(), 0u) << "the vocabulary's trie is made when it is needed";
}

TEST_F(AnswerFormatsTest, AGrammarIsKeptForItsOwner) {
  const auto first = formats_.Compile(DigitsFormat(), "a");
  ASSERT_TRUE(first) << first.error().text();
  ASSERT_NE(first->whole, nullptr);
  EXPECT_NE(first->masks, nullptr);
  EXPECT_EQ(first->closing, nullptr);
  const uint64_t bytes = formats_.bytes();
  EXPECT_GT(bytes, 0u);
  EXPECT_LE(bytes, kFormatBudget);
  EXPECT_EQ(formats_.Compile(DigitsFormat(), "a")->whole, first->whole);
  EXPECT_EQ(formats_.bytes(), bytes);
  EXPECT_NE(formats_.Compile(DigitsFormat(), "b")->whole, first->whole)
      << "no time says that somebody else asked for it";
}

TEST_F(AnswerFormatsTest, ALimitOfThoughtsNeedsTheGrammarAfterThem) {
  AnswerFormat format = DigitsFormat();
  format.think = FindThinkMarks("<think></think>");
  ASSERT_NE(format.think, nullptr);
  EXPECT_EQ(formats_.Compile(format, "a")->closing, nullptr);
  format.max_thought_tokens = 5;
  const auto compiled = formats_.Compile(format, "a");
  ASSERT_TRUE(compiled) << compiled.error().text();
  EXPECT_NE(compiled->whole, nullptr);
  EXPECT_NE(compiled->closing, nullptr);
  EXPECT_NE(compiled->closing, compiled->whole);
}

TEST_F(AnswerFormatsTest, WordsAreThoseOfTheVocabulary) {
  const auto words = formats_.Words();
  ASSERT_TRUE(words);
  EXPECT_EQ(*formats_.Words(), *words) << "made once";
  EXPECT_EQ(formats_.bytes(), (*words)->bytes());
}

TEST(AnswerFormats, WithoutATokenizerOnlyWhatIsPromisedFails) {
  AnswerFormats formats(nullptr, kFormatVocab, {256}, kFormatBudget);
  const auto pattern = formats.Compile(DigitsFormat(), "a");
  ASSERT_FALSE(pattern);
  EXPECT_EQ(pattern.error().code, Code::kUnsupported);
  EXPECT_EQ(pattern.error().field, "pattern");
  AnswerFormat tools = ToolFormat();
  const auto free = formats.Compile(tools, "a");
  ASSERT_TRUE(free) << "calls are read from free text";
  EXPECT_EQ(free->whole, nullptr);
  tools.must_call = true;
  const auto called = formats.Compile(tools, "a");
  ASSERT_FALSE(called);
  EXPECT_EQ(called.error().field, "tools");
  EXPECT_EQ(formats.Words().error().field, "samplers");
}

TEST(AnswerFormats, AVocabularyLargerThanHalfOfTheBudgetIsRefused) {
  const auto tokenizer = BytesTokenizer();
  AnswerFormats formats(tokenizer.get(), kFormatVocab, {256}, /*budget_bytes=*/1024);
  for (int again = 0; again < 2; ++again) {
    const auto refused = formats.Compile(DigitsFormat(), "a");
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Code::kUnsupported);
    EXPECT_NE(refused.error().message.find("--grammar-memory"), std::string::npos);
  }
  EXPECT_EQ(formats.bytes(), 0u);
}

}  // namespace
}  // namespace kvasir
