#include "jinja/parser.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <string>

#include "base/rounds_for_test.h"
#include "jinja/expression_parser.h"
#include "jinja/lexer.h"
#include "jinja/token_reader.h"

namespace kvasir::jinja {
namespace {

std::string Repeat(std::string_view piece, size_t count) {
  std::string out;
  out.reserve(piece.size() * count);
  for (size_t i = 0; i < count; ++i) out += piece;
  return out;
}

constexpr size_t kTimes = Rounds(200'000, 50'000);

// A template is `before`, `piece` kTimes, `middle`, `closing` kTimes, `after`.
struct Shape {
  std::string_view before, piece, middle, closing, after;
};

Result<std::vector<NodePtr>> Parse(const Shape& s) {
  return ParseTemplate(NormalizeNewlines(std::string(s.before) + Repeat(s.piece, kTimes) +
                                         std::string(s.middle) + Repeat(s.closing, kTimes) +
                                         std::string(s.after)));
}

// Every construct that nests nodes: refused in time and without a crash.
constexpr Shape kNested[] = {
    {"{% if ", "not ", "a", "", " %}{% endif %}"},
    {"{{ ", "-", "a", "", " }}"},
    {"{{ ", "+ ", "a", "", " }}"},
    {"{{ a", "+a", "", "", " }}"},
    {"{{ a", "-a", "", "", " }}"},
    {"{{ a", "*a", "", "", " }}"},
    {"{{ a", "/a", "", "", " }}"},
    {"{{ a", "//a", "", "", " }}"},
    {"{{ a", "%a", "", "", " }}"},
    {"{{ a", "**a", "", "", " }}"},
    {"{{ a", "**-a", "", "", " }}"},
    {"{{ a", " and a", "", "", " }}"},
    {"{{ a", " or a", "", "", " }}"},
    {"{{ a", " and not a or a", "", "", " }}"},
    {"{{ a", " if a", "", "", " }}"},
    {"{{ a", " if a else a", "", "", " }}"},
    {"{{ a", "|lower", "", "", " }}"},
    {"{{ a", "|default(a)", "", "", " }}"},
    {"{{ a", "|default(a", "", ")", " }}"},
    {"{{ a", " is defined", "", "", " }}"},
    {"{{ a", " is not defined", "", "", " }}"},
    {"{{ a", " is eq a", "", "", " }}"},
    {"{{ ", "a is eq(", "a", ")", " }}"},
    {"{{ ", "a is eq [", "a", "]", " }}"},
    {"{{ a", ".a", "", "", " }}"},
    {"{{ a", ".1", "", "", " }}"},
    {"{{ a", "[0]", "", "", " }}"},
    {"{{ a", "[a", "", "]", " }}"},
    {"{{ a", "[1:a]", "", "", " }}"},
    {"{{ a", "[a[:", "a", "]]", " }}"},
    {"{{ a", "()", "", "", " }}"},
    {"{{ ", "a(", "", ")", " }}"},
    {"{{ ", "a(b=", "a", ")", " }}"},
    {"{{ ", "a(*", "a", ")", " }}"},
    {"{{ ", "a(**", "a", ")", " }}"},
    {"{{ ", "(", "a", ")", " }}"},
    {"{{ ", "(a,", "a", ")", " }}"},
    {"{{ ", "[", "a", "]", " }}"},
    {"{{ ", "{1:", "a", "}", " }}"},
    {"{{ ", "[{1:a(", "a", ")}]", " }}"},
    {"{% for ", "(", "a", ")", " in a %}{% endfor %}"},
    {"{% for a in ", "not ", "a", "", " %}{% endfor %}"},
    {"{% for a in a if ", "not ", "a", "", " %}{% endfor %}"},
    {"{% set ", "(", "a", ")", " = a %}"},
    {"{% set a = ", "not ", "a", "", " %}"},
    {"{% with a = ", "not ", "a", "", " %}{% endwith %}"},
    {"{% macro a(a=", "not ", "a", "", ") %}{% endmacro %}"},
    {"{% call ", "a.", "a()", "", " %}{% endcall %}"},
    {"{% call a", "()", "", "", " %}{% endcall %}"},
    {"{% filter lower", "|lower", "", "", " %}{% endfilter %}"},
    {"{% set a | lower", "|lower", "", "", " %}{% endset %}"},
    {"", "{% if a %}", "", "{% endif %}", ""},
    {"", "{% if a %}{% elif a %}{% else %}", "", "{% endif %}", ""},
    {"", "{% for a in a %}", "", "{% endfor %}", ""},
    {"", "{% for a in a %}{% else %}", "", "{% endfor %}", ""},
    {"", "{% set a %}", "", "{% endset %}", ""},
    {"", "{% macro a() %}", "", "{% endmacro %}", ""},
    {"", "{% call a() %}", "", "{% endcall %}", ""},
    {"", "{% filter lower %}", "", "{% endfilter %}", ""},
    {"", "{% with %}", "", "{% endwith %}", ""},
    {"", "{% generation %}", "", "{% endgeneration %}", ""},
};

// Constructs that only get longer must parse.
constexpr Shape kLong[] = {
    {"{{ a", "~a", "", "", " }}"},
    {"{{ a", "<a", "", "", " }}"},
    {"{{ a", " in a", "", "", " }}"},
    {"{{ a", " not in a", "", "", " }}"},
    {"{{ a", ", a", "", "", " }}"},
    {"{{ [", "a,", "", "", "] }}"},
    {"{{ {", "1:a,", "", "", "} }}"},
    {"{{ a(", "a,", "", "", ") }}"},
    {"{{ a(", "b=a,", "", "", ") }}"},
    {"{{ a[", "1:1,", "a", "", "] }}"},
    {"{{ a|default(", "a,", "", "", ") }}"},
    {"{{ ", "'a'", "", "", " }}"},
    {"{{ '", "\\n", "", "", "' }}"},
    {"{{ a", "_a", "", "", " }}"},
    {"{{ 1.", "1", "", "", " }}"},
    {"{{ 1", "\n", "", "", " }}"},
    {"{% if a %}", "{% elif a %}", "", "", "{% endif %}"},
    {"{% for ", "a,", "a", "", " in a %}{% endfor %}"},
    {"{% macro a(", "a,", "", "", ") %}{% endmacro %}"},
    {"{% with a=a", ",a=a", "", "", " %}{% endwith %}"},
    {"", "{% set a = a %}", "", "", ""},
    {"", "{{ a }}", "", "", ""},
    {"", "{{- a -}} ", "", "", ""},
    {"", "{# a #}\n", "", "", ""},
    {"", "{% raw %}a{% endraw %}", "", "", ""},
    {"{% raw %}", "{% ", "", "", "{% endraw %}"},
    {"{% raw %}", "{% endraw ", "", "", "{% endraw %}"},
    {"", "\n ", "", "", "{%- if a -%}{% endif %}"},
    {"", "\xC2\xA0", "", "", "{{- a }}"},
    {"a", "\x80", "", "", "{{- a }}"},
    {"", "\r", "", "", ""},
};

// Templates that are cut off, or that close a block they never opened.
constexpr Shape kBroken[] = {
    {"{{ ", "not ", "", "", ""},      {"{{ ", "{1:", "", "", ""}, {"{{ ", "(", "", "", ""},
    {"{{ a", "+a", "", "", ""},       {"{{ '", "a", "", "", ""},  {"{# ", "a", "", "", ""},
    {"{% raw %}", "{%", "", "", ""},  {"", "{% if ", "", "", ""}, {"", "{", "", "", ""},
    {"", "{% if a %}\n", "", "", ""}, {"", "}}", "{{", "", ""},   {"{{ ", "a ", "", "", "}}"},
    {"{{ a ", "\n", ")", "", "}}"},   {"{{ ", "1", "", "", "}}"},
};

// Quadratic work would take longer: 200,000^2 / 2 steps are more than 10 s.
constexpr double kMaxSeconds = 20;  // of CPU: what is quadratic takes minutes

double SecondsSince(std::clock_t begin) {
  return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
}

TEST(JinjaParser, NestingOfEveryKindIsRefusedInBoundedTime) {
  for (const Shape& shape : kNested) {
    SCOPED_TRACE(std::string(shape.before) + "|" + std::string(shape.piece));
    const std::clock_t begin = std::clock();
    const auto parsed = Parse(shape);
    ASSERT_FALSE(parsed);
    EXPECT_NE(parsed.error().message.find("nested too deeply"), std::string::npos)
        << parsed.error().message;
    EXPECT_LT(SecondsSince(begin), kMaxSeconds);
  }
}

TEST(JinjaParser, LongTemplatesParseInLinearTime) {
  for (const Shape& shape : kLong) {
    SCOPED_TRACE(std::string(shape.before) + "|" + std::string(shape.piece));
    const std::clock_t begin = std::clock();
    const auto parsed = Parse(shape);
    EXPECT_TRUE(parsed) << parsed.error().message;
    EXPECT_LT(SecondsSince(begin), kMaxSeconds);
  }
}

TEST(JinjaParser, BrokenTemplatesAreRefusedInBoundedTime) {
  for (const Shape& shape : kBroken) {
    SCOPED_TRACE(std::string(shape.before) + "|" + std::string(shape.piece));
    const std::clock_t begin = std::clock();
    EXPECT_FALSE(Parse(shape));
    EXPECT_LT(SecondsSince(begin), kMaxSeconds);
  }
}

// A deep tree inside another, for every way that a node owns a child: the depths add up.
TEST(JinjaParser, DepthCountsEveryKindOfChild) {
  const std::string deep = "a" + Repeat(".a", 390);
  const auto error = [](const std::string& source) {
    const auto parsed = ParseTemplate(source);
    return parsed ? "no error" : parsed.error().message;
  };
  for (const auto& [before, after] : {
           std::pair{"{{ a is eq a[", "]" + Repeat(".a", 20) + " }}"},
           {"{{ a(", ")" + Repeat(".a", 20) + " }}"},
           {"{{ a(b=", ")" + Repeat(".a", 20) + " }}"},
           {"{{ a(*", ")" + Repeat(".a", 20) + " }}"},
           {"{{ a(**", ")" + Repeat(".a", 20) + " }}"},
           {"{{ a|default(", ")" + Repeat("|lower", 20) + " }}"},
           {"{{ [", "]" + Repeat(".a", 20) + " }}"},
           {"{{ {1:", "}" + Repeat(".a", 20) + " }}"},
       }) {
    EXPECT_NE(error(before + deep + after).find("nested too deeply"), std::string::npos) << before;
  }
  // A test's argument: its depth was not added up, and a hundred of these made a tree 40,000 deep.
  std::string tests = "a", tail = Repeat(".a", 350);
  for (int i = 0; i < 3; ++i) tests = "b is eq a[" + tests + "]" + tail;
  EXPECT_NE(error("{{ " + tests + " }}").find("nested too deeply"), std::string::npos);
}

TEST(JinjaParser, TheDeepestTemplateThatIsAllowedParses) {
  const std::string expression = Repeat("(", 99) + "a" + Repeat(".a", 300) + Repeat(")", 99);
  const auto parsed = ParseTemplate(Repeat("{% if a %}", 59) + "{{ " + expression + " }}" +
                                    Repeat("{% endif %}", 59));
  EXPECT_TRUE(parsed) << parsed.error().message;
  EXPECT_TRUE(ParseTemplate("{% if " + Repeat("not ", 390) + "a %}{% endif %}"));
}

TEST(JinjaParser, RefusesMoreNodesThanItsLimit) {
  const auto parsed = ParseTemplate("{{ [" + Repeat("a,", kMaxNodes) + "] }}");
  ASSERT_FALSE(parsed);
  EXPECT_NE(parsed.error().message.find("too large"), std::string::npos) << parsed.error().message;
}

TEST(JinjaParser, MessagesAreShortWhateverTheyQuote) {
  const std::string name = Repeat("ab", 500'000);
  for (const std::string& source :
       {"{{ a|" + name + " }}", "{% " + name + " %}", "{{ a is " + name + " }}",
        "{{ a '" + name + "' }}", "{{ a " + name + " }}", "{{ 1" + Repeat("0", 1000) + " }}"}) {
    const auto parsed = ParseTemplate(source);
    ASSERT_FALSE(parsed);
    EXPECT_LT(parsed.error().message.size(), 300u);
    EXPECT_NE(parsed.error().message.find("line 1, column"), std::string::npos);
  }
}

}  // namespace
}  // namespace kvasir::jinja
