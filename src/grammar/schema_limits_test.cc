#include "grammar/schema_limits.h"

#include <gtest/gtest.h>

namespace kvasir {
namespace {

// Returns the error of a reader of limits; "" if there is none.
template <typename Read>
std::string ErrorOf(std::string_view schema, const Read& read) {
  JsonTree tree;
  const JsonValue value = tree.Parse(schema).value();
  const auto limits = read(SchemaPlace{&value, "#/a"});
  return limits ? "" : limits.error().message;
}

TEST(SchemaLimits, ReadsCounts) {
  JsonTree tree;
  const JsonValue schema = tree.Parse(R"({"minItems":3,"maxItems":16.0})").value();
  const SchemaPlace place{&schema, "#"};
  EXPECT_EQ(CountAt(place, "minItems").value(), 3u);
  EXPECT_EQ(CountAt(place, "maxItems").value(), 16u);
  EXPECT_EQ(CountAt(place, "minLength").value(), std::nullopt);
  const auto count = [](const SchemaPlace& at) { return CountAt(at, "minItems"); };
  for (const char* wrong : {"-1", "0.5", "\"3\"", "null"}) {
    EXPECT_EQ(ErrorOf(std::string(R"({"minItems":)") + wrong + "}", count),
              "at '#/a/minItems': a number of 0 or more, without fraction, is needed")
        << wrong;
  }
  EXPECT_EQ(ErrorOf(R"({"minItems":262145})", count), "at '#/a/minItems': 262145 is above 262144");
}

TEST(SchemaLimits, TakesTheTighterOfTwoLimits) {
  JsonTree tree;
  const JsonValue schema =
      tree.Parse(R"({"minimum":3,"exclusiveMinimum":3,"maximum":9,"exclusiveMaximum":12})").value();
  const SchemaPlace place{&schema, "#"};
  const IntegerBounds integers = IntegerBoundsOf(place).value();
  EXPECT_EQ(integers.least, Decimal::Of("4"));
  EXPECT_EQ(integers.most, Decimal::Of("9"));
  const NumberBounds numbers = NumberBoundsOf(place).value();
  EXPECT_EQ(numbers.least, 3);
  EXPECT_TRUE(numbers.is_above_least);
  EXPECT_EQ(numbers.most, 9);
  EXPECT_FALSE(numbers.is_below_most);
}

TEST(SchemaLimits, RoundsFractionsOfIntegersInwards) {
  JsonTree tree;
  const JsonValue schema =
      tree.Parse(R"({"exclusiveMinimum":-2.5,"exclusiveMaximum":2.5})").value();
  const IntegerBounds bounds = IntegerBoundsOf({&schema, "#"}).value();
  EXPECT_EQ(bounds.least, Decimal::Of("-2"));
  EXPECT_EQ(bounds.most, Decimal::Of("2"));
}

TEST(SchemaLimits, NamesALimitThatLeavesNothing) {
  EXPECT_EQ(ErrorOf(R"({"minimum":4,"maximum":3})", IntegerBoundsOf),
            "at '#/a/maximum': no number is within the limits");
  EXPECT_EQ(ErrorOf(R"({"minimum":3,"exclusiveMaximum":3})", NumberBoundsOf),
            "at '#/a/exclusiveMaximum': no number is within the limits");
  EXPECT_EQ(ErrorOf(R"({"maximum":"x"})", IntegerBoundsOf), "at '#/a/maximum': a number is needed");
  EXPECT_EQ(ErrorOf(R"({"maximum":0.5})", NumberBoundsOf),
            "at '#/a/maximum': 0.5 is not an integer: not supported for numbers");
}

}  // namespace
}  // namespace kvasir
