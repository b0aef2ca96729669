#include "grammar/regular_expression.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "grammar/grammar_text.h"
#include "grammar/matcher.h"

namespace kvasir {
namespace {

TEST(RegularExpression, ReadsWhatItNames) {
  const auto matches = [](std::string_view pattern, std::string_view text) {
    const auto grammar = CompileGrammarText(FormatLanguage::kRegularExpression, pattern);
    EXPECT_TRUE(grammar.has_value()) << pattern << ": " << grammar.error().message;
    if (!grammar) return false;
    Matcher matcher(*grammar);
    return matcher.Advance(text) && matcher.Accepts();
  };
  EXPECT_TRUE(matches("^[a-c]+(?:x|yy)?\\d{2,3}$", "abyy123"));
  EXPECT_FALSE(matches("[a-c]+(x|yy)?\\d{2,3}", "abyy1"));
  EXPECT_TRUE(matches("\\w+\\s\\S+?", "a_1 -b"));
  EXPECT_FALSE(matches("\\D", "1"));
  EXPECT_TRUE(matches("[^\\d\\s]\\.\\u00e4\\x41",
                      "x.\xC3\xA4"
                      "A"));
  EXPECT_TRUE(matches("(?<year>\\d{4})-{0,1}a{2,}b{x", "2024-aaab{x"));
  EXPECT_FALSE(matches("a.b", "a\nb"));
  EXPECT_TRUE(matches("a|b|", ""));
}

TEST(RegularExpression, SaysWhatItDoesNotSupport) {
  const auto error = [](std::string_view pattern) {
    const auto grammar = CompileGrammarText(FormatLanguage::kRegularExpression, pattern);
    EXPECT_FALSE(grammar.has_value()) << pattern;
    return grammar ? "" : grammar.error().message;
  };
  for (const std::string_view pattern : {"(a",
                                         "a)",
                                         "[a",
                                         "a**",
                                         "*a",
                                         "a++",
                                         "\\b",
                                         "\\1",
                                         "\\pL",
                                         "(?=a)",
                                         "(?<!a)",
                                         "a^b",
                                         "a$b",
                                         "(a$)",
                                         "[b-a]",
                                         "[\\d-z]",
                                         "a{3,2}",
                                         "a{999999999}",
                                         "a{2,99999999999999}",
                                         "\\",
                                         "\\x4",
                                         "[]",
                                         "\xFF",
                                         "((((a{99}){99}){99}){99})"}) {
    EXPECT_NE(error(pattern), "") << pattern;
  }
  EXPECT_NE(error("[" + std::string(200'000, 'a') + "]").find("more than 100000 ranges"),
            std::string::npos);
}

TEST(RegularExpression, RefusesMorePartsThanASourceKeeps) {
  const auto write = [](GrammarSource* source, std::vector<CharRange> ranges) {
    return source->Class(std::move(ranges));
  };
  for (const std::string_view part : {"|", ".", "(|)", "a?"}) {
    std::string pattern;
    while (pattern.size() + part.size() <= kMaxGrammarBytes) pattern += part;
    GrammarSource source;
    const auto added = AddRegularExpression(pattern, Extent::kWhole, write, &source);
    ASSERT_FALSE(added.has_value()) << part;
    EXPECT_NE(added.error().message.find("larger than 500000 parts"), std::string::npos) << part;
    EXPECT_LE(source.num_expressions(), 500'000u) << part;
  }
}

}  // namespace
}  // namespace kvasir
