#include "api/anthropic_writer.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "api/written_answer.h"
#include "server/fake_engine_for_test.h"
#include "source_paths.h"

namespace kvasir {
namespace {

using nlohmann::json;

Event TextEvent(std::string text) {
  Event event;
  event.tokens.push_back({1, text});
  event.text = std::move(text);
  event.progress = Progress{.total = 100, .processed = 100, .cached = 30};
  return event;
}

Event EndEvent(FinishReason reason, uint32_t tokens) {
  Event event;
  event.finish_reason = reason;
  event.last = true;
  event.receipt.prompt_tokens = 100;
  event.receipt.reused_pool = 30;
  event.receipt.computed = 70;
  event.completion_tokens = tokens;
  return event;
}

WrittenAnswer MessageOf(bool stream, AnthropicForm form,
                        std::shared_ptr<const AnswerReading> reading = nullptr) {
  AnswerSpec spec;
  spec.id_prefix = "msg_";
  spec.call_prefix = "toolu_";
  spec.model = "m";
  spec.stream = stream;
  spec.reading = std::move(reading);
  return WrittenAnswer(std::move(spec), 1, "7", 5, nullptr,
                       std::make_unique<AnthropicWriter>(form));
}

// Returns the objects of a stream, each with its type as the event's name.
std::vector<json> NamedEvents(const std::string& stream) {
  std::vector<json> events;
  for (size_t at = 0; at < stream.size();) {
    const size_t end = stream.find("\n\n", at), line = stream.find('\n', at);
    events.push_back(json::parse(stream.substr(line + 7, end - line - 7)));
    EXPECT_EQ(stream.substr(at, line - at), "event: " + events.back()["type"].get<std::string>());
    at = end + 2;
  }
  return events;
}

// Returns the message that a client makes of a stream. Checks the order of the events.
json MessageOfStream(const std::vector<json>& events) {
  json message;
  std::string inputs;
  bool is_open = false;
  for (const json& event : events) {
    const std::string type = event["type"];
    if (type == "message_start") {
      EXPECT_TRUE(message.is_null());
      message = event["message"];
    } else if (type == "content_block_start") {
      EXPECT_FALSE(std::exchange(is_open, true));
      EXPECT_EQ(event["index"], message["content"].size());
      message["content"].push_back(event["content_block"]);
      inputs.clear();
    } else if (type == "content_block_delta") {
      EXPECT_TRUE(is_open);
      json& block = message["content"].at(event["index"].get<size_t>());
      for (const auto& [key, value] : event["delta"].items()) {
        if (key == "partial_json") inputs += value;
        if (key == "type" || key == "partial_json") continue;
        block[key] = block[key].get<std::string>() + value.get<std::string>();
      }
    } else if (type == "content_block_stop") {
      EXPECT_TRUE(std::exchange(is_open, false));
      json& block = message["content"].at(event["index"].get<size_t>());
      const json input = json::parse(inputs, nullptr, false);
      if (block["type"] == "tool_use" && input.is_object()) block["input"] = input;
    } else if (type == "message_delta") {
      EXPECT_FALSE(is_open);
      message.update(event["delta"]);
      message["usage"] = event["usage"];
    } else if (type == "message_stop") {
      message["kvasir"] = event["kvasir"];
    }
  }
  return message;
}

TEST(AnthropicWriter, AStreamHasItsEventsInTheirOrder) {
  WrittenAnswer answer = MessageOf(true, {.max_tokens = 9, .marked_tokens = 50});
  EXPECT_EQ(answer.PingEvent(), "event: ping\ndata: {\"type\":\"ping\"}\n\n");
  std::string stream = answer.Take(0, TextEvent("a"));
  stream += answer.Take(0, TextEvent("b"));
  stream += answer.Take(0, EndEvent(FinishReason::kStop, 2));
  const std::vector<json> events = NamedEvents(stream);
  std::vector<std::string> types;
  for (const json& event : events) types.push_back(event["type"]);
  EXPECT_EQ(types,
            (std::vector<std::string>{"message_start", "content_block_start", "content_block_delta",
                                      "content_block_delta", "content_block_stop", "message_delta",
                                      "message_stop"}));
  EXPECT_EQ(events[0]["message"], json::parse(R"({"id":"msg_7","type":"message",
      "role":"assistant","model":"m","content":[],"stop_reason":null,"stop_sequence":null,
      "usage":{"input_tokens":50,"cache_read_input_tokens":30,"cache_creation_input_tokens":20,
      "cache_creation":{"ephemeral_5m_input_tokens":20,"ephemeral_1h_input_tokens":0},
      "output_tokens":1}})"));
  EXPECT_EQ(events[5]["delta"], json({{"stop_reason", "end_turn"}, {"stop_sequence", nullptr}}));
  EXPECT_EQ(events[5]["usage"]["output_tokens"], 2);
  EXPECT_EQ(events[6]["kvasir"]["reused"]["pool"], 30);
}

TEST(AnthropicWriter, SaysWhyTheAnswerEnds) {
  const auto reason = [](Event end, uint32_t max_tokens) {
    WrittenAnswer answer = MessageOf(false, {.max_tokens = max_tokens});
    answer.Take(0, TextEvent("a"));
    answer.Take(0, end);
    const json body = json::parse(Joined(answer.Body()));
    return body["stop_reason"].get<std::string>() + " " + body["stop_sequence"].dump();
  };
  EXPECT_EQ(reason(EndEvent(FinishReason::kStop, 1), 9), "end_turn null");
  EXPECT_EQ(reason(EndEvent(FinishReason::kLength, 1), 1), "max_tokens null");
  EXPECT_EQ(reason(EndEvent(FinishReason::kLength, 1), 9), "model_context_window_exceeded null");
  Event stop = EndEvent(FinishReason::kStop, 1);
  stop.stop_match = "X";
  EXPECT_EQ(reason(stop, 9), "stop_sequence \"X\"");
  Event late = EndEvent(FinishReason::kLength, 1);
  late.stop_match = "deadline";
  EXPECT_EQ(reason(late, 9), "max_tokens null");
}

TEST(AnthropicWriter, SaysHowThePromptDiffersFromAnEarlierOne) {
  const auto said = [](const HeadComparison& compared) {
    json both[2];
    for (const bool is_stream : {false, true}) {
      AnswerSpec spec;
      spec.model = "m";
      spec.stream = is_stream;
      spec.compared = std::make_shared<HeadComparison>(compared);
      WrittenAnswer answer(std::move(spec), 1, "7", 5, nullptr,
                           std::make_unique<AnthropicWriter>(AnthropicForm()));
      std::string stream = answer.Take(0, TextEvent("a"));
      stream += answer.Take(0, EndEvent(FinishReason::kStop, 1));
      both[is_stream] = is_stream ? NamedEvents(stream)[0]["message"]["diagnostics"]
                                  : json::parse(Joined(answer.Body()))["diagnostics"];
    }
    EXPECT_EQ(both[0], both[1]);
    return both[0].is_null() ? json() : both[0]["cache_miss_reason"];
  };
  EXPECT_EQ(said({.change = HeadChange::kNone, .tokens = 90, .is_whole = true}), json());
  EXPECT_EQ(said({.change = HeadChange::kNone, .tokens = 99}), json({{"type", "unavailable"}}));
  EXPECT_EQ(said({}), json({{"type", "unavailable"}}));
  EXPECT_EQ(said({.change = HeadChange::kUnknown}), json({{"type", "previous_message_not_found"}}));
  EXPECT_EQ(said({.change = HeadChange::kSystem, .tokens = 80}),
            json({{"type", "system_changed"}, {"cache_missed_input_tokens", 50}}));
  EXPECT_EQ(said({.change = HeadChange::kTools})["type"], "tools_changed");
  EXPECT_EQ(said({.change = HeadChange::kMessages})["type"], "messages_changed");
  EXPECT_EQ(said({.change = HeadChange::kModel})["type"], "model_changed");
}

TEST(AnthropicWriter, FiguresOfThePromptSumUp) {
  for (const uint32_t marked : {0u, 10u, 30u, 64u, 100u}) {
    for (const bool hour : {false, true}) {
      WrittenAnswer answer = MessageOf(false, {9, marked, hour});
      answer.Take(0, EndEvent(FinishReason::kStop, 1));
      const json usage = json::parse(Joined(answer.Body()))["usage"];
      const int created = usage["cache_creation_input_tokens"];
      EXPECT_EQ(created, std::max<int>(0, static_cast<int>(marked) - 30));
      EXPECT_EQ(usage["cache_read_input_tokens"], 30);
      EXPECT_EQ(usage["input_tokens"], 70 - created);
      EXPECT_EQ(usage["cache_creation"]["ephemeral_1h_input_tokens"], hour ? created : 0);
    }
  }
}

// Transcripts of every format of thoughts and calls, cut at random.
TEST(AnthropicWriter, AStreamIsTheWholeAnswer) {
  std::ifstream file(KVASIR_SOURCE_DIR "/tests/data/answers.json");
  const json cases = json::parse(file);
  std::minstd_rand random(7);
  size_t with_calls = 0, with_thoughts = 0;
  for (const json& one : cases) {
    SCOPED_TRACE(one["name"].get<std::string>());
    const std::string chat_template = one["template"], text = one["answer"];
    auto reading = std::make_shared<AnswerReading>();
    reading->think = FindThinkMarks(chat_template);
    reading->calls = &FindCallFormat(chat_template);
    reading->tools = {{"weather", {"city"}}, {"clock", {}}};
    reading->begins_inside_thought = one.value("inside", false);
    for (int round = 0; round < 8; ++round) {
      reading->marked_calls_are_certain = round % 2 == 1 && !one.value("broken", false);
      WrittenAnswer whole = MessageOf(false, {.max_tokens = 1}, reading);
      WrittenAnswer streamed = MessageOf(true, {.max_tokens = 1}, reading);
      std::string stream;
      uint32_t tokens = 0;
      for (size_t at = 0; at < text.size();) {
        size_t end = std::min(text.size(), at + 1 + random() % (round < 4 ? 200 : 9));
        while (end < text.size() && (text[end] & 0xC0) == 0x80) ++end;
        const Event event = TextEvent(text.substr(at, end - at));
        at = end, ++tokens;
        whole.Take(0, event);
        stream += streamed.Take(0, event);
      }
      const Event end = EndEvent(FinishReason::kStop, tokens);
      whole.Take(0, end);
      stream += streamed.Take(0, end);
      const json body = json::parse(Joined(whole.Body()));
      EXPECT_EQ(MessageOfStream(NamedEvents(stream)), body);
      for (const json& block : body["content"]) {
        with_thoughts += block["type"] == "thinking";
        with_calls += block["type"] == "tool_use";
      }
    }
  }
  EXPECT_GT(with_calls, 100u);
  EXPECT_GT(with_thoughts, 50u);
}

TEST(AnthropicWriter, ErrorsHaveTheFormOfTheProtocol) {
  const auto shaped = [](const Error& error) {
    return AnthropicError(json::parse(ErrorObject(error)), HttpStatus(error)).dump();
  };
  EXPECT_EQ(shaped({Code::kInvalidArgument, "is no", "messages[3].role"}),
            R"({"message":"messages[3].role: is no","type":"invalid_request_error"})");
  EXPECT_EQ(shaped({Code::kExhausted, "full"}), R"({"message":"full","type":"rate_limit_error"})");
  EXPECT_EQ(shaped({Code::kUnavailable, "later"}),
            R"({"message":"later","type":"overloaded_error"})");
  EXPECT_EQ(shaped({Code::kUnsupported, "none", "thread"}),
            R"({"details":{"error_code":"thread_unsupported_request","unsupported":[]},)"
            R"("message":"thread: none","type":"invalid_request_error"})");
  Error error{Code::kInvalidArgument, "too long", "messages"};
  error.excess = {.prompt_tokens = 43939, .ctx_size = 32768};
  EXPECT_EQ(shaped(error), R"({"message":"prompt is too long: 43939 tokens > 32768 maximum",)"
                           R"("type":"invalid_request_error"})");
  error.excess->is_least = true;
  EXPECT_EQ(shaped(error),
            R"({"message":"prompt is too long: more than 43938 tokens > 32768 maximum",)"
            R"("type":"invalid_request_error"})");
  EXPECT_EQ(MessageOf(true, {}).ErrorEvent({Code::kUnavailable, "later"}),
            "event: error\ndata: {\"error\":{\"message\":\"later\",\"type\":\"overloaded_error\"},"
            "\"type\":\"error\"}\n\n");
}

}  // namespace
}  // namespace kvasir
