#include "jinja/lexer.h"

#include <gtest/gtest.h>

#include <string>

namespace kvasir::jinja {
namespace {

// Writes tokens in one line: data and strings in quotes, newlines as |, tags as they are written.
std::string Dump(std::string_view source) {
  const auto tokens = Tokenize(source);
  if (!tokens) return tokens.error().message;
  std::string out;
  for (const Token& token : *tokens) {
    if (!out.empty()) out += ' ';
    switch (token.kind) {
      case Token::Kind::kData:
        out += '"' + token.text + '"';
        break;
      case Token::Kind::kVariableBegin:
        out += "{{";
        break;
      case Token::Kind::kVariableEnd:
        out += "}}";
        break;
      case Token::Kind::kBlockBegin:
        out += "{%";
        break;
      case Token::Kind::kBlockEnd:
        out += "%}";
        break;
      case Token::Kind::kName:
        out += token.text;
        break;
      case Token::Kind::kString:
        out += "str:" + token.text;
        break;
      case Token::Kind::kInteger:
        out += "int:" + token.text;
        break;
      case Token::Kind::kFloat:
        out += "float:" + token.text;
        break;
      case Token::Kind::kOperator:
        out += token.text;
        break;
      case Token::Kind::kEnd:
        out += "end";
    }
  }
  for (char& c : out) c = c == '\n' ? '|' : c;
  return out;
}

// Returns the one string of "{{ literal }}".
std::string StringOf(const std::string& literal) {
  const auto tokens = Tokenize("{{ " + literal + " }}");
  if (!tokens) return tokens.error().message;
  EXPECT_EQ(tokens->size(), 4u) << literal;
  EXPECT_EQ(tokens->at(1).kind, Token::Kind::kString) << literal;
  return tokens->at(1).text;
}

TEST(JinjaLexer, TakesATemplateApart) {
  EXPECT_EQ(Dump(""), "end");
  EXPECT_EQ(Dump("a { b } c"), "\"a { b } c\" end");
  EXPECT_EQ(Dump("Hi {{ user.name|upper }}!"), "\"Hi \" {{ user . name | upper }} \"!\" end");
  EXPECT_EQ(Dump("{% if a[0] != b %}x{% endif %}"),
            "{% if a [ int:0 ] != b %} \"x\" {% endif %} end");
  EXPECT_EQ(Dump("{{ \xC3\xA9t\xC3\xA9_1 }}"), "{{ \xC3\xA9t\xC3\xA9_1 }} end");
}

TEST(JinjaLexer, TakesTheLongestOperator) {
  EXPECT_EQ(Dump("{{ a//b**c==d!=e>=f<=g }}"), "{{ a // b ** c == d != e >= f <= g }} end");
  EXPECT_EQ(Dump("{{ a/b*c<d>e=f~g%h }}"), "{{ a / b * c < d > e = f ~ g % h }} end");
  EXPECT_EQ(Dump("{{ a*** b }}"), "{{ a ** * b }} end");
}

TEST(JinjaLexer, NumbersAreThoseOfPython) {
  EXPECT_EQ(Dump("{{ 0 1_000 0x1F 0o17 0b101 }}"),
            "{{ int:0 int:1000 int:0x1F int:0o17 int:0b101 }} end");
  EXPECT_EQ(Dump("{{ 1.5 1e3 2.5E-4 1_0.2_5 }}"),
            "{{ float:1.5 float:1e3 float:2.5E-4 float:10.25 }} end");
  // A dot without a digit after it is an attribute's or an index's.
  EXPECT_EQ(Dump("{{ a.0.1 }}"), "{{ a . int:0 . int:1 }} end");
  EXPECT_EQ(Dump("{{ 1.upper }}"), "{{ int:1 . upper }} end");
  EXPECT_EQ(Dump("{{ 1e }}"), "{{ int:1 e }} end");
}

TEST(JinjaLexer, EscapesOfStringsAreThoseOfPython) {
  EXPECT_EQ(StringOf(R"('a\n\t\r\\\'\"z')"), "a\n\t\r\\'\"z");
  EXPECT_EQ(StringOf(R"("it's")"), "it's");
  EXPECT_EQ(StringOf(R"('\x41\u00e9\U0001F600')"), "A\u00e9\U0001F600");
  EXPECT_EQ(StringOf(R"('\101\0601\7')"), std::string("A01\a"));
  EXPECT_EQ(StringOf(R"('\d\%')"), R"(\d\%)");  // not an escape in Python: unchanged
  EXPECT_EQ(StringOf("'a\\\nb'"), "ab");        // a newline after a backslash joins two lines
  EXPECT_EQ(StringOf("'}} %} {{ #}'"), "}} %} {{ #}");
  EXPECT_NE(StringOf(R"('\x4')").find("escape with too few digits"), std::string::npos);
  EXPECT_NE(StringOf(R"('\ud800')").find("escape that is not a character"), std::string::npos);
  EXPECT_NE(StringOf(R"('\U00110000')").find("escape that is not a character"), std::string::npos);
}

// trim_blocks and lstrip_blocks, as transformers sets them.
TEST(JinjaLexer, BlocksTakeTheirOwnLineAndVariablesDoNot) {
  EXPECT_EQ(Dump("a\n  {% if x %}\nb\n"), "\"a|\" {% if x %} \"b|\" end");
  EXPECT_EQ(Dump("a {% if x %}\nb"), "\"a \" {% if x %} \"b\" end");  // text before it
  EXPECT_EQ(Dump("{% a %}\n\nb"), "{% a %} \"|b\" end");              // one newline, not all
  EXPECT_EQ(Dump("{% a %} \nb"), "{% a %} \" |b\" end");
  EXPECT_EQ(Dump("  {% a %}  {% b %}"), "{% a %} \"  \" {% b %} end");
  EXPECT_EQ(Dump("a\n  {{ x }}\nb"), "\"a|  \" {{ x }} \"|b\" end");
  EXPECT_EQ(Dump("a\n  {# c #}\nb"), "\"a|\" \"b\" end");
}

TEST(JinjaLexer, SignsTrimOrKeepWhatIsBesideATag) {
  EXPECT_EQ(Dump("a \n {%- b -%} \n c"), "\"a\" {% b %} \"c\" end");
  EXPECT_EQ(Dump("a \n {{- b -}} \n c"), "\"a\" {{ b }} \"c\" end");
  EXPECT_EQ(Dump("a \n {#- b -#} \n c"), "\"a\" \"c\" end");
  EXPECT_EQ(Dump("a\n  {%+ b +%}\nc"), "\"a|  \" {% b %} \"|c\" end");
  EXPECT_EQ(Dump("a\u3000\u00A0{%- b -%}\u2003c"), "\"a\" {% b %} \"c\" end");  // Unicode spaces
  EXPECT_EQ(Dump("{{ a -}}b"), "{{ a }} \"b\" end");
  EXPECT_EQ(Dump("{{ a - b }}"), "{{ a - b }} end");
}

TEST(JinjaLexer, BracketsProtectTheEndOfATag) {
  EXPECT_EQ(Dump("{{ {'a': {'b': 1}} }}"), "{{ { str:a : { str:b : int:1 } } }} end");
  EXPECT_EQ(Dump("{% set a = {1: 2} %}"), "{% set a = { int:1 : int:2 } %} end");
  EXPECT_EQ(Dump("{{ a }} }}"), "{{ a }} \" }}\" end");
}

TEST(JinjaLexer, RawBlocksAreData) {
  EXPECT_EQ(Dump("{% raw %}{{ a }}{% b %}{# c #}{% endraw %}d"),
            "\"{{ a }}{% b %}{# c #}\" \"d\" end");
  EXPECT_EQ(Dump("a {%- raw -%} b {%- endraw -%} c"), "\"a\" \"b\" \"c\" end");
  EXPECT_EQ(Dump("{% raw %}{% endraw x %}{% endraw %}"), "\"{% endraw x %}\" end");
  EXPECT_EQ(Dump("{% rawer %}"), "{% rawer %} end");
}

TEST(JinjaLexer, ErrorsSayWhere) {
  const auto fails = [](std::string_view source, std::string_view what) {
    const auto tokens = Tokenize(source);
    ASSERT_FALSE(tokens) << source;
    EXPECT_EQ(tokens.error().code, Code::kInvalidArgument);
    EXPECT_NE(tokens.error().message.find(what), std::string::npos) << tokens.error().message;
  };
  fails("{{ a", "tag without its end, line 1, column 1");
  fails("a\n\u00e9{% if", "tag without its end, line 2, column 2");  // columns are characters
  fails("{# a", "comment without its end, line 1, column 1");
  fails("{% raw %} {% endra %}", "raw block without {% endraw %}, line 1, column 1");
  fails("{{ 'a }}", "string without its closing quote, line 1, column 4");
  fails("{{ 'a\\", "string without its closing quote, line 1, column 4");
  fails("{{ a ? b }}", "unexpected character '?', line 1, column 6");
  fails("{{ (a] }}", "unexpected ']', line 1, column 6");
  fails("{{ a) }}", "unexpected ')', line 1, column 5");
}

TEST(JinjaLexer, OffsetsPointIntoTheSource) {
  const std::string source = "a {{ bc + 'd' }}";
  const auto tokens = Tokenize(source);
  ASSERT_TRUE(tokens);
  const size_t expected[] = {0, 2, 5, 8, 10, 14, source.size()};
  ASSERT_EQ(tokens->size(), std::size(expected));
  for (size_t i = 0; i < tokens->size(); ++i) EXPECT_EQ((*tokens)[i].offset, expected[i]) << i;
  EXPECT_EQ(LineOf("a\nb\nc", 4), 3u);
  EXPECT_EQ(LineOf("a\nb\nc", 99), 3u);
  EXPECT_EQ(Position("a\nb\nc", 3), "line 2, column 2");
}

TEST(JinjaLexer, NewlinesAreLineFeedsAndTheLastOneGoes) {
  EXPECT_EQ(NormalizeNewlines("a\r\nb\rc\nd\r\n"), "a\nb\nc\nd");
  EXPECT_EQ(NormalizeNewlines("a\n\n"), "a\n");
  EXPECT_EQ(NormalizeNewlines("\r\r\n"), "\n");
  EXPECT_EQ(NormalizeNewlines(""), "");
}

}  // namespace
}  // namespace kvasir::jinja
