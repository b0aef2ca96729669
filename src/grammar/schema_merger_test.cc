#include "grammar/schema_merger.h"

#include <gtest/gtest.h>

namespace kvasir {
namespace {

// Returns the text of what the schemas of a list say together, or the error.
std::string Merged(std::string_view list) {
  JsonTree tree;
  const JsonValue schemas = tree.Parse(list).value();
  GrammarSource source;
  const SchemaDocument document(schemas, &source);
  SchemaMerger merger(&document);
  std::vector<SchemaPlace> parts;
  for (const JsonValue& schema : schemas.items()) parts.push_back({&schema, "#"});
  const auto merged = merger.Merge(parts, "#");
  return merged ? SortedTextOf(*merged->schema) : merged.error().message;
}

TEST(SchemaMerger, KeepsTheOneSchemaThatSaysSomething) {
  EXPECT_EQ(Merged(R"([{"title":"a"},{"type":"string","minLength":2},true])"),
            R"({"minLength":2,"type":"string"})");
  EXPECT_EQ(Merged(R"([{"title":"a"},true])"), "true");
  EXPECT_EQ(Merged(R"([{"type":"string"},false])"), "false");
  EXPECT_EQ(Merged(R"([{"type":["string","null"]},{"type":"string","minLength":2}])"),
            R"({"minLength":2,"type":"string"})")
      << "a wider type beside it adds nothing";
}

TEST(SchemaMerger, JoinsTheProperties) {
  EXPECT_EQ(Merged(R"([{"properties":{"a":{"type":"string"},"b":true},"required":["a"]},
                       {"properties":{"b":{"type":"null"},"a":{"type":"string"}},
                        "required":["b"]}])"),
            R"({"properties":{"a":{"type":"string"},"b":{"allOf":[true,{"type":"null"}]}},)"
            R"("required":["a","b"],"type":"object"})");
}

TEST(SchemaMerger, JoinsWhatSeveralSayOfAPropertyInOneList) {
  EXPECT_EQ(Merged(R"([{"properties":{"a":{"maxLength":1}}},{"properties":{"a":{"maxLength":2}}},
                       {"properties":{"a":{"maxLength":1}}},{"properties":{"a":true}}])"),
            R"({"properties":{"a":{"allOf":[{"maxLength":1},{"maxLength":2},true]}},)"
            R"("required":[],"type":"object"})");
}

TEST(SchemaMerger, RefusesTooMany) {
  const auto times = [](size_t num, std::string_view one) {
    std::string list = "[";
    for (size_t i = 0; i < num; ++i) list.append(i == 0 ? "" : ",").append(one);
    return list + "]";
  };
  EXPECT_EQ(Merged(times(1001, "{}")), "at '#': more than 1000 schemas are joined");
  const std::string needs = R"({"required":)" + times(60'000, R"("a")") + "}";
  EXPECT_EQ(Merged(times(2, needs)), "at '#': joined schemas have more than 100000 properties");
  const std::string values = R"({"properties":{"a":{"enum":)" + times(1000, "17") + "}}}";
  EXPECT_NE(Merged(times(900, values)).find("more than 2000000 steps"), std::string::npos);
}

TEST(SchemaMerger, ForbidsWhatOneOfThemDoesNotList) {
  EXPECT_EQ(Merged(R"([{"properties":{"a":true},"additionalProperties":false},
                       {"properties":{"b":true}}])"),
            R"({"additionalProperties":false,"properties":{"a":true,"b":false},"required":[],)"
            R"("type":"object"})");
}

TEST(SchemaMerger, RefusesWhatItCannotJoin) {
  EXPECT_EQ(Merged(R"([{"type":"string"},{"type":"string","minLength":1},{"minLength":2}])"),
            "at '#/type': only schemas of objects can be joined");
  EXPECT_EQ(Merged(R"([{"properties":{}},{"minProperties":2}])"),
            "at '#/minProperties': not supported in schemas that are joined");
  EXPECT_EQ(Merged(R"([{"properties":{}},{"additionalProperties":{"type":"null"}}])"),
            "at '#/additionalProperties': a schema is not supported in schemas that are joined");
  EXPECT_EQ(Merged(R"([{"properties":{}},7])"), "at '#': a schema is an object, true or false");
}

TEST(SchemaMerger, LeavesMembersOut) {
  JsonTree tree;
  const JsonValue schema = tree.Parse(R"({"allOf":[],"type":"null","title":"a"})").value();
  GrammarSource source;
  const SchemaDocument document(schema, &source);
  SchemaMerger merger(&document);
  const auto rest =
      merger.Without({&schema, "#"}, [](std::string_view key) { return key != "allOf"; });
  EXPECT_EQ(SortedTextOf(**rest), R"({"title":"a","type":"null"})");
}

}  // namespace
}  // namespace kvasir
