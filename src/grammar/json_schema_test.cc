#include "grammar/json_schema.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "grammar/grammar_text.h"
#include "grammar/matcher.h"

namespace kvasir {
namespace {

Result<std::shared_ptr<const Grammar>> Compile(std::string_view schema,
                                               SchemaStrictness strictness) {
  return CompileGrammarText(strictness == SchemaStrictness::kStrict
                                ? FormatLanguage::kStrictJsonSchema
                                : FormatLanguage::kJsonSchema,
                            schema);
}

struct Case {
  std::string schema;
  std::vector<std::string> in, out;
};

void Check(const Case& of) {
  const auto grammar = Compile(of.schema, SchemaStrictness::kLoose);
  ASSERT_TRUE(grammar.has_value()) << of.schema << ": " << grammar.error().message;
  const auto has = [&](const std::string& text) {
    Matcher matcher(*grammar);
    return matcher.Advance(text) && matcher.Accepts();
  };
  for (const std::string& text : of.in)
    EXPECT_TRUE(has(text)) << of.schema.substr(0, 400) << "\n" << text.substr(0, 400);
  for (const std::string& text : of.out)
    EXPECT_FALSE(has(text)) << of.schema.substr(0, 400) << "\n" << text.substr(0, 400);
}

TEST(JsonSchema, HasValuesOfEachType) {
  Check({R"({"type":"null"})", {"null"}, {"nul", "0"}});
  Check({R"({"type":"boolean"})", {"true", "false"}, {"True"}});
  Check({R"({"type":"integer"})", {"0", "-17", "999999999999999999"}, {"01", "1.5", "1e3", "+1"}});
  Check({R"({"type":"number"})", {"0", "-1.25e+10", "3.0"}, {".5", "1.", "00", "1e"}});
  Check({R"({"type":"string"})",
         {R"("")", R"("a\"\\\/\n\u00e4\ud83d\ude00")", "\"\xF0\x9F\x98\x80\""},
         {"\"\n\"", R"("\x")", R"("\ud83d")", "\"", "\"\xFF\""}});
  Check({R"({"type":["string","null"]})", {"null", "\"x\""}, {"1"}});
  Check({"true",
         {R"({"a": [1, {"b": null}]})", "3", "[]", "{}", "[\n  1,\n  2\n]"},
         {"[1,]", "{a:1}"}});
  Check({"{}", {"3"}, {}});
  Check({R"({"type":"object"})", {"{}", R"({"a":1})", "{ }"}, {"[]", R"({"a":1,})"}});
  Check({R"({"type":"array"})", {"[]", "[1,\"a\"]"}, {"{}"}});
}

TEST(JsonSchema, WritesPropertiesInOrder) {
  Check({R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"boolean"},
             "c":{"type":"null"}},"required":["b"]})",
         {R"({"a":1,"b":true,"c":null})", R"({"b":true})", R"({"a":1,"b":true})",
          "{\n  \"b\": true,\n  \"c\": null\n}"},
         {"{}", R"({"a":1})", R"({"b":true,"a":1})", R"({"b":1})", R"({"b":true,"d":1})",
          "{\"b\":  true}", "{\"b\":true\n\n}"}});
  Check({R"({"properties":{"a":{"type":"integer"},"b":{"type":"integer"}}})",
         {"{}", R"({"a":1})", R"({"b":1})", R"({"a":1,"b":2})", "{ }"},
         {R"({,"a":1})", R"({"a":1,})", "{  }"}});
  Check({R"({"type":"object","properties":{"a":{"type":"integer"},"ab":{"type":"null"}},
             "additionalProperties":{"type":"string"}})",
         {"{}", R"({"a":1,"x":"y"})", R"({"x":"y","abc":"","":"z"})", R"({"b":"c"})"},
         {R"({"x":1})", R"({"a":"s"})", R"({"x":"y","a":"s"})", R"({"\u0061":"s"})"}});
  Check({R"({"type":"object","additionalProperties":false})", {"{}"}, {R"({"a":1})"}});
  Check({R"({"type":"object","required":["k"],"additionalProperties":true})",
         {R"({"k":1,"z":[]})"},
         {"{}", R"({"z":1})"}});
  Check({R"({"type":"object","properties":{"a\"b":{"type":"null"}}})", {R"({"a\"b":null})"}, {}});
}

