#include "chat/answer_grammar.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/random.h"
#include "base/rounds_for_test.h"
#include "chat/answer_format.h"
#include "chat/answer_parser.h"
#include "grammar/matcher.h"
#include "grammar/sample_for_test.h"

namespace kvasir {
namespace {

constexpr std::string_view kClosing = "}]\",:<>|/";
constexpr const char* kWeather = R"({"type":"object","properties":{"city":{"type":"string"},
    "days":{"type":"integer","minimum":1,"maximum":9},"unit":{"type":"string","enum":["c","f"]}},
    "required":["city","days"]})";

// A template that has the evidence of each format, and the format's name.
constexpr std::pair<const char*, const char*> kTemplates[] = {
    {"qwen3-coder", "<function= <parameter="},
    {"deepseek", "<｜tool▁calls▁begin｜> <｜tool▁sep｜>"},
    {"mistral", "[TOOL_CALLS]"},
    {"granite", "<|tool_call|>"},
    {"hermes", "<tool_call>"},
    {"llama3", "\"parameters\" ipython"},
    {"json", ""}};

AnswerFormat FormatOf(const char* chat_template) {
  AnswerFormat format;
  format.calls = &FindCallFormat(chat_template);
  format.tools = {{.name = "weather", .parameters = kWeather}, {.name = "clock", .parameters = ""}};
  return format;
}

std::shared_ptr<const Grammar> Compile(const AnswerFormat& format,
                                       AnswerPart part = AnswerPart::kWhole, size_t spaces = 0) {
  auto grammar = CompileAnswer(format, part, spaces);
  EXPECT_TRUE(grammar.has_value()) << grammar.error().text();
  return grammar ? *grammar : nullptr;
}

bool Has(const std::shared_ptr<const Grammar>& grammar, std::string_view text) {
  Matcher matcher(grammar);
  return matcher.Advance(text) && matcher.Accepts();
}
bool Begins(const std::shared_ptr<const Grammar>& grammar, std::string_view text) {
  return Matcher(grammar).Advance(text);
}

// Writes marks as texts show them.
std::string WithMarks(std::string text) {
  for (size_t at; (at = text.find(kMark)) != text.npos;) {
    const auto number = static_cast<uint8_t>(text[at + 1]);
    text.replace(at, 2, AllMarks()[number]);
  }
  return text;
}

std::vector<AnswerEvent> Parse(const AnswerFormat& format, std::string_view text) {
  AnswerReading reading;
  reading.think = format.think;
  reading.calls = format.calls;
  reading.tools = {{"weather", {"city", "unit"}}, {"clock", {}}};
  AnswerParser parser(std::make_shared<const AnswerReading>(reading));
  std::vector<AnswerEvent> events;
  parser.Append(text, &events);
  parser.Finish(&events);
  return events;
}

TEST(AnswerGrammar, EveryAnswerThatMustCallCallsAsItsSchemaSays) {
  Random random(1);
  for (const auto& [name, chat_template] : kTemplates) {
    AnswerFormat format = FormatOf(chat_template);
    ASSERT_EQ(format.calls->name, name);
    format.must_call = true;
    const auto grammar = Compile(format);
    int count = 0, several = 0;
    for (int i = 0; i < Rounds(80, 20); ++i) {
      const std::string text = WithMarks(SampleText(grammar, random, 600, kClosing).value_or(""));
      if (text.empty()) continue;
      ++count;
      int calls = 0;
      std::string tool;
      for (const AnswerEvent& event : Parse(format, text)) {
        ASSERT_NE(event.kind, AnswerEvent::Kind::kContent) << name << ": " << text;
        if (event.kind == AnswerEvent::Kind::kCallBegin) tool = event.text;
        if (event.kind != AnswerEvent::Kind::kArguments) continue;
        ++calls;
        const auto arguments = nlohmann::json::parse(event.text, nullptr, false);
        ASSERT_TRUE(arguments.is_object()) << name << ": " << text;
        if (tool == "clock") continue;
        ASSERT_TRUE(arguments.at("city").is_string()) << name << ": " << text;
        const int days = arguments.at("days");
        ASSERT_TRUE(days >= 1 && days <= 9) << name << ": " << text;
        const std::string unit = arguments.value("unit", "c");
        ASSERT_TRUE(unit == "c" || unit == "f") << name << ": " << text;
      }
      ASSERT_GT(calls, 0) << name << ": " << text;
      several += calls > 1;
    }
    EXPECT_GT(count, Rounds(10, 3)) << name;
    EXPECT_GT(several, 0) << name;
  }
}

