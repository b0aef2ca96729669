#include "base/json_writer.h"

#include <gtest/gtest.h>

#include <deque>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/json_tree.h"

namespace kvasir {
namespace {

using nlohmann::json;

TEST(JsonWriter, ReplacesBytesThatAreNotUtf8) {
  EXPECT_EQ(Dump(json("a\xFF\n")), "\"a\xEF\xBF\xBD\\n\"");
  EXPECT_EQ(Quoted("a\xFF\n"), "\"a\xEF\xBF\xBD\\n\"");
  EXPECT_EQ(QuotedParts("a\xFF\n").Rest(), "\"a\xEF\xBF\xBD\\n\"");
}

TEST(JsonWriter, QuotesEachByteAsTheLibraryDoes) {
  for (int first = 0; first < 256; ++first) {
    for (int second = 0; second < 256; ++second) {
      const std::string text = {'a', static_cast<char>(first), static_cast<char>(second), 'z'};
      ASSERT_EQ(Quoted(text), Dump(json(text))) << first << " " << second;
    }
  }
  const std::string text = "\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\xE2\x80\xA8\x7F";
  EXPECT_EQ(Quoted(text), "\"" + text + "\"");
  std::string out = "k:";
  AppendQuoted("a\tb", &out);
  EXPECT_EQ(out, "k:\"a\\tb\"");
}

TEST(JsonWriter, KeepsTheOrderOfKeysWhereTheValueHasOne) {
  EXPECT_EQ(Dump(json{{"b", 1}, {"a", 2}}), R"({"a":2,"b":1})");
  EXPECT_EQ(Dump(nlohmann::ordered_json{{"b", 1}, {"a", 2}}), R"({"b":1,"a":2})");
  JsonTree tree;
  const std::string text =
      R"({"b":[null,true,-1,18446744073709551615,99999999999999999999,0.5,"\u001f\"é",{}],"a":[]})";
  EXPECT_EQ(TextOf(tree.Parse(text).value()), text);
  const int32_t ids[] = {7, -1};
  EXPECT_EQ(TextOf(tree.Ids(ids)), "[7,-1]");
}

TEST(JsonWriter, WritesLongTextsInPartsOfWholeCharacters) {
  std::string text;
  while (text.size() < 10 * kPartBytes) text += "a\"\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\n";
  Parts parts = QuotedParts(text);
  std::string whole;
  for (std::string piece = parts.Next(); !piece.empty(); piece = parts.Next()) {
    EXPECT_LT(piece.size(), 2 * kPartBytes);
    whole += piece;
  }
  EXPECT_EQ(whole, Dump(json(text)));
  EXPECT_EQ(QuotedParts("").Rest(), "\"\"");
}

Parts Sentences(size_t times) {
  for (size_t i = 0; i < times; ++i) co_yield "\"\xC3\xA9\" ";
}

TEST(JsonWriter, QuotesATextThatComesInParts) {
  EXPECT_EQ(json::parse(QuotedParts(Sentences(5000)).Rest()).get<std::string>(),
            Sentences(5000).Rest());
  EXPECT_EQ(QuotedParts(Parts()).Rest(), "\"\"");
}

TEST(JsonWriter, WritesLists) {
  const std::deque<int32_t> numbers = {3, -4};
  EXPECT_EQ(ListParts(numbers).Rest(), "[3,-4]");
  EXPECT_EQ(ListParts(std::vector<uint64_t>{}).Rest(), "[]");
  const std::vector<std::string> texts = {"a", "\n"};
  EXPECT_EQ(ListParts(texts, Quoted).Rest(), R"(["a","\n"])");
}

TEST(JsonWriter, WritesObjectsForMoreMembersToFollow) {
  const nlohmann::ordered_json ordered = {{"b", 1}, {"a", {{"c", 2}}}};
  EXPECT_EQ(BeginObject(ordered), R"({"b":1,"a":{"c":2},)");
  EXPECT_EQ(BeginObject(Dump(ordered)), BeginObject(ordered));
  EXPECT_EQ(BeginObject(json{{"b", 1}}) + "\"x\":[]" + EndObject({{"a", "}"}}),
            R"({"b":1,"x":[],"a":"}"})");
}

}  // namespace
}  // namespace kvasir