TEST(JsonSchema, WritesArrays) {
  Check({R"({"items":{"type":"integer"},"minItems":1,"maxItems":3})",
         {"[1]", "[1, 2,3]", "[ 1 ]"},
         {"[]", "[1,2,3,4]", "[null]"}});
  Check({R"({"type":"array","prefixItems":[{"type":"integer"},{"type":"string"}],
             "items":{"type":"null"},"minItems":1,"maxItems":4})",
         {"[1]", "[1,\"a\"]", "[1,\"a\",null,null]"},
         {"[]", "[\"a\"]", "[1,null]", "[1,\"a\",null,null,null]"}});
  Check({R"({"prefixItems":[{"type":"integer"}]})", {"[]", "[1]"}, {"[1,2]"}});
  Check({R"({"items":[{"type":"integer"},{"type":"null"}]})", {"[]", "[1,null]"}, {"[null]"}});
  Check({R"({"prefixItems":[{"type":"integer"}],"items":false,"minItems":1})", {"[1]"}, {"[]"}});
  Check({R"({"type":"array","maxItems":0})", {"[]"}, {"[1]"}});
  Check({R"({"type":"array","items":{"type":"null"},"minItems":2})",
         {"[null,null,null]"},
         {"[null]"}});
}

TEST(JsonSchema, WritesConstantsAndChoices) {
  Check({R"({"enum":["a",1,null,{"k":[true]}]})",
         {"\"a\"", "1", "null", R"({"k": [true]})"},
         {"2", "\"b\""}});
  Check({R"({"type":"integer","enum":["a",1,2]})", {"1", "2"}, {"\"a\""}});
  Check({R"({"enum":[1,2,3]})", {"3"}, {"4"}});
  Check({R"({"const":"a\nb"})", {R"("a\nb")"}, {}});
  Check({R"({"const":2.5})", {"2.5"}, {"2"}});
  Check({R"({"anyOf":[{"type":"integer"},{"type":"null"}],"title":"t"})", {"1", "null"}, {"\"\""}});
  Check({R"({"oneOf":[{"type":"integer"},{"type":"string"}]})", {"1", "\"x\""}, {"null"}});
  Check({R"({"oneOf":[{"properties":{"k":{"const":"a"},"x":{"type":"null"}},"required":["k","x"]},
                      {"properties":{"k":{"const":"b"}},"required":["k"]}]})",
         {R"({"k":"a","x":null})", R"({"k":"b"})"},
         {R"({"k":"a"})"}});
  Check({R"({"type":"object","properties":{"a":{"type":"null"},"b":{"type":"null"}},
             "anyOf":[{"required":["a"]},{"required":["b"]}]})",
         {R"({"a":null})", R"({"b":null})", R"({"a":null,"b":null})"},
         {"{}"}});
}