TEST(AnswerGrammar, WithoutParallelCallsOneIsAll) {
  Random random(2);
  for (const auto& [name, chat_template] : kTemplates) {
    AnswerFormat format = FormatOf(chat_template);
    format.must_call = true;
    format.parallel_calls = false;
    const auto grammar = Compile(format);
    for (int i = 0; i < Rounds(40, 10); ++i) {
      const std::string text = WithMarks(SampleText(grammar, random, 600, kClosing).value_or(""));
      if (text.empty()) continue;
      EXPECT_EQ(std::ranges::count(Parse(format, text), AnswerEvent::Kind::kCallBegin,
                                   &AnswerEvent::kind),
                1)
          << name << ": " << text;
    }
  }
}

TEST(AnswerGrammar, FreeTextIsFreeUntilAMark) {
  const AnswerFormat format = FormatOf("<tool_call>");
  ASSERT_TRUE(HasGrammar(format));
  const auto grammar = Compile(format);
  for (const char* text : {"", "Hello.", "a <tool_cal b", "</tool_call>", "\xC3", "\xFE\xFE",
                           "<tool_call>{\"name\": \"clock\", \"arguments\": {}}</tool_call> bye"}) {
    EXPECT_TRUE(Has(grammar, text)) << text;
  }
  EXPECT_FALSE(Begins(grammar, "a<tool_call>no"));
  EXPECT_FALSE(Begins(grammar, "<tool_call>{\"name\": \"other"));
  EXPECT_FALSE(Begins(grammar, "<tool_call>{\"name\": \"weather\", \"arguments\": {\"town"));
  EXPECT_FALSE(Has(grammar, "<tool_call>{\"name\": \"clock\", \"arguments\": {}}"));
  // The mark as a special token.
  const auto mark = std::ranges::find(AllMarks(), "<tool_call>") - AllMarks().begin();
  const std::string special{kMark, static_cast<char>(mark)};
  EXPECT_TRUE(Begins(grammar, "a" + special + "\n{\"name\": \"clock\""));
  EXPECT_FALSE(Begins(grammar, "a" + special + "no"));
  EXPECT_FALSE(HasGrammar(FormatOf("")));  // nothing marks its calls
}

TEST(AnswerGrammar, ATextStandsBehindTheThought) {
  AnswerFormat format;
  format.text = {FormatLanguage::kTexts, R"(["yes","no"])", "grammar"};
  format.think = FindThinkMarks("</think>");
  auto grammar = Compile(format);
  EXPECT_TRUE(Has(grammar, "yes"));
  EXPECT_TRUE(Has(grammar, "<think>Is it? no <think></think>\n\nyes"));
  EXPECT_FALSE(Has(grammar, "<think>yes"));
  EXPECT_FALSE(Begins(grammar, "<think>x</think>maybe"));
  EXPECT_FALSE(Begins(grammar, "I think"));
  format.begins_inside_thought = true;
  grammar = Compile(format);
  EXPECT_TRUE(Has(grammar, "It is.</think>\n\nno"));
  EXPECT_FALSE(Has(grammar, "no"));
  EXPECT_TRUE(Has(Compile(format, AnswerPart::kFromThoughtsEnd), "</think>no"));
  EXPECT_FALSE(Begins(Compile(format, AnswerPart::kFromThoughtsEnd), "no"));
}

