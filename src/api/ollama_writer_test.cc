#include "api/ollama_writer.h"

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>

#include "api/transcripts_for_test.h"
#include "api/written_answer.h"
#include "base/own_clock.h"

namespace kvasir {
namespace {

using nlohmann::json;

Event OllamaPiece(TokenId id, std::string text) {
  Event event;
  event.tokens.push_back({id, text});
  event.text = std::move(text);
  return event;
}

Event OllamaEnd(FinishReason reason, uint32_t tokens) {
  Event event;
  event.finish_reason = reason;
  event.last = true;
  event.receipt.prompt_tokens = 9;
  event.receipt.reused_pool = 4;
  event.receipt.computed = 5;
  event.receipt.ttft_ms = 12.5;
  event.receipt.compute_ms = 8.25;
  event.receipt.tpot_ms = 3;
  event.completion_tokens = tokens;
  return event;
}

WrittenAnswer OllamaAnswer(bool stream, OllamaForm form,
                           std::shared_ptr<const AnswerReading> reading) {
  AnswerSpec spec;
  spec.model = "m";
  spec.stream = stream;
  spec.reading = std::move(reading);
  return WrittenAnswer(std::move(spec), 1, "7", 5, nullptr,
                       std::make_unique<OllamaWriter>(std::move(form)));
}

// Returns the answer that a client makes of a stream: texts and thoughts of all lines are joined,
// calls stand in one list, and the last line has the rest.
json OllamaAnswerOf(const std::string& stream, bool generates) {
  const char* const text_key = generates ? "response" : "content";
  json answer, calls = json::array();
  std::string content, thinking;
  for (size_t at = 0; at < stream.size();) {
    const size_t end = stream.find('\n', at);
    answer = json::parse(stream.substr(at, end - at));
    EXPECT_NE(end, stream.npos) << "each object is a line";
    at = end == stream.npos ? stream.size() : end + 1;
    EXPECT_EQ(answer["done"], at == stream.size());
    const json& said = generates ? answer : answer["message"];
    content += said[text_key].get<std::string>();
    thinking += said.value("thinking", "");
    for (const json& call : said.value("tool_calls", json::array())) calls.push_back(call);
  }
  json& said = generates ? answer : answer["message"];
  said[text_key] = content;
  if (!thinking.empty()) said["thinking"] = thinking;
  if (!calls.empty()) said["tool_calls"] = calls;
  return answer;
}

// Transcripts are cut at random, and pings come between the pieces. All else than texts, thoughts
// and calls is equal too: figures, ids of the context, and the receipt.
TEST(OllamaWriter, AStreamIsTheWholeAnswer) {
  const OwnClock clock;
  std::minstd_rand random(7);
  size_t with_calls = 0, with_thoughts = 0, with_texts = 0;
  for (const Transcript& one : AllTranscripts()) {
    SCOPED_TRACE(one.name);
    for (int round = 0; round < 12; ++round) {
      one.reading->marked_calls_are_certain = round % 2 == 1 && !one.is_broken;
      const bool generates = round % 4 > 1;
      const auto reading = round < 10 ? one.reading : nullptr;
      // In the last rounds the limit ends the answer somewhere.
      const bool is_cut = round >= 7;
      const size_t size = is_cut ? random() % (one.text.size() + 1) : one.text.size();
      OllamaForm form{.generates = generates};
      if (generates) form.context = {1, 2, 3};
      WrittenAnswer whole = OllamaAnswer(false, form, reading);
      WrittenAnswer streamed = OllamaAnswer(true, form, reading);
      std::string stream;
      uint32_t tokens = 0;
      for (const std::string& piece :
           CutAtRandom(one.text.substr(0, size), round < 3 ? 200 : 9, &random)) {
        const Event event = OllamaPiece(static_cast<TokenId>(tokens++), piece);
        EXPECT_EQ(whole.Take(0, event), "");
        stream += streamed.Take(0, event);
        if (random() % 8 == 0) stream += streamed.PingEvent();
      }
      const Event end = OllamaEnd(is_cut ? FinishReason::kLength : FinishReason::kStop, tokens);
      whole.Take(0, end);
      stream += streamed.Take(0, end);
      const json body = json::parse(whole.Body().Rest());
      EXPECT_EQ(OllamaAnswerOf(stream, generates), body);
      EXPECT_EQ(body["eval_count"], tokens);
      EXPECT_EQ(body["done_reason"], is_cut ? "length" : "stop");
      const json& said = generates ? body : body["message"];
      with_calls += said.contains("tool_calls");
      with_thoughts += said.contains("thinking");
      with_texts += !said[generates ? "response" : "content"].get<std::string>().empty();
    }
  }
  EXPECT_GT(with_calls, 100u);
  EXPECT_GT(with_thoughts, 50u);
  EXPECT_GT(with_texts, 100u);
}

}  // namespace
}  // namespace kvasir