TEST(JsonSchema, JoinsObjectsAndFollowsReferences) {
  Check({R"({"allOf":[{"$ref":"#/$defs/a"},{"properties":{"y":{"type":"null"}},"required":["y"]}],
             "$defs":{"a":{"type":"object","properties":{"x":{"type":"integer"}},"required":["x"]}}})",
         {R"({"x":1,"y":null})"},
         {R"({"x":1})", R"({"y":null})"}});
  Check({R"({"allOf":[{"type":"string"}],"description":"d"})", {"\"\""}, {"1"}});
  Check({R"({"$ref":"#/$defs/node","$defs":{"node":{"type":"object","properties":{
             "v":{"type":"integer"},"next":{"anyOf":[{"$ref":"#/$defs/node"},{"type":"null"}]}},
             "required":["v","next"]}}})",
         {R"({"v":1,"next":{"v":2,"next":null}})"},
         {R"({"v":1})", R"({"v":1,"next":{"v":2}})"}});
  Check({R"({"type":"array","items":{"$ref":"#"}})", {"[[],[[]]]"}, {"[1]"}});
  Check(
      {R"({"properties":{"a/b":{"type":"null"},"c":{"$ref":"#/properties/a~1b"}},"required":["c"]})",
       {R"({"c":null})"},
       {R"({"c":1})"}});
}

TEST(JsonSchema, LimitsTexts) {
  Check({R"({"type":"string","minLength":2,"maxLength":3})",
         {"\"ab\"", R"("\u00e4\n\ud83d\ude00")", "\"\xC3\xA4\xC3\xA4\""},
         {"\"a\"", "\"abcd\""}});
  Check({R"({"maxLength":20000})",
         {"\"" + std::string(20'000, 'x') + "\""},
         {"\"" + std::string(20'001, 'x') + "\""}});
  Check({R"({"pattern":"^[a-z]{2}\\d+$"})", {"\"ab12\""}, {"\"ab\"", "\"xab1\""}});
  Check({R"({"pattern":"b+"})", {"\"abc\"", "\"b\""}, {"\"ac\""}});
  Check({R"({"pattern":"^\"\\\\\\n$"})", {R"("\"\\\n")"}, {}});
  Check({R"({"pattern":"^a|z$"})", {"\"ab\"", "\"yz\""}, {"\"by\""}});
  Check(
      {R"({"format":"date"})",
       {"\"2024-02-29\"", "\"2000-02-29\"", "\"1999-12-31\""},
       {"\"2023-02-29\"", "\"1900-02-29\"", "\"2024-13-01\"", "\"2024-04-31\"", "\"0000-01-01\""}});
  Check({R"({"format":"time"})",
         {"\"23:59:59Z\"", "\"00:00:00.5+01:00\""},
         {"\"24:00:00Z\"", "\"1:00:00Z\""}});
  Check({R"({"format":"date-time"})", {"\"2024-02-29T12:00:00Z\""}, {"\"2024-02-29\""}});
  Check({R"({"format":"uuid"})", {"\"123e4567-e89b-12d3-a456-426614174000\""}, {"\"123e4567\""}});
  Check({R"({"type":"string","format":"email"})", {"\"x\""}, {}});  // loose: it only annotates
}

TEST(JsonSchema, LimitsIntegersExactly) {
  for (const auto& [least, most] : std::vector<std::pair<int, int>>{{0, 9},
                                                                    {3, 3},
                                                                    {-5, 5},
                                                                    {-120, -7},
                                                                    {17, 1234},
                                                                    {99, 101},
                                                                    {0, 0},
                                                                    {-1, 0},
                                                                    {100, 999}}) {
    Case of{fmt::format(R"({{"type":"integer","minimum":{},"maximum":{}}})", least, most), {}, {}};
    for (int i = -1300; i <= 1300; ++i) {
      (i >= least && i <= most ? of.in : of.out).push_back(std::to_string(i));
    }
    Check(of);
  }
  Check({R"({"type":"integer","exclusiveMinimum":0})", {"1", "10", "987654321"}, {"0", "-1"}});
  Check({R"({"type":"integer","maximum":-0.5})", {"-1", "-77"}, {"0", "1"}});
  Check({R"({"minimum":10,"type":"integer"})", {"10", "99", "100"}, {"9", "1", "-10"}});
  Check({R"({"type":"number","minimum":0,"exclusiveMaximum":10})",
         {"0", "0.5", "9.999999"},
         {"10", "10.0", "-1", "-0.5x"}});
  Check({R"({"type":"number","exclusiveMinimum":-2,"maximum":3})",
         {"-1.5", "-1.999999", "3", "3.0", "0", "-0.1"},
         {"-2", "-2.0", "3.1", "-3"}});
  Check(
      {R"({"type":"number","exclusiveMinimum":0})", {"0.1", "0.000001", "1"}, {"0", "0.0", "-1"}});
}

TEST(JsonSchema, LimitsIntegersOfAnyLength) {
  Check({R"({"type":"integer","maximum":18446744073709551615})",
         {"18446744073709551615", "9999999999999999999", "0", "-5", "-999999999999999999"},
         {"18446744073709551616", "20000000000000000000", "99999999999999999999"}});
  Check(
      {R"({"type":"integer","minimum":123456789012345678901,"exclusiveMaximum":123456789012345678910})",
       {"123456789012345678901", "123456789012345678909"},
       {"123456789012345678900", "123456789012345678910", "7", "-123456789012345678905"}});
  Check(
      {R"({"type":"integer","exclusiveMinimum":-1000000000000000000000,"maximum":-18446744073709551615})",
       {"-999999999999999999999", "-18446744073709551615", "-99999999999999999999"},
       {"-1000000000000000000000", "-18446744073709551614", "0", "18446744073709551615"}});
  Check({R"({"type":"integer","exclusiveMinimum":-1,"exclusiveMaximum":1})", {"0"}, {"1", "-1"}});
  Check(
      {R"({"const":123456789012345678901})", {"123456789012345678901"}, {"123456789012345678900"}});
}

TEST(JsonSchema, RefusesByPathWhatItDoesNotHonour) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"({"not":{}})", "'#/not'"},
      {R"({"properties":{"a":{"type":"string","contentEncoding":1,"if":{}}}})",
       "'#/properties/a/if'"},
      {R"({"type":"array","contains":{}})", "'#/contains'"},
      {R"({"type":"array","uniqueItems":true})", "'#/uniqueItems'"},
      {R"({"type":"object","patternProperties":{}})", "'#/patternProperties'"},
      {R"({"type":"object","minProperties":1})", "'#/minProperties'"},
      {R"({"type":"integer","multipleOf":2})", "'#/multipleOf'"},
      {R"({"type":"integer","minLength":2})", "'#/minLength'"},
      {R"({"type":"text"})", "unknown type 'text'"},
      {R"({"type":[]})", "'#/type'"},
      {R"({"enum":[]})", "'#/enum'"},
      {R"({"type":"string","enum":[1]})", "'#/enum'"},
      {R"({"anyOf":[]})", "'#/anyOf'"},
      {R"({"oneOf":[{"type":"integer"},{"type":"number"}]})", "'#/oneOf'"},
      {R"({"oneOf":[{"properties":{"a":{}}},{"type":"integer"}]})", "'#/oneOf'"},
      {R"({"allOf":[{"type":"string"},{"minLength":2}]})", "'#/allOf/0/type'"},
      {R"({"$ref":"http://x/y"})", "'#/$ref'"},
      {R"({"$ref":"#/$defs/none"})", "'#/$ref'"},
      {R"({"$ref":"#name"})", "'#/$ref'"},
      {R"({"$ref":"#"})", "left-recursive"},
      {R"({"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"anyOf":[{"$ref":"#/$defs/a"}]}}})",
       "left-recursive"},
      {R"({"allOf":[{"$ref":"#"}]})", "left-recursive"},
      {R"({"properties":{"a":{"$ref":"#"}},"required":["a"]})", "rule '#' cannot end"},
      {R"({"$defs":{"b":{"items":{"$ref":"#/$defs/b"},"minItems":1}},"$ref":"#/$defs/b"})",
       "rule '#/$defs/b"},
      {R"({"minLength":3,"maxLength":2})", "'#/minLength'"},
      {R"({"minLength":-1})", "'#/minLength'"},
      {R"({"maxLength":1e9})", "'#/maxLength'"},
      {R"({"type":"array","minItems":3,"maxItems":2})", "'#/minItems'"},
      {R"({"prefixItems":[{}],"minItems":2})", "'#/minItems'"},
      {R"({"type":"integer","minimum":3,"maximum":2})", "'#/maximum'"},
      {R"({"type":"integer","exclusiveMinimum":3,"exclusiveMaximum":4})", "'#/exclusiveMaximum'"},
      {R"({"type":"integer","minimum":1e30})", "'#/minimum'"},
      {R"({"type":"integer","exclusiveMinimum":true})", "'#/exclusiveMinimum'"},
      {R"({"pattern":"(a"})", "'#/pattern'"},
      {R"({"pattern":"\\bx"})", "'#/pattern'"},
      {R"({"pattern":"a","maxLength":3})", "'#/pattern'"},
      {R"({"format":"date","maxLength":3})", "'#/maxLength'"},
      {R"({"required":["x"],"additionalProperties":false})", "'#/required'"},
      {R"({"properties":{"x":false},"required":["x"]})", "'#/properties/x'"},
      {R"({"items":[{}],"prefixItems":[{}]})", "'#/items'"},
      {R"({"items":[3]})", "'#/items/0'"},
      {"false", "'#'"},
      {"3", "'#'"},
      {R"({"type":"string","nullable":true})", "'#/nullable'"},
  };
  for (const auto& [schema, message] : cases) {
    const auto grammar = Compile(schema, SchemaStrictness::kLoose);
    ASSERT_FALSE(grammar.has_value()) << schema;
    EXPECT_EQ(grammar.error().code, Code::kInvalidArgument);
    EXPECT_NE(grammar.error().message.find(message), std::string::npos) << schema << "\n"
                                                                        << grammar.error().message;
  }
}

TEST(JsonSchema, StrictRefusesWhatOnlyAnnotates) {
  for (const std::string_view schema :
       {R"({"type":"string","format":"email"})", R"({"type":"integer","x-order":1})"}) {
    EXPECT_TRUE(Compile(schema, SchemaStrictness::kLoose).has_value()) << schema;
    EXPECT_FALSE(Compile(schema, SchemaStrictness::kStrict).has_value()) << schema;
  }
  EXPECT_TRUE(Compile(R"({"type":"string","title":"t","description":"d","default":1})",
                      SchemaStrictness::kStrict)
                  .has_value());
}

TEST(JsonSchema, ARefToManyFollowingEachOtherDoesNotRecurse) {
  std::string schema = R"({"$ref":"#/$defs/d0","$defs":{)";
  for (int i = 0; i < 10'000; ++i) {
    schema += fmt::format(R"("d{}":{{"$ref":"#/$defs/d{}"}},)", i, i + 1);
  }
  schema += R"("d10000":{"type":"null"}}})";
  Check({schema, {"null"}, {"1"}});
}

TEST(JsonSchema, TakesAsManyBranchesOfLongReferencesAsBefore) {
  std::string schema = R"({"oneOf":[)", defs;
  for (int i = 0; i < 200; ++i) {
    schema +=
        fmt::format(R"({}{{"$ref":"#/$defs/a_name_of_many_characters_{}"}})", i ? "," : "", i);
    defs += fmt::format(
        R"({}"a_name_of_many_characters_{}":{{"properties":{{"k":{{"const":{}}}}},"required":["k"]}})",
        i ? "," : "", i, i);
  }
  Check({schema + "],\"$defs\":{" + defs + "}}", {R"({"k":7})"}, {R"({"k":200})"}});
}

// Returns a list that has `one` several times; "@" in it is the number.
std::string Times(size_t num, std::string_view one) {
  std::string list = "[";
  for (size_t i = 0; i < num; ++i) {
    if (i > 0) list += ',';
    for (const char c : one) list += c == '@' ? std::to_string(i) : std::string(1, c);
  }
  return list + "]";
}

TEST(JsonSchema, RefusesSmallSchemasThatWouldTakeMuch) {
  const std::string larger = "the grammar is larger than 500000 parts";
  const std::string longer = "its schemas take more than 2000000 steps";
  const auto beside = [](const std::string& schema) {
    return R"({"properties":{"x":)" + schema + R"(},"anyOf":)" +
           Times(1000, R"({"required":["a"]})") + "}";
  };
  std::string unknown;
  for (int i = 0; i < 5000; ++i) unknown += fmt::format(R"(,"k{}":0)", i);
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"({"pattern":")" + std::string(1 << 19, '|') + "\"}", larger},
      {R"({"enum":)" + Times(60'000, R"([[],{"a":0}])") + "}", larger},
      {R"({"enum":)" + Times(1 << 20, "0") + "}", "bytes (at most 1048576)"},
      {beside(R"({"pattern":")" + std::string(256, '|') + "\"}"), larger},
      {beside(R"({"pattern":"[)" + std::string(50'000, 'a') + "]\"}"), longer},
      {beside(R"({"const":")" + std::string(50'000, 'a') + "\"}"), larger},
      {beside(R"({"type":"string","enum":)" + Times(5000, "{}").insert(1, "\"a\",") + "}"), longer},
      {beside(R"({"required":)" + Times(5000, R"("a")") + "}"), longer},
      {beside(R"({"anyOf":[{}])" + unknown + "}"), "more than 100000 properties"},
      {R"({"a":{"required":)" + Times(2000, R"("x")") + R"(},"allOf":)" +
           Times(900, R"({"$ref":"#/a"})") + "}",
       "more than 100000 properties"},
      {R"({"allOf":)" + Times(1001, "{}") + "}", "more than 1000 schemas"},
      {R"({"anyOf":)" + Times(20'001, "{}") + "}", "'#/anyOf': more than 20000 schemas"},
      {R"({"oneOf":)" +
           Times(200, R"({"properties":{"p":{"enum":["x",)" + Times(200, "@").substr(1) +
                          R"(},"k":{"const":@}},"required":["p","k"]})") +
           "}",
       longer},
      {R"({"a":{"properties":{"x":{"enum":)" + Times(50'000, "0") + R"(}}},"allOf":)" +
           Times(900, R"({"$ref":"#/a"})") + "}",
       longer},
      {R"({"type":)" + Times(21, R"("null")") + "}", "more than 20 types"},
  };
  for (const auto& [schema, message] : cases) {
    const auto grammar = Compile(schema, SchemaStrictness::kLoose);
    EXPECT_FALSE(grammar.has_value()) << schema.substr(0, 200);
    if (grammar.has_value()) continue;
    EXPECT_EQ(grammar.error().code, Code::kInvalidArgument);
    EXPECT_NE(grammar.error().message.find(message), std::string::npos)
        << schema.substr(0, 200) << "\n"
        << grammar.error().message;
  }
}

TEST(JsonSchema, LooksAtConstantsOnceForAllBranches) {
  Check({R"({"e":{"enum":)" + Times(7000, "0") + R"(},"oneOf":)" +
             Times(200, R"({"properties":{"p":{"$ref":"#/e"},"k":{"const":@}},)"
                        R"("required":["p","k"]})") +
             "}",
         {R"({"p":0,"k":199})"},
         {R"({"p":0,"k":200})", R"({"p":1,"k":1})"}});
  Check({R"({"const":2,"enum":[1,2.0,3]})", {"2"}, {"1", "3"}});
}

TEST(JsonSchema, CutsLongPathsInTheirMiddle) {
  const std::string key = "\u00e4" + std::string(30'000, 'k');
  const std::string schema = R"({"properties":{")" + key + R"(":{"anyOf":[{},{"not":{}}]}}})";
  const auto grammar = Compile(schema, SchemaStrictness::kLoose);
  ASSERT_FALSE(grammar.has_value());
  EXPECT_EQ(grammar.error().message.find("at '#/properties/\u00e4kkk"), 0u);
  EXPECT_NE(grammar.error().message.find("kkk/anyOf/1/not': "), std::string::npos);
  EXPECT_LT(grammar.error().message.size(), 300u);
}

}  // namespace
}  // namespace kvasir
