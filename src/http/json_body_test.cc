#include "http/json_body.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace kvasir {
namespace {

TEST(ParseBody, TakesObjectsOnly) {
  EXPECT_TRUE(ParseBody("{\"a\":1}"));
  EXPECT_TRUE(ParseBody(" {} "));
  for (const char* body : {"", "[]", "1", "null", "{", "{}x", "{\"a\":\"\xff\"}",
                           "{\"a\":\"\\ud800\"}", "{\"a\":1e999}", "{\"a\":NaN}"}) {
    const auto parsed = ParseBody(body);
    ASSERT_FALSE(parsed) << body;
    EXPECT_EQ(parsed.error().code, Code::kInvalidArgument);
  }
}

TEST(ParseBody, ANulIsNamedUnlessSomethingBeforeItIsWrong) {
  using namespace std::string_view_literals;
  const auto says = [](std::string_view body) {
    const auto parsed = ParseBody(body);
    return parsed ? "" : parsed.error().message;
  };
  for (const std::string_view body :
       {"{}\0"sv, "{}\0\0"sv, "{\"a\":1}\0garbage"sv, "{\"a\":1}\0\xff{{{"sv, "\0{}"sv, "\0"sv,
        "{\"a\":\0}"sv, "{\"a\":1\0"sv, "{\"a\":12\0 3}"sv, "{\"a\":\"x\0\"}"sv, "{\"a\0\":1}"sv,
        "{\"a\":\"\\\0\"}"sv, "{\"a\":tr\0ue}"sv, "[]\0"sv, "{\0\"\0a\0\"\0}"sv}) {
    EXPECT_EQ(says(body),
              fmt::format("the body is not valid JSON: byte {} is NUL", body.find('\0') + 1));
  }
  EXPECT_EQ(says("{]\0"sv),
            "the body is not valid JSON: syntax error at byte 2 (line 1, byte 2 of that line)");
  EXPECT_EQ(says("{\"a\":1}x\0"sv),
            "the body is not valid JSON: syntax error at byte 8 (line 1, byte 8 of that line)");
  EXPECT_EQ(says("{\"a\":\"\xff\0\"}"sv), "the body is not valid UTF-8 at byte 7 (0xff)");
  EXPECT_EQ(says("{\"a\":\"\xe2\x82\0"sv), "the body is not valid UTF-8 at byte 7 (0xe2)");
  EXPECT_EQ(says("{\"a\":1e999}\0"sv), "the body's JSON has a number that is too large");
}

TEST(ParseBody, SaysWhetherBytesOrSyntaxAreWrongAndWhere) {
  const auto says = [](std::string_view body) {
    const auto parsed = ParseBody(body);
    return parsed ? "" : parsed.error().message;
  };
  EXPECT_EQ(says("{\"a\":\"x\xff\"}"), "the body is not valid UTF-8 at byte 8 (0xff)");
  // Two bytes of a character of three.
  EXPECT_EQ(says("{\"a\":\"\xe2\x82"), "the body is not valid UTF-8 at byte 7 (0xe2)");
  EXPECT_EQ(says("\xff"), "the body is not valid UTF-8 at byte 1 (0xff)");
  EXPECT_EQ(says("{\"a\":1,}"),
            "the body is not valid JSON: syntax error at byte 8 (line 1, byte 8 of that line)");
  EXPECT_EQ(says("{\n \"a\": 1\n \"b\": 2}"),
            "the body is not valid JSON: syntax error at byte 14 (line 3, byte 4 of that line)");
  // Reports the first error, not a later one.
  EXPECT_EQ(says("{]\xff"),
            "the body is not valid JSON: syntax error at byte 2 (line 1, byte 2 of that line)");
  EXPECT_EQ(says("{\"a\":"), "the body is not valid JSON: it ends too early, after byte 5");
  EXPECT_EQ(
      says("{\"a\":\"\\ud800\"}").find("the body's JSON has half of a surrogate pair near byte 13"),
      0u);
}

TEST(ParseBody, LimitsDepthAndNotBracketsInStrings) {
  const auto nested = [](size_t depth) {
    return "{\"a\":" + std::string(depth, '[') + std::string(depth, ']') + "}";
  };
  EXPECT_TRUE(ParseBody(nested(63)));
  EXPECT_FALSE(ParseBody(nested(64)));
  EXPECT_FALSE(ParseBody(nested(1 << 20)));
  EXPECT_TRUE(ParseBody("{\"a\":\"\\\"" + std::string(1000, '[') + "\"}"));
}

std::string ListOf(std::string_view field, std::string_view unit, size_t count) {
  std::string body = "{\"" + std::string(field) + "\":[" + std::string(unit);
  for (size_t i = 1; i < count; ++i) body.append(",").append(unit);
  return body + "]}";
}

TEST(ParseBody, LimitsValuesButNotTokenIds) {
  EXPECT_TRUE(ParseBody(ListOf("x", "1", kMaxJsonValues - 2)));
  for (const char* unit : {"1", "[]", "{}", "\"\"", "null", "{\"a\":1}", "[1]"}) {
    const auto parsed = ParseBody(ListOf("x", unit, kMaxJsonValues));
    ASSERT_FALSE(parsed) << unit;
    EXPECT_EQ(HttpStatus(parsed.error()), 413);
    EXPECT_NE(parsed.error().message.find("65536"), std::string::npos);
  }
  const auto ids = ParseBody(ListOf("prompt", "7", 1 << 20), kCompletionIds);
  ASSERT_TRUE(ids);
  EXPECT_EQ(AsIds(*ids->fields.Find("prompt")).size(), size_t{1} << 20);
  EXPECT_FALSE(ParseBody(ListOf("prompt", "[7]", kMaxJsonValues), kCompletionIds));
  EXPECT_FALSE(ParseBody(ListOf("prompt", "\"7\"", kMaxJsonValues), kCompletionIds));
}

TEST(ParseBody, KeepsListsOfIdsWhereTheyBelong) {
  const auto body = ParseBody(R"({"prompt":[[1,16.0],[],"x",[-1]],"tokens":[],"x":[1,2],
                                  "y":{"prompt":[3]},"stop_token_ids":[5]})",
                              kCompletionIds);
  ASSERT_TRUE(body);
  const auto prompt = body->fields.Find("prompt")->items();
  ASSERT_EQ(prompt.size(), 4u);
  EXPECT_EQ(ToTokenIds(prompt[0], 17, "p").value(), (std::vector<TokenId>{1, 16}));
  EXPECT_EQ(ToTokenIds(prompt[0], 16, "p").error().field, "p");
  EXPECT_TRUE(ToTokenIds(prompt[1], 17, "p")->empty());
  EXPECT_FALSE(ToTokenIds(prompt[3], 17, "p"));
  EXPECT_TRUE(IsIds(*body->fields.Find("tokens")));
  const auto other = ParseBody(R"({"tokens":[1,"a"]})", kCompletionIds);
  EXPECT_EQ(other->fields.Find("tokens")->items().size(), 2u);
  ASSERT_TRUE(body->fields.Find("x")->is_array());
  EXPECT_EQ(body->fields.Find("x")->items()[1].integer(), 2);
  ASSERT_TRUE(body->fields.Find("y")->Find("prompt")->is_array());
  EXPECT_EQ(body->fields.Find("y")->Find("prompt")->items()[0].integer(), 3);
  EXPECT_EQ(AsIds(*body->fields.Find("stop_token_ids"))[0], 5);
  const auto mixed = ParseBody(R"({"prompt":[[1,"a",2],7],"x":1})", kCompletionIds);
  const auto parts = mixed->fields.Find("prompt")->items()[0].items();
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_EQ(parts[0].integer(), 1);
  EXPECT_EQ(parts[1].text(), "a");
  EXPECT_EQ(parts[2].integer(), 2);
  EXPECT_EQ(ParseBody(R"({"stop_token_ids":[1,"a"]})", kCompletionIds).error().field,
            "stop_token_ids");
  for (const char* bad : {R"({"prompt":[1.5]})", R"({"prompt":[1,[2]]})",
                          R"({"prompt":[4294967296]})", R"({"prompt":[1,null]})"}) {
    const auto parsed = ParseBody(bad, kCompletionIds);
    ASSERT_FALSE(parsed) << bad;
    EXPECT_EQ(parsed.error().field, "prompt");
    EXPECT_EQ(HttpStatus(parsed.error()), 400);
  }
}

TEST(ParseBody, RefusesAKeyThatIsThereTwice) {
  for (const char* body :
       {R"({"n":1,"n":2})", R"({"a":[{"b":{"n":null,"c":1,"n":null}}]})",
        R"({"a":1,"b":1,"c":1,"d":1,"e":1,"f":1,"g":1,"h":1,"i":1,"n":1,"j":1,"n":1})"}) {
    const auto parsed = ParseBody(body);
    ASSERT_FALSE(parsed) << body;
    EXPECT_EQ(HttpStatus(parsed.error()), 400);
    EXPECT_NE(parsed.error().message.find("\"n\""), std::string::npos) << parsed.error().message;
  }
  EXPECT_TRUE(ParseBody(R"({"n":{"n":1},"a":[{"n":1},{"n":2}]})"));
  const std::string long_key(1000, 'k');
  const auto parsed = ParseBody("{\"" + long_key + "\":1,\"" + long_key + "\":1}");
  ASSERT_FALSE(parsed);
  EXPECT_LT(parsed.error().message.size(), 150u);
}

}  // namespace
}  // namespace kvasir
