// What templates may not do: errors and limits.
#include <gtest/gtest.h>

#include "base/rounds_for_test.h"
#include "chat/chat_template.h"
#include "chat/render_for_test.h"

namespace kvasir {
namespace {

TEST(ChatTemplate, SyntaxErrorsNameLineAndColumn) {
  EXPECT_EQ(ErrorOf("a\n{% if x %}\n  {{ y + }}\n{% endif %}"),
            "chat template: expected an expression, got the end of the tag, line 3, column 10");
  EXPECT_EQ(ErrorOf("{% if x %}"),
            "chat template: expected {% endif %}, got the end of the template, line 1, column 11");
  const auto unknown = ChatTemplate::Parse("{{ x|frobnicate }}");
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code, Code::kUnsupported);
  EXPECT_EQ(unknown.error().message,
            "chat template: unknown filter 'frobnicate', line 1, column 6");
  EXPECT_EQ(ChatTemplate::Parse("{% include 'x' %}").error().code, Code::kUnsupported);
}

TEST(ChatTemplate, RuntimeErrorsNameTheLineAndRaiseExceptionSpeaksForItself) {
  EXPECT_EQ(ErrorOf("\n{{ a.b.c }}"), "chat template, line 2: 'a' is undefined");
  EXPECT_EQ(ErrorOf("{{ raise_exception('roles must alternate') }}"), "roles must alternate");
}

TEST(ChatTemplate, HostileTemplatesEnd) {
  const std::string steps = "chat template, line 1: the template takes too many steps";
  const auto starts = [&](const std::string& source) {
    return ErrorOf(source).substr(0, steps.size());
  };
  EXPECT_EQ(starts(Rounds(
                "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
                "{% for a in range(99999) %}{% set b = range(99999)|list %}{% endfor %}")),
            steps);
  EXPECT_EQ(starts("{{ 'x' * 999999999999 }}"), steps);
  EXPECT_EQ(starts("{% set n = namespace(s='xy') %}{% for i in range(99) %}"
                   "{% set n.s = n.s ~ n.s %}{% endfor %}"),
            steps);
  EXPECT_EQ(starts("{% set a = 'x' * 99999 %}{{ a|replace('x', a) }}"), steps);
  EXPECT_EQ(starts("{{ ('x' * 99999)|list|join('y' * 99999) }}"), steps);
  EXPECT_NE(ErrorOf("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}").find("nested too deeply"),
            std::string::npos);
  std::string loops, ends;  // statements cost stack too
  for (int i = 0; i < 42; ++i) loops += "{% for i in [1] %}", ends += "{% endfor %}";
  EXPECT_NE(ErrorOf("{% macro m() %}" + loops + "{{ m() }}" + ends + "{% endmacro %}{{ m() }}")
                .find("nested too deeply"),
            std::string::npos);
  EXPECT_NE(ErrorOf("{% set n = namespace(l=[]) %}{% for i in range(999) %}"
                    "{% set n.l = [n.l] %}{% endfor %}")
                .find("nested too deeply"),
            std::string::npos);
  EXPECT_NE(ErrorOf("{% set n = namespace(l=[1]) %}{% for i in range(150) %}"
                    "{% set n.l = [n.l, n.l] %}{% endfor %}{{ n.l }}")
                .find("too"),
            std::string::npos);
  EXPECT_NE(ErrorOf("{{ range(1000000) }}").find("range too big"), std::string::npos);
  EXPECT_EQ(ErrorOf("{% set n = namespace() %}{% set n.n = n %}{% set n.l = [n, n] %}ok"),
            "no error: ok");
  for (const char* nest : {"(", "[", "-", "not ", "{1:", "x.y(", "a if "}) {
    std::string source = "{{ ";
    for (int i = 0; i < 20000; ++i) source += nest;
    EXPECT_FALSE(ChatTemplate::Parse(source)) << nest;
  }
  std::string chain = "{{ 1", blocks;
  for (int i = 0; i < 20000; ++i) chain += "+1", blocks += "{% if 1 %}";
  EXPECT_FALSE(ChatTemplate::Parse(chain + " }}"));
  EXPECT_FALSE(ChatTemplate::Parse(blocks));
}

// Freeing a chain of values recurses: what holds a value counts for how deep it is.
TEST(ChatTemplate, NoChainOfValuesGetsDeep) {
  for (const char* chain :
       {"{% set ns.v = [ns.v.copy] %}", "{% set ns.v = (ns.v,).count %}",
        "{% set ns.v = {'a': ns.v}.get %}",
        "{% for y in [ns.v] %}{% set ns.v = loop %}{% endfor %}",
        "{% set ns.v = [loop.cycle, ns.v] %}", "{% set ns.v = [ns.v]|map('list') %}"}) {
    const std::string error = ErrorOf("{% set ns = namespace(v=[]) %}{% for i in range(100000) %}" +
                                      std::string(chain) + "{% endfor %}x");
    EXPECT_NE(error.find("nested too deeply"), std::string::npos) << chain << error;
  }
}

TEST(ChatTemplate, NumbersNearTheEndsOfIntegersDoNotOverflow) {
  const auto chat = Render(
      "{{ 'abc'|truncate(9223372036854775807) }}{{ 'abc'.zfill(-9223372036854775807) }}"
      "{{ 'abc'.center(-9223372036854775807) }}",
      Json::array());
  ASSERT_TRUE(chat) << chat.error().message;
  EXPECT_EQ(chat->text, "abcabcabc");
}

TEST(ChatTemplate, DataNestedTooDeeplyIsRefused) {
  Json deep = "x";
  for (int i = 0; i < 300; ++i) deep = Json::array({deep});
  const auto chat = Render("", {{{"role", "user"}, {"content", deep}}});
  ASSERT_FALSE(chat);
  EXPECT_EQ(chat.error().code, Code::kInvalidArgument);
}

}  // namespace
}  // namespace kvasir