TEST(AnswerGrammar, CallsInAThoughtAreNone) {
  AnswerFormat format = FormatOf("<tool_call>");
  format.think = FindThinkMarks("</think>");
  const auto grammar = Compile(format);
  EXPECT_TRUE(Has(grammar, "<think>I <tool_call> nothing"));  // and the answer may end there
  EXPECT_TRUE(Has(grammar, "<think><tool_call></think>Hello"));
  EXPECT_FALSE(Begins(grammar, "<think>x</think>Hello <tool_call>no"));
}

TEST(AnswerGrammar, KnowsTheSpacesThatATextDrops) {
  AnswerFormat format;
  format.text = {FormatLanguage::kTexts, R"(["yes"," no"])", "grammar"};
  auto grammar = Compile(format, AnswerPart::kWhole, 1);
  EXPECT_TRUE(Has(grammar, " yes"));
  EXPECT_TRUE(Has(grammar, "  no"));
  EXPECT_FALSE(Has(grammar, " no"));  // the text would be "no"
  format.text->text = R"(["yes"])";
  grammar = Compile(format, AnswerPart::kWhole, 1);
  EXPECT_TRUE(Has(grammar, " yes"));
  EXPECT_TRUE(Has(grammar, "yes"));
}

TEST(AnswerGrammar, TextsWithoutQuotesAreReadAsTheyStand) {
  AnswerFormat format = FormatOf("<function= <parameter=");
  format.must_call = true;
  const auto call = [](std::string_view unit) {
    return "<tool_call><function=weather><parameter=city>Oslo</parameter><parameter=days>1"
           "</parameter><parameter=unit>" +
           std::string(unit) + "</parameter></function></tool_call>";
  };
  const auto grammar = Compile(format);
  EXPECT_TRUE(Has(grammar, call("c")));
  EXPECT_TRUE(Has(grammar, call("\nc\n")));
  for (const char* blanks : {" c", "c ", "\n c\n", "\n\nc\n"}) {
    EXPECT_FALSE(Has(grammar, call(blanks))) << blanks;
  }
}

TEST(AnswerGrammar, RefusesWhatXmlCannotSay) {
  constexpr const char* kRefused[] = {
      R"({"$ref":"#/$defs/a","$defs":{"a":{"type":"object"}}})",
      R"({"type":"object","properties":{"a":{}},"anyOf":[{"required":["a"]}]})",
      R"({"type":"object","properties":{"a":{}},"required":["a","b"]})",
      R"({"type":"object","additionalProperties":{"type":"string"}})",
      R"({"type":"object","properties":{"a>b":{}}})",
      R"({"type":"object","properties":{"a":{"type":"string","enum":["</parameter>"]}}})"};
  for (const char* parameters : kRefused) {
    AnswerFormat format = FormatOf("<function= <parameter=");
    format.tools[0].parameters = parameters;
    EXPECT_TRUE(CompileAnswer(format, AnswerPart::kWhole, 0).has_value()) << parameters;
    format.must_call = true;
    EXPECT_FALSE(CompileAnswer(format, AnswerPart::kWhole, 0).has_value()) << parameters;
  }
}

TEST(AnswerGrammar, RefusesWhatAClientReliesOn) {
  AnswerFormat format = FormatOf("<tool_call>");
  format.tools[0].parameters = R"({"type":"object","properties":{"a":{"not":{}}}})";
  EXPECT_TRUE(Has(Compile(format),
                  "<tool_call>{\"name\":\"weather\",\"arguments\":{\"b\":1}}</tool_call>"));
  format.tools[0].is_strict = true;
  const auto refused = CompileAnswer(format, AnswerPart::kWhole, 0);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().field, "tools");
  EXPECT_NE(refused.error().message.find("tool 'weather': parameters: at '#/properties/a/not'"),
            std::string::npos)
      << refused.error().message;
  format.tools[0].parameters = "[1]";
  format.tools[0].is_strict = false;
  EXPECT_FALSE(CompileAnswer(format, AnswerPart::kWhole, 0).has_value());
  format = {};
  format.text = {FormatLanguage::kGbnf, "root ::= \"\"", "grammar"};
  EXPECT_EQ(CompileAnswer(format, AnswerPart::kWhole, 0).error().field, "grammar");
}

}  // namespace
}  // namespace kvasir
