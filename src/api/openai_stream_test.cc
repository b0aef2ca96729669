// A stream of a chat completion is its whole answer. (The other writers have this test too.)
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>

#include "api/openai_writer.h"
#include "api/transcripts_for_test.h"
#include "api/written_answer.h"

namespace kvasir {
namespace {

using nlohmann::json;

WrittenAnswer CompletionOf(bool stream, std::shared_ptr<const AnswerReading> reading) {
  AnswerSpec spec;
  spec.id_prefix = "chatcmpl-";
  spec.model = "m";
  spec.stream = stream;
  spec.reading = std::move(reading);
  return WrittenAnswer(
      std::move(spec), 1, "7", 5, nullptr,
      std::make_unique<OpenAiWriter>(OpenAiForm{.chat = true, .include_usage = true}));
}

// Returns the message and the reason that a client makes of the deltas of a stream, and its usage.
json CompletionOfStream(const std::string& stream) {
  json calls = json::array(), reason, usage;
  std::string content, reasoning;
  size_t at = 0;
  for (size_t end = 0; at < stream.size(); at = end + 2) {
    end = stream.find("\n\n", at);
    const std::string data = stream.substr(at + 6, end - at - 6);
    if (data == "[DONE]") break;
    const json event = json::parse(data);
    if (const json some = event.value("usage", json()); !some.is_null()) usage = some;
    for (const json& choice : event["choices"]) {
      if (!choice["finish_reason"].is_null()) reason = choice["finish_reason"];
      const json& delta = choice["delta"];
      if (delta.contains("content") && delta["content"].is_string()) {
        content += delta["content"].get<std::string>();
      }
      reasoning += delta.value("reasoning_content", "");
      for (json call : delta.value("tool_calls", json::array())) {
        const size_t index = call["index"];
        call.erase("index");
        if (index == calls.size()) {
          calls.push_back(std::move(call));
          continue;
        }
        json& arguments = calls.at(index)["function"]["arguments"];
        arguments = arguments.get<std::string>() + call["function"]["arguments"].get<std::string>();
      }
    }
  }
  EXPECT_EQ(stream.substr(at), "data: [DONE]\n\n");
  return {{"content", content},
          {"reasoning", reasoning},
          {"calls", calls},
          {"reason", reason},
          {"usage", usage}};
}

// Transcripts of every format of thoughts and calls, cut at random; the limit ends some of them.
TEST(OpenAiWriter, AStreamIsTheWholeAnswer) {
  std::minstd_rand random(7);
  size_t with_calls = 0, with_thoughts = 0;
  for (const Transcript& one : AllTranscripts()) {
    SCOPED_TRACE(one.name);
    for (int round = 0; round < 10; ++round) {
      one.reading->marked_calls_are_certain = round % 2 == 1 && !one.is_broken;
      const bool is_cut = round >= 7;
      const size_t size = is_cut ? random() % (one.text.size() + 1) : one.text.size();
      WrittenAnswer whole = CompletionOf(false, one.reading);
      WrittenAnswer streamed = CompletionOf(true, one.reading);
      std::string stream;
      Event end;
      for (const std::string& piece :
           CutAtRandom(one.text.substr(0, size), round < 3 ? 200 : 9, &random)) {
        Event event;
        event.tokens.push_back({1, piece});
        event.text = piece;
        whole.Take(0, event);
        stream += streamed.Take(0, event);
        ++end.completion_tokens;
      }
      end.finish_reason = is_cut ? FinishReason::kLength : FinishReason::kStop;
      end.last = true;
      end.receipt.prompt_tokens = end.receipt.computed = 9;
      whole.Take(0, end);
      stream += streamed.Take(0, end);
      const json body = json::parse(whole.Body().Rest());
      const json& choice = body["choices"][0];
      const json& message = choice["message"];
      const json wanted = {{"content", message["content"].is_null() ? "" : message["content"]},
                           {"reasoning", message.value("reasoning_content", "")},
                           {"calls", message.value("tool_calls", json::array())},
                           {"reason", choice["finish_reason"]},
                           {"usage", body["usage"]}};
      EXPECT_EQ(CompletionOfStream(stream), wanted);
      with_calls += message.contains("tool_calls");
      with_thoughts += message.contains("reasoning_content");
    }
  }
  EXPECT_GT(with_calls, 100u);
  EXPECT_GT(with_thoughts, 50u);
}

}  // namespace
}  // namespace kvasir
