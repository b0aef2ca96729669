// Events that are written around a text are those that would be made anew.
#include "api/text_frame.h"

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "api/ollama_writer.h"
#include "api/openai_writer.h"
#include "api/written_answer.h"

namespace kvasir {
namespace {

using nlohmann::json;

constexpr const char* kTexts[] = {"a", "", "\"\\\n\x01", "\xC3\xA9\xF0\x9F\x98\x80", "\xFF"};

TEST(TextFrame, StandsAroundEachText) {
  const TextFrame frame = {R"({"n":1,"text":)", R"(,"z":[]})"};
  for (const std::string text : kTexts) {
    EXPECT_EQ(frame.Around(text), Dump(json{{"n", 1}, {"text", text}, {"z", json::array()}}));
  }
}

// Returns a stream of the texts. `with_timings`: each event is made anew, since it may have
// `timings`, which these events lack since they have no progress.
std::string StreamedTexts(OpenAiForm form, bool with_timings,
                          std::shared_ptr<const AnswerReading> reading) {
  AnswerSpec spec;
  spec.n = 2;
  spec.stream = true;
  spec.model = "m \"1\"";
  spec.fingerprint = "fp_1";
  spec.timings_per_token = with_timings;
  spec.session = SessionPlace{.session = "s", .index = 3, .dropped_messages = {}};
  spec.reading = std::move(reading);
  WrittenAnswer answer(std::move(spec), 1, "7", 5, nullptr, std::make_unique<OpenAiWriter>(form));
  std::string stream;
  for (const uint32_t choice : {0u, 1u}) {
    for (const char* text : kTexts) {
      Event event;
      event.choice = choice;
      event.tokens.push_back({1, text});
      event.text = text;
      stream += answer.Take(0, event);
    }
    Event end;
    end.choice = choice;
    end.finish_reason = FinishReason::kStop;
    end.text = "</think>z";
    end.last = choice == 1;
    stream += answer.Take(0, end);
  }
  return stream;
}

TEST(TextFrame, OpenAisEventsAreThoseThatAreMadeAnew) {
  auto thinks = std::make_shared<AnswerReading>();
  thinks->think = FindThinkMarks("</think>");
  thinks->begins_inside_thought = true;
  const std::shared_ptr<const AnswerReading> readings[] = {nullptr, thinks};
  for (const bool is_chat : {false, true}) {
    for (const auto& reading : readings) {
      if (!is_chat && reading) continue;
      const OpenAiForm form{.chat = is_chat, .include_usage = true};
      const std::string framed = StreamedTexts(form, false, reading);
      const std::string anew = StreamedTexts(form, true, reading);
      std::vector<json> events;
      for (const std::string& stream : {framed, anew}) {
        json& all = events.emplace_back();
        for (size_t at = 0; at < stream.size();) {
          const size_t end = stream.find("\n\n", at);
          EXPECT_EQ(stream.substr(at, 6), "data: ");
          const std::string data = stream.substr(at + 6, end - at - 6);
          all.push_back(data == "[DONE]" ? json(data) : json::parse(data));
          at = end + 2;
        }
      }
      EXPECT_GT(events[0].size(), 8u);
      EXPECT_EQ(events[0], events[1]);
      EXPECT_NE(framed, anew);
    }
  }
}

TEST(TextFrame, OllamasLinesAreThoseThatAreMadeAnew) {
  for (const bool generates : {false, true}) {
    AnswerSpec spec;
    spec.stream = true;
    spec.model = "m";
    WrittenAnswer answer(std::move(spec), 1, "7", 5, nullptr,
                         std::make_unique<OllamaWriter>(OllamaForm{.generates = generates}));
    Event event;
    event.tokens.push_back({1, "a\n"});
    event.text = "a\n";
    json line = json::parse(answer.Take(0, event)), silent = json::parse(answer.PingEvent());
    EXPECT_EQ(line["created_at"].get<std::string>().size(), 30u);
    for (json* one : {&line, &silent}) one->erase("created_at");
    json& text = generates ? silent["response"] : silent["message"]["content"];
    EXPECT_EQ(text, "");
    text = "a\n";
    EXPECT_EQ(line, silent);
  }
}

}  // namespace
}  // namespace kvasir
