#include "base/json_fields.h"

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

}  // namespace
}  // namespace kvasir
