#include "chat/answer_parser.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/json_tree.h"
#include "source_paths.h"

namespace kvasir {
namespace {

using nlohmann::json;
using EventKind = AnswerEvent::Kind;

struct ReadAnswer {
  std::string content, reasoning;
  std::vector<std::string> order;  // of the kinds, each once where several are joined
  json calls = json::array();
  bool operator==(const ReadAnswer&) const = default;
};

void Add(const std::vector<AnswerEvent>& events, ReadAnswer* read) {
  for (const AnswerEvent& event : events) {
    const std::string kind = std::to_string(static_cast<int>(event.kind));
    if (read->order.empty() || read->order.back() != kind) read->order.push_back(kind);
    if (event.kind == EventKind::kContent) read->content += event.text;
    if (event.kind == EventKind::kReasoning) read->reasoning += event.text;
    if (event.kind == EventKind::kCallBegin) {
      read->calls.push_back({{"name", event.text}, {"arguments", ""}});
    }
    if (event.kind == EventKind::kArguments) {
      auto& arguments = read->calls.back()["arguments"].get_ref<std::string&>();
      arguments += event.text;
    }
  }
}

// Reads an answer in pieces that end at the cuts.
ReadAnswer ReadIn(std::shared_ptr<const AnswerReading> reading, std::string_view text,
                  const std::vector<size_t>& cuts) {
  AnswerParser parser(std::move(reading));
  ReadAnswer read;
  size_t done = 0;
  for (const size_t cut : cuts) {
    std::vector<AnswerEvent> events;
    parser.Append(text.substr(done, cut - done), &events);
    Add(events, &read);
    done = cut;
  }
  std::vector<AnswerEvent> events;
  parser.Append(text.substr(done), &events);
  parser.Finish(&events);
  Add(events, &read);
  return read;
}

std::shared_ptr<const AnswerReading> ReadingOf(const json& one) {
  const std::string chat_template = one["template"];
  AnswerReading reading;
  reading.think = FindThinkMarks(chat_template);
  reading.calls = &FindCallFormat(chat_template);
  reading.tools = {{"weather", {"city"}}, {"clock", {}}};
  reading.begins_inside_thought = one.value("inside", false);
  if (!one.value("thoughts_apart", true)) reading.thoughts = ThoughtForm::kInContent;
  if (one.value("thoughts_twice", false)) reading.thoughts = ThoughtForm::kBoth;
  reading.parallel = one.value("parallel", true);
  return std::make_shared<const AnswerReading>(std::move(reading));
}

TEST(AnswerParser, GivesAThoughtTwiceWhereItIsAskedTo) {
  const std::string answer = "<think>\nHm.\n</think>\n\nOn it.";
  const auto reading = ReadingOf({{"template", "</think>"}, {"thoughts_twice", true}});
  for (size_t cut = 0; cut <= answer.size(); ++cut) {
    const ReadAnswer read = ReadIn(reading, answer, {cut});
    EXPECT_EQ(read.content, answer) << cut;
    EXPECT_EQ(read.reasoning, "Hm.") << cut;
  }
}

TEST(AnswerParser, ReadsTranscriptsOfEveryFormatWhereverTheyAreCut) {
  std::ifstream file(KVASIR_SOURCE_DIR "/tests/data/answers.json");
  const json cases = json::parse(file);
  ASSERT_GT(cases.size(), 40u);
  size_t num_certain = 0;
  for (const json& one : cases) {
    SCOPED_TRACE(one["name"].get<std::string>());
    const auto reading = ReadingOf(one);
    const std::string answer = one["answer"];
    const ReadAnswer whole = ReadIn(reading, answer, {});
    EXPECT_EQ(json(whole.content), one["content"]);
    EXPECT_EQ(json(whole.reasoning), one["reasoning"]);
    EXPECT_EQ(whole.calls, one["calls"]);
    for (const json& call : whole.calls) {
      EXPECT_TRUE(json::parse(call["arguments"].get<std::string>()).is_object());
    }
    std::vector<size_t> every;
    for (size_t cut = 1; cut < answer.size(); ++cut) {
      EXPECT_EQ(ReadIn(reading, answer, {cut}), whole) << "cut at " << cut;
      every.push_back(cut);
    }
    EXPECT_EQ(ReadIn(reading, answer, every), whole) << "byte by byte";
    // Where the answer follows the grammar of calls, they come in pieces, and are the same.
    if (whole.calls.empty() || one.value("broken", false)) continue;
    auto certain = std::make_shared<AnswerReading>(*reading);
    certain->marked_calls_are_certain = certain->bare_calls_are_certain = true;
    EXPECT_EQ(ReadIn(certain, answer, {}), whole) << "certain";
    EXPECT_EQ(ReadIn(certain, answer, every), whole) << "certain, byte by byte";
    ++num_certain;
  }
  EXPECT_GT(num_certain, 20u);
}

TEST(AnswerParser, ACertainCallComesInPieces) {
  auto reading = std::make_shared<AnswerReading>(
      *ReadingOf({{"template", "<tool_call>"}, {"parallel", false}}));
  reading->marked_calls_are_certain = true;
  const std::string call = R"({"name": "weather", "arguments": {"city": "Oslo", "a": [{}]} })";
  const std::string text = "<tool_call>\n" + call + "\n</tool_call>";
  const std::string wanted = R"({"city": "Oslo", "a": [{}]})";
  // Cut anywhere, also by max_tokens: what has come of the arguments is given.
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    AnswerParser parser(reading);
    std::vector<AnswerEvent> events;
    parser.Append(std::string_view(text).substr(0, cut), &events);
    ReadAnswer before;
    Add(events, &before);
    const size_t begun = text.find(wanted) + 1;
    ASSERT_EQ(before.calls.size(), cut >= begun ? 1u : 0u) << cut;
    if (cut >= begun) {
      const std::string given = before.calls[0]["arguments"];
      EXPECT_EQ(given, wanted.substr(0, cut - begun + 1)) << "nothing waits";
    }
    events.clear();
    parser.Finish(&events);
    Add(events, &before);
    EXPECT_EQ(before.content.empty(), cut >= begun || cut == 0) << cut;
  }
  // A second one is dropped, whole or cut.
  for (const std::string& more : {text, text.substr(0, text.size() - 20)}) {
    EXPECT_EQ(ReadIn(reading, text + more, {}).calls.size(), 1u);
    EXPECT_EQ(ReadIn(reading, text + more, {}).content, "");
  }
}

TEST(AnswerParser, NeverGivesHalfAMarkBeforeTheEnd) {
  const auto reading = ReadingOf({{"template", "<tool_call> </think>"}});
  AnswerParser parser(reading);
  std::vector<AnswerEvent> events;
  parser.Append("Hello <tool_cal", &events);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].text, "Hello");
  parser.Append("endar", &events);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].text, "Hello <tool_calendar");
}

