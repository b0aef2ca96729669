#include "api/line_cure.h"

#include <gtest/gtest.h>

namespace kvasir {
namespace {

std::vector<std::string> LinesThat(std::string_view name, const std::vector<std::string>& lines) {
  LineRules rules;
  EXPECT_TRUE(rules.AddName(name));
  std::vector<std::string> matched;
  for (const std::string& line : lines) {
    const auto found = rules.Match(line);
    EXPECT_TRUE(found) << line;
    if (found && *found) matched.push_back(line);
  }
  return matched;
}

TEST(LineRules, NamesAreOfLinesThatClientsWrite) {
  const std::vector<std::string> dates = {"Today's date: 2026-03-31",
                                          "  - Current time is 10:15 UTC",
                                          "The current date and time is Tuesday, March 31",
                                          "Date: 31/03/2026",
                                          "It is Monday.",
                                          "Now: 12:00"};
  const std::vector<std::string> tokens = {"Tokens left: 12034", "You have 1200 tokens remaining.",
                                           "<budget>Token usage: used 300 of 500</budget>"};
  const std::vector<std::string> ids = {"Session ID: 7f3a-22", "id=abc123", "- request id: 9",
                                        "Conversation UUID: 01-02"};
  const std::vector<std::string> billing = {
      "x-anthropic-billing-header: cc_version=2.1.197.1ad; cc_entrypoint=cli;"};
  std::vector<std::string> lines = {
      "You are a helpful assistant.",     "Write dates as 2026-03-31.",
      "Answer with at most 100 tokens.",  "Give each item an id and a name.",
      "Say what the time is when asked.", "It is important to be brief.",
      "The brass key is in drawer 3.",    ""};
  const size_t stay = lines.size();
  for (const auto* all : {&dates, &tokens, &ids, &billing}) {
    lines.insert(lines.end(), all->begin(), all->end());
  }
  EXPECT_EQ(LinesThat("date", lines), dates);
  EXPECT_EQ(LinesThat("tokens-left", lines), tokens);
  EXPECT_EQ(LinesThat("id", lines), ids);
  EXPECT_EQ(LinesThat("billing", lines), billing);
  EXPECT_EQ(stay, 8u);
}

TEST(LineRules, AreNamesOrPatterns) {
  LineRules rules;
  EXPECT_TRUE(rules.empty());
  EXPECT_EQ(rules.AddName("time").error().message,
            R"("time" is not one of date, tokens-left, id, billing (patterns are for --drop-lines )"
            R"(and --move-lines))");
  EXPECT_FALSE(rules.Add("("));
  LineRules many;  // a body may name one 60,000 times
  for (int i = 0; i < 60'000; ++i) ASSERT_TRUE(many.AddName("date"));
  EXPECT_TRUE(*many.Match("Date: 1"));
  ASSERT_TRUE(rules.Add("^Mood: "));
  EXPECT_TRUE(*rules.Match("Mood: fine"));
  EXPECT_FALSE(*rules.Match("My Mood: fine"));
}

TEST(LineRules, APatternThatTakesTooLongIsAnError) {
  LineRules rules;
  ASSERT_TRUE(rules.Add("(a+)+$"));
  const auto found = rules.Match(std::string(5000, 'a') + "b");
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, Code::kInvalidArgument);
  EXPECT_NE(found.error().message.find("'(a+)+$'"), std::string::npos) << found.error().message;
}

TEST(LineCure, DropsAndMovesWholeLines) {
  LineCure cure;
  ASSERT_TRUE(cure.dropped.Add("^drop"));
  ASSERT_TRUE(cure.moved.Add("^move|^drop"));
  const auto cured = Cure("a\ndrop 1\nmove 2\nb\n\nmove 3", cure);
  ASSERT_TRUE(cured);
  EXPECT_EQ(cured->text, "a\nb\n\n");
  EXPECT_EQ(cured->moved, (std::vector<std::string>{"move 2", "move 3"}));
  EXPECT_EQ(cured->dropped, 1u);
  EXPECT_EQ(Cure("", cure)->text, "");
  EXPECT_EQ(Cure("a\n", cure)->text, "a\n");
}

}  // namespace
}  // namespace kvasir
