#include "grammar/schema_keywords.h"

#include <gtest/gtest.h>

namespace kvasir {
namespace {

JsonValue Parsed(std::string_view text, JsonTree* tree) { return tree->Parse(text).value(); }

TEST(SchemaKeywords, TellTheTypesOfASchema) {
  JsonTree tree;
  EXPECT_EQ(TypesByKeywords(Parsed(R"({"title":"a"})", &tree)), kAnyType);
  EXPECT_EQ(TypesByKeywords(Parsed(R"({"required":[]})", &tree)), kObjectType);
  EXPECT_EQ(TypesByKeywords(Parsed(R"({"minimum":1})", &tree)), kNumberType | kIntegerType);
  EXPECT_EQ(TypesByKeywords(Parsed(R"({"items":true,"format":"date"})", &tree)),
            kArrayType | kStringType);
  const std::vector<std::string_view> of_strings = {"minLength", "maxLength", "pattern", "format"};
  EXPECT_EQ(KeywordsOf(kStringType), of_strings);
  EXPECT_EQ(KeywordsOf(kNullType | kBooleanType), std::vector<std::string_view>());
  EXPECT_EQ(KeywordsOf(kIntegerType), KeywordsOf(kNumberType));
  for (const std::string_view keyword : KeywordsOf(kAnyType)) {
    EXPECT_EQ(IsConstraint(keyword), keyword != "format") << keyword;  // others may ignore it
    EXPECT_FALSE(IsAnnotation(keyword)) << keyword;
  }
}

TEST(SchemaKeywords, TypesOfValuesHaveNames) {
  JsonTree tree;
  const std::pair<const char*, const char*> cases[] = {
      {"null", "null"},    {"true", "boolean"}, {"7", "integer"}, {"7.0", "integer"},
      {"\"a\"", "string"}, {"[]", "array"},     {"{}", "object"}};
  for (const auto& [text, name] : cases) {
    EXPECT_EQ(TypeOf(Parsed(text, &tree)), TypeNamed(name)) << text;
  }
  EXPECT_EQ(TypeOf(Parsed("0.5", &tree)), kNumberType);
  EXPECT_EQ(TypeNamed("number"), kNumberType | kIntegerType);
  EXPECT_EQ(TypeNamed("float"), std::nullopt);
}

TEST(SchemaKeywords, EqualValuesHaveEqualTexts) {
  JsonTree tree;
  EXPECT_EQ(SortedTextOf(Parsed(R"({"b":[1.0, "é\n"],"a":null})", &tree)),
            R"({"a":null,"b":[1,"é\n"]})");
  EXPECT_EQ(SortedTextOf(Parsed("1e3", &tree)), SortedTextOf(Parsed("1000", &tree)));
  EXPECT_NE(SortedTextOf(Parsed("\"1\"", &tree)), SortedTextOf(Parsed("1", &tree)));
}

}  // namespace
}  // namespace kvasir