TEST(AnswerParser, ACallThatIsTooLongIsContent) {
  const auto reading = ReadingOf({{"template", "<tool_call>"}});
  const std::string text =
      "<tool_call>{\"name\": \"" + std::string(AnswerParser::kMaxCallBytes, 'x');
  AnswerParser parser(reading);
  std::vector<AnswerEvent> events;
  parser.Append(text, &events);
  EXPECT_LT(parser.held_bytes(), 3 * AnswerParser::kMaxCallBytes);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].text, text);
}

TEST(AnswerParser, WhiteSpaceWaitsOnlySoLong) {
  const auto reading = ReadingOf({{"template", "<tool_call>"}});
  const std::string text = "a" + std::string(100'000, '\n');
  AnswerParser parser(reading);
  std::vector<AnswerEvent> events;
  parser.Append(text, &events);
  EXPECT_LT(parser.held_bytes(), 10'000u);
  parser.Finish(&events);
  EXPECT_EQ(events[0].text, text);
}

TEST(AnswerFormat, APromptEndsInsideAThoughtThatItOpens) {
  const ThinkMarks marks = *FindThinkMarks("</think>");
  EXPECT_EQ(ThoughtAtEnd(marks, "<|im_start|>assistant\n<think>\n"), PromptThought::kInside);
  EXPECT_EQ(ThoughtAtEnd(marks, "<|im_start|>assistant\n<think>\n\n</think>\n\n"),
            PromptThought::kClosed);
  EXPECT_EQ(ThoughtAtEnd(marks, "<|im_start|>assistant\n"), PromptThought::kNone);
  EXPECT_EQ(FindThinkMarks("{{ messages }}"), nullptr);
}

TEST(JsonScanner, AcceptsWhatTheJsonParserAccepts) {
  uint64_t random = 1;
  const std::string_view bytes = "{}[]:,\"\\u0a1-+.eE truefalsn\n";
  size_t valid = 0;
  for (int round = 0; round < 200'000; ++round) {
    std::string text(1, round % 2 ? '{' : '[');
    for (int i = 0; i < 12; ++i) {
      random = random * 6364136223846793005u + 1442695040888963407u;
      const auto draw = static_cast<size_t>(random >> 33);
      // Half of the time something that keeps the text valid.
      constexpr std::string_view kPieces[] = {"\"a\":", "1", "]", "}", ",", "[", "{", "null"};
      if (draw % 2) {
        text += kPieces[draw / 2 % 8];
      } else {
        text += bytes[draw / 2 % bytes.size()];
      }
    }
    JsonScanner scanner;
    size_t at = 0;
    auto result = JsonScanner::Result::kMore;
    while (at < text.size() && result == JsonScanner::Result::kMore) {
      result = scanner.Append(text[at++]);
    }
    const bool end = result == JsonScanner::Result::kEnd;
    JsonTree tree;
    const std::string_view parsed = std::string_view(text).substr(0, end ? at : text.size());
    EXPECT_EQ(tree.Parse(parsed).has_value(), end) << parsed;
    valid += end;
  }
  EXPECT_GT(valid, 1000u);
}

}  // namespace
}  // namespace kvasir
