#include "base/json_tree.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <random>

namespace kvasir {
namespace {

using nlohmann::ordered_json;

// Returns a value as nlohmann's type.
ordered_json JsonOf(const JsonValue& value) {
  using Kind = JsonValue::Kind;
  switch (value.kind()) {
    case Kind::kNull:
      return nullptr;
    case Kind::kBool:
      return value.boolean();
    case Kind::kInteger:
      return value.integer();
    case Kind::kUnsigned:
      return value.unsigned_integer();
    case Kind::kDigits:
    case Kind::kFloat:
      return value.number();
    case Kind::kString:
      return std::string(value.text());
    case Kind::kIds:
      return std::vector<int32_t>(value.ids().begin(), value.ids().end());
    case Kind::kArray: {
      ordered_json array = ordered_json::array();
      for (const JsonValue& item : value.items()) array.push_back(JsonOf(item));
      return array;
    }
    case Kind::kObject: {
      ordered_json object = ordered_json::object();
      for (const auto& [key, member] : value.members()) {
        object[std::string(key)] = JsonOf(member);
        EXPECT_EQ(value.Find(key), &member);
      }
      EXPECT_EQ(value.Find("no such key"), nullptr);
      return object;
    }
  }
  return nullptr;
}

TEST(JsonTree, ReadsWhatNlohmannReads) {
  for (const std::string text :
       {"null", "true", "-1", "0", "9223372036854775807", "9223372036854775808",
        "18446744073709551615", "-9223372036854775808", "1e300", "0.1", "[]", "{}", "\"\"",
        R"("a\u00e9\ud83d\ude00\n")", R"([1,[2,[3,{}]],"x",{"y":[null]}])",
        R"({"b":1,"a":{"d":[1.5,2],"c":"e"},"":[]})"}) {
    JsonTree tree;
    const auto value = tree.Parse(text);
    ASSERT_TRUE(value) << text;
    EXPECT_EQ(JsonOf(*value).dump(), ordered_json::parse(text).dump());
  }
  for (const std::string text : {"", "[", "{\"a\"}", "1 2", "nul", "[1,]", "\"\xff\"", "1e999"}) {
    JsonTree tree;
    EXPECT_FALSE(tree.Parse(text)) << text;
  }
  JsonTree tree;
  EXPECT_FALSE(tree.Parse(std::string("1\0", 2)));
  EXPECT_TRUE(tree.Parse(std::string(128, '[') + std::string(128, ']')));
  EXPECT_FALSE(tree.Parse(std::string(129, '[') + std::string(129, ']')));
}

TEST(JsonTree, ADoubledKeyKeepsItsFirstPlaceAndItsLastValue) {
  for (const size_t others : {0, 5, 8, 40}) {
    std::string text = "{\"b\":1,\"a\":2";
    for (size_t i = 0; i < others; ++i) text += fmt::format(",\"k{}\":{}", i, i);
    text += ",\"b\":3,\"c\":4,\"a\":5,\"b\":6}";
    JsonTree tree;
    const JsonValue value = *tree.Parse(text);
    ASSERT_EQ(value.size(), others + 3);
    EXPECT_EQ(value.members()[0].key, "b");
    EXPECT_EQ(value.members()[0].value.integer(), 6);
    EXPECT_EQ(value.members()[1].value.integer(), 5);
    EXPECT_EQ(JsonOf(value).dump(), ordered_json::parse(text).dump());
  }
}

TEST(JsonTree, FindsEveryKeyOfRandomObjects) {
  std::mt19937 random(20261122);
  for (int round = 0; round < 200; ++round) {
    std::map<std::string, int64_t> expected;
    std::vector<JsonValue::Member> members;
    JsonTree tree;
    const size_t count = random() % 60;
    for (size_t i = 0; i < count; ++i) {
      const std::string key(random() % 3, static_cast<char>('a' + random() % 4));
      const auto number = static_cast<int64_t>(random());
      members.push_back({tree.KeepText(key), JsonValue(number)});
      expected[key] = number;
    }
    const JsonValue object = tree.Object(members);
    ASSERT_EQ(object.size(), expected.size());
    for (const auto& [key, number] : expected) {
      ASSERT_NE(object.Find(key), nullptr);
      EXPECT_EQ(object.Find(key)->integer(), number);
    }
  }
}

TEST(JsonTree, ValuesLiveAsLongAsTheTreeWhereverItMoves) {
  JsonTree first;
  const JsonValue value = *first.Parse(R"({"a":[")" + std::string(100000, 'x') + R"(",1]})");
  const JsonTree second = std::move(first);
  EXPECT_EQ(value.Find("a")->items()[0].text(), std::string(100000, 'x'));
  EXPECT_EQ(value.Find("a")->items()[1].integer(), 1);
}

TEST(JsonTree, WhatIsNoListAndNoObjectHasNoItemsAndNoMembers) {
  JsonTree tree;
  for (const char* text : {"\"abcdef\"", "18446744073709551616", "-1", "1.5", "true", "null"}) {
    const auto value = tree.Parse(text);
    ASSERT_TRUE(value) << text;
    EXPECT_TRUE(value->items().empty()) << text;
    EXPECT_TRUE(value->members().empty()) << text;
  }
  EXPECT_TRUE(tree.Parse("[1]")->members().empty());
  EXPECT_TRUE(tree.Parse("{\"a\":1}")->items().empty());
}

TEST(JsonTree, IntegersOfAnyLengthStayAsTheyWereWritten) {
  JsonTree tree;
  for (const std::string& digits :
       {std::string("0"), std::string("-1"), std::string("9223372036854775808"),
        std::string("18446744073709551615"), std::string("18446744073709551616"),
        std::string("-9223372036854775809"), std::string("123456789012345678901"),
        "-1" + std::string(4000, '7')}) {
    const auto value = tree.Parse(digits);
    ASSERT_TRUE(value) << digits;
    EXPECT_TRUE(value->is_integer() && value->is_number()) << digits;
    EXPECT_EQ(value->integer_text(), digits);
  }
  EXPECT_EQ(tree.Parse("18446744073709551616")->number(), 0x1p64);
  EXPECT_FALSE(tree.Parse("1e2")->is_integer());
  EXPECT_FALSE(tree.Parse("1e400"));
  EXPECT_FALSE(tree.Parse("1" + std::string(6000, '0')));
}

}  // namespace
}  // namespace kvasir
