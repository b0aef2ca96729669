#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "grammar/grammar_text.h"
#include "grammar/matcher.h"

namespace kvasir {
namespace {

bool Matches(std::string_view grammar, std::string_view text) {
  const auto compiled = CompileGrammarText(FormatLanguage::kGbnf, grammar);
  EXPECT_TRUE(compiled.has_value()) << grammar << ": " << compiled.error().message;
  if (!compiled) return false;
  Matcher matcher(*compiled);
  return matcher.Advance(text) && matcher.Accepts();
}

std::string ErrorOf(std::string_view grammar) {
  const auto compiled = CompileGrammarText(FormatLanguage::kGbnf, grammar);
  EXPECT_FALSE(compiled.has_value()) << grammar;
  return compiled ? "" : compiled.error().message;
}

TEST(Gbnf, ReadsWhatTheFormatHas) {
  const std::string_view grammar = R"(# a list
root ::= item ("," " "? item)* end # to the end of the line
item ::= [a-z]+ | "\"" [^"\\]* "\"" |
  number
number ::= "-"? [0-9]{1,3} ("." [0-9]{2,})?
end ::=
  "\n"{,2} )";
  EXPECT_TRUE(Matches(grammar, "abc"));
  EXPECT_TRUE(Matches(grammar, "abc, \"x y\",-12.345\n\n"));
  EXPECT_TRUE(Matches(grammar, "\"\xC3\xA4\xF0\x9F\x98\x80\""));
  EXPECT_FALSE(Matches(grammar, "1234"));
  EXPECT_FALSE(Matches(grammar, "1.2"));
  EXPECT_FALSE(Matches(grammar, "a\n\n\n"));
  EXPECT_FALSE(Matches(grammar, "a,"));
  EXPECT_FALSE(Matches(grammar, ""));
}

TEST(Gbnf, ReadsEscapesAndClassesOfAnyCharacter) {
  EXPECT_TRUE(
      Matches(R"(root ::= "\x41\u00e4\U0001F600\t\\\"")", "A\xC3\xA4\xF0\x9F\x98\x80\t\\\""));
  EXPECT_TRUE(Matches(R"(root ::= [\u0400-\u04FF\]\-x]{3})", "\xD0\x96]-"));
  EXPECT_FALSE(Matches(R"(root ::= [\u0400-\u04FF])", "\xD4\x80"));  // U+0500
  EXPECT_TRUE(Matches("root ::= .", "\xED\x9F\xBF"));                // U+D7FF
  EXPECT_FALSE(Matches("root ::= .", "\xED\xA0\x80"));               // a surrogate
  EXPECT_FALSE(Matches("root ::= .", "\xF4\x90\x80\x80"));           // above U+10FFFF
  EXPECT_FALSE(Matches("root ::= .", "\xC0\x80"));                   // too long
}

TEST(Gbnf, ARuleMayCallItselfAfterAByte) {
  const std::string_view grammar = R"x(root ::= "(" root* ")")x";
  EXPECT_TRUE(Matches(grammar, "(()(()))"));
  EXPECT_FALSE(Matches(grammar, "(()"));
  EXPECT_TRUE(Matches("root ::= \"a\" root | \"b\"", "aaaaab"));
}

TEST(Gbnf, SaysWhatIsWrongAndWhere) {
  const std::vector<std::pair<std::string_view, std::string_view>> cases = {
      {"", "rule 'root' is not defined"},
      {"a ::= \"x\"", "rule 'root' is not defined"},
      {"root ::= a\nb ::= \"x\"", "rule 'a' is not defined (line 1, column 10)"},
      {"root ::= \"a", "line 1, column 12: '\"' is missing"},
      {"root ::= [a", "line 1, column 12: ']' is missing"},
      {"root ::= (\"a\"", "line 1, column 14: ')' is missing"},
      {"root = \"a\"", "line 1, column 6: '::=' is missing"},
      {"root ::= \"a\" )", "line 1, column 14: unexpected ')'"},
      {"root ::= \"a\"\nroot ::= \"b\"", "line 2, column 5: rule 'root' is defined twice"},
      {"root ::= \"\\q\"", "unknown escape"},
      {"root ::= \"\\uD800\"", "not a character"},
      {"root ::= \"\\x4\"", "2 hexadecimal digits"},
      {"root ::= [b-a]", "ends before it begins"},
      {"root ::= \"a\"{3,2}", "minimum of 3 above its maximum of 2"},
      {"root ::= \"a\"{}", "no number"},
      {"root ::= \"a\"{99999999999}", "is over"},
      {"root ::= <[12]>", "tokens"},
      {"root ::= root \"a\" | \"b\"", "left-recursive"},
      {"root ::= a\na ::= b \"x\"\nb ::= \"y\"? a", "left-recursive"},
      {"root ::= e root \"a\" | \"b\"\ne ::= f*\nf ::= \"x\"", "left-recursive"},
      {"root ::= \"a\" root", "rule 'root' cannot end"},
      {"root ::= \"a\" | \"b\" a\na ::= \"x\" b\nb ::= \"y\" a", "rule 'b' cannot end"},
      {"root ::= [^\\x00-\\U0010FFFF]", "cannot end"},
      {"root ::= \xFF", "not UTF-8"},
  };
  for (const auto& [grammar, message] : cases) {
    EXPECT_NE(ErrorOf(grammar).find(message), std::string::npos) << grammar << "\n"
                                                                 << ErrorOf(grammar);
  }
}

TEST(Gbnf, RefusesWhatIsTooLarge) {
  std::string rules = "root ::= \"a\"\n";
  for (int i = 0; i < 100'000; ++i) rules += fmt::format("r{} ::= \"a\"\n", i);
  EXPECT_NE(ErrorOf(rules.substr(0, kMaxGrammarBytes)).find("more than 20000 rules"),
            std::string::npos);
  EXPECT_NE(ErrorOf(rules).find("bytes (at most"), std::string::npos);
  EXPECT_NE(ErrorOf("root ::= " + std::string(1000, '(') + "\"a\"" + std::string(1000, ')'))
                .find("nest more than"),
            std::string::npos);
  EXPECT_NE(ErrorOf("root ::= ((((((\"a\"{9}){9}){9}){9}){9}){9}){9}").find("larger than"),
            std::string::npos);
  EXPECT_NE(ErrorOf("root ::= ((\"\"{200000}){200000}){200000} \"a\"").find("larger than"),
            std::string::npos);
  EXPECT_NE(ErrorOf("root ::= ((\"a\"?){300}){30}").find("ways lead on"), std::string::npos);
  // A long text has no repetitions.
  const std::string why = ErrorOf("root ::= \"" + std::string(300'000, 'a') + "\"");
  EXPECT_NE(why.find("larger than 262144 nodes"), why.npos) << why;
  EXPECT_NE(why.find("fewer or shorter texts"), why.npos) << why;
}

TEST(Gbnf, RefusesLongChainsOfRepetitions) {
  for (const std::string_view repeat : {"?", "*", "+", "{1}"}) {
    std::string text = "root ::= \"a\"";
    for (int i = 0; i < 200'000; ++i) text += repeat;
    EXPECT_NE(ErrorOf(text).find("more than 20 repetitions"), std::string::npos) << repeat;
  }
  EXPECT_TRUE(Matches("root ::= \"a\"" + std::string(20, '?'), "a"));
}

TEST(Gbnf, RefusesMorePartsThanNodesCanBe) {
  std::string text = "root ::= ";
  for (uint32_t i = 0; i < 2 * kMaxGrammarNodes; ++i) text += ". "[i % 2];
  EXPECT_NE(ErrorOf(text).find("larger than"), std::string::npos);
  EXPECT_NE(ErrorOf(text + std::string(400'000, '.')).find("parts"), std::string::npos);
  for (const std::string_view empty : {"|", "(|)", "\"\"?"}) {
    text = "root ::= \"b\" ";
    while (text.size() < 1'000'000) text += empty;
    EXPECT_NE(ErrorOf(text).find("parts"), std::string::npos) << empty;
  }
}

// Classes without a character lead nowhere, in whatever rule they stand.
TEST(Gbnf, EmptyClassesOfSeveralRulesMatchNothing) {
  const std::string_view two = "root ::= (\"a\" [] | \"b\") r\nr ::= \"c\" [] | \"d\"";
  EXPECT_TRUE(Matches(two, "bd"));
  EXPECT_FALSE(Matches(two, "ad"));
  EXPECT_FALSE(Matches(two, "bc"));
  // It is compiled again, node by node.
  const std::string_view large = "root ::= \"x\" [] | (\"a\" | \"b\")* \"a\" (\"a\" | \"b\"){300}";
  EXPECT_FALSE(Matches(large, "xbbbbb"));
  EXPECT_FALSE(Matches(large, "x"));
  EXPECT_TRUE(Matches(large, "a" + std::string(300, 'b')));
}

// Each character of it was looked up in each repetition: 8 * 10^9 times.
TEST(Gbnf, AClassThatSaysACharacterOftenHasItOnce) {
  const std::string text = "root ::= [" + std::string(30'000, 'a') + "]{200000}";
  EXPECT_TRUE(CompileGrammarText(FormatLanguage::kGbnf, text));
}

// Sets of 60,000 instructions that each lead to another one of as many took 12 GiB.
TEST(Gbnf, GivesUpSetsThatGrowTogetherWhileTheyAreFew) {
  std::string text = "root ::= ";
  for (int i = 0; i < 60'000; ++i) text += fmt::format("\"{}\"? ", static_cast<char>('a' + i % 26));
  EXPECT_NE(ErrorOf(text).find("ways lead on"), std::string::npos);
}

TEST(Gbnf, TakesNestedRepetitionsThatFit) {
  const std::string_view grammar = "root ::= ((\"a\"{9}){9}){9}";
  EXPECT_TRUE(Matches(grammar, std::string(729, 'a')));
  EXPECT_FALSE(Matches(grammar, std::string(728, 'a')));
  EXPECT_TRUE(Matches("root ::= ((\"a\"*)*)*", std::string(100, 'a')));
  EXPECT_TRUE(Matches("root ::= ((\"a\"?){30}){30}", std::string(900, 'a')));
}

}  // namespace
}  // namespace kvasir
