#include "base/json_fields.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace kvasir {
namespace {

TEST(JsonFields, KeepsTheFirstErrorAndLeavesTheValueAlone) {
  JsonTree tree;
  const JsonValue object = *tree.Parse(R"({"a":"x","b":-1,"c":2.5,"d":null,"e":1,"f":null})");
  JsonFields fields(object, "top.");
  float a = 7;
  uint32_t b = 8;
  fields.Number("d", 0, 1, &a);
  fields.Unsigned("absent", 0, 1, &b);
  EXPECT_FALSE(fields.error());
  fields.Number("a", 0, 1, &a);
  fields.Unsigned("b", 0, 9, &b);
  fields.Unsigned("c", 0, 9, &b);
  ASSERT_TRUE(fields.error());
  EXPECT_EQ(fields.error()->field, "top.a");
  EXPECT_EQ(a, 7);
  EXPECT_EQ(b, 8u);
  EXPECT_EQ(fields.Unread(), std::vector<std::string>{"e"}) << "a field of null is absent";
}

TEST(JsonFields, ALimitOfTheTypeIsNamedOnlyToANumberBeyondIt) {
  const auto error = [](const char* text, int64_t min, int64_t max) {
    JsonTree tree;
    const JsonValue object = *tree.Parse(std::string("{\"n\":") + text + "}");
    JsonFields fields(object);
    EXPECT_EQ(fields.Integer("n", min, max), std::nullopt);
    return fields.error()->message;
  };
  EXPECT_EQ(error("0", 1, INT64_MAX), "0 is not an integer of at least 1");
  EXPECT_EQ(error("-1", 0, UINT32_MAX), "-1 is not an integer of at least 0");
  EXPECT_EQ(error("5e9", 0, UINT32_MAX), "5000000000 is not an integer between 0 and 4294967295");
  EXPECT_EQ(error("1.5", INT64_MIN, INT64_MAX), "1.5 is not an integer");
  EXPECT_EQ(error("1e30", INT64_MIN, INT64_MAX),
            "1e+30 is not an integer between -9223372036854775808 and 9223372036854775807");
  EXPECT_EQ(error("7", 1, 5), "7 is not an integer between 1 and 5");
}

TEST(JsonFields, IntegersMayBeWrittenAsFloats) {
  JsonTree tree;
  const JsonValue object = *tree.Parse(R"({"a":16.0,"b":16.5,"c":1e300,"d":18446744073709551615})");
  JsonFields fields(object);
  EXPECT_EQ(fields.Integer("a", 0, 100), 16);
  EXPECT_EQ(fields.Integer("b", 0, 100), std::nullopt);
  EXPECT_EQ(fields.error()->field, "b");
  EXPECT_EQ(JsonFields(object).Integer("c", INT64_MIN, INT64_MAX), std::nullopt);
  EXPECT_EQ(JsonFields(object).Integer("d", INT64_MIN, INT64_MAX), std::nullopt);
}

TEST(JsonFields, ARefusalSaysWhatIsThere) {
  const std::string text(63, 'a');
  JsonTree tree;
  const JsonValue object =
      *tree.Parse(R"({"a":"x\"y","b":5,"c":true,"d":[],"e":[1],"f":null,"g":")" + text + "é\"}");
  const auto said = [&](std::string_view name) {
    JsonFields fields(object, "top.");
    fields.Refuse(name, "an object");
    return fields.error()->text();
  };
  EXPECT_EQ(said("a"), R"(top.a: is "x\"y", not an object)");
  EXPECT_EQ(said("b"), "top.b: is 5, not an object");
  EXPECT_EQ(said("c"), "top.c: is true, not an object");
  EXPECT_EQ(said("d"), "top.d: is an empty array, not an object");
  EXPECT_EQ(said("e"), "top.e: is an array, not an object");
  EXPECT_EQ(said("f"), "top.f: is null, not an object");
  EXPECT_EQ(said("g"), "top.g: is \"" + text + "\"..., not an object") << "whole characters";
  EXPECT_EQ(said("h"), "top.h: is missing, not an object");
}

TEST(JsonFields, SaysHowManyFieldsMoreAreUnread) {
  std::string members;
  for (int i = 100; i < 170; ++i) members += fmt::format("\"n{}\":1,", i);
  JsonTree tree;
  const JsonValue object = *tree.Parse("{" + members + "\"inner\":{" + members + "\"n\":1}}");
  JsonFields fields(object);
  JsonFields inner(*fields.Find("inner"), "inner.");
  fields.TakeUnread(inner);
  const std::string path = "inner.n100";
  for (int i = 0; i < 2; ++i) fields.TakeUnread(std::span(&path, 1));
  const std::vector<std::string> unread = fields.Unread();
  ASSERT_EQ(unread.size(), 130u);
  EXPECT_EQ(unread[63], "n163");
  EXPECT_EQ(unread[64], "and 6 more");
  EXPECT_EQ(unread[65], "inner.n");
  EXPECT_EQ(unread[128], "inner.n162");
  EXPECT_EQ(unread[129], "and 9 more");
}

}  // namespace
}  // namespace kvasir
