#include "api/openai_writer.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "api/logprobs_json.h"
#include "api/written_answer.h"
#include "server/fake_engine_for_test.h"

namespace kvasir {
namespace {

using nlohmann::json;

Event Piece(uint32_t choice, TokenId id, std::string text) {
  Event event;
  event.choice = choice;
  event.tokens.push_back({id, text});
  event.text = std::move(text);
  return event;
}

Event Finish(Event event, FinishReason reason) {
  event.finish_reason = reason;
  return event;
}

Event Last(Event event, uint32_t prompt_tokens, uint32_t pool, uint32_t completion_tokens) {
  event.last = true;
  event.receipt.prompt_tokens = prompt_tokens;
  event.receipt.reused_pool = pool;
  event.receipt.computed = prompt_tokens - pool;
  event.completion_tokens = completion_tokens;
  return event;
}

// Returns the objects of a stream; the text after the last one must be [DONE].
std::vector<json> EventsOf(const std::string& stream) {
  std::vector<json> events;
  size_t at = 0;
  while (at < stream.size()) {
    const size_t end = stream.find("\n\n", at);
    EXPECT_EQ(stream.substr(at, 6), "data: ");
    const std::string text = stream.substr(at + 6, end - at - 6);
    at = end + 2;
    if (text == "[DONE]") {
      EXPECT_EQ(at, stream.size());
      break;
    }
    events.push_back(json::parse(text));
    EXPECT_TRUE(events.back().contains("choices"));
  }
  return events;
}

// A request's answer in OpenAI's form.
struct Asked {
  AnswerSpec spec;
  OpenAiForm form;
};

Asked Ask(bool chat, bool stream, uint32_t n = 1) {
  Asked asked;
  asked.spec.id_prefix = chat ? "chatcmpl-" : "cmpl-";
  asked.spec.stream = stream;
  asked.spec.n = n;
  asked.spec.model = "m";
  asked.form.chat = chat;
  return asked;
}

WrittenAnswer AnswerTo(const Asked& asked, size_t num_prompts = 1,
                       const Tokenizer* tokenizer = nullptr) {
  return WrittenAnswer(asked.spec, num_prompts, "7", 5, tokenizer,
                       std::make_unique<OpenAiWriter>(asked.form));
}

TEST(OpenAiWriter, JoinsPiecesOfEachChoice) {
  WrittenAnswer answer = AnswerTo(Ask(true, false, 2), 1);
  EXPECT_EQ(answer.Take(0, Piece(1, 1, "b")), "");
  answer.Take(0, Piece(0, 1, "a"));
  answer.Take(0, Finish(Piece(0, 2, "a"), FinishReason::kLength));
  EXPECT_FALSE(answer.done());
  answer.Take(0, Last(Finish(Piece(1, 2, "b"), FinishReason::kStop), 9, 4, 4));
  ASSERT_TRUE(answer.done());
  const json body = json::parse(Joined(answer.Body()));
  EXPECT_EQ(body["id"], "chatcmpl-7");
  EXPECT_EQ(body["created"], 5);
  EXPECT_EQ(body["choices"][0]["message"]["content"], "aa");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(body["choices"][1]["message"]["content"], "bb");
  EXPECT_EQ(body["usage"],
            json::parse(R"({"prompt_tokens":9,"completion_tokens":4,"total_tokens":13,
      "prompt_tokens_details":{"cached_tokens":4}})"));
  EXPECT_EQ(body["kvasir"]["reused"]["pool"], 4);
}

TEST(OpenAiWriter, TheReceiptRidesOnTheLastEvent) {
  WrittenAnswer answer = AnswerTo(Ask(true, true), 1);
  std::string stream = answer.Take(0, Piece(0, 1, "a"));
  stream += answer.Take(0, Finish(Piece(0, 2, "b"), FinishReason::kStop));
  Event last = Last({}, 3, 0, 2);
  stream += answer.Take(0, last);
  const std::vector<json> events = EventsOf(stream);
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[0]["choices"][0]["delta"]["role"], "assistant");
  EXPECT_EQ(events[1]["choices"][0]["delta"]["content"], "a");
  EXPECT_EQ(events[2]["choices"][0]["delta"]["content"], "b");
  EXPECT_EQ(events[3]["choices"][0]["finish_reason"], "stop");
  EXPECT_TRUE(events[3].contains("kvasir"));
  for (size_t i = 0; i < 3; ++i) EXPECT_FALSE(events[i].contains("kvasir"));
}

TEST(OpenAiWriter, TimingsAndFingerprintAreLlamaServers) {
  for (const bool stream : {false, true}) {
    Asked asked = Ask(true, stream);
    asked.spec.fingerprint = "fp_1";
    WrittenAnswer answer = AnswerTo(asked, 1);
    std::string text = answer.Take(0, Piece(0, 1, "a"));
    Event last = Last(Finish(Piece(0, 2, "b"), FinishReason::kStop), 6, 4, 2);
    last.receipt.compute_ms = 4;
    last.receipt.tpot_ms = 2;
    text += answer.Take(0, last);
    const std::vector<json> events =
        stream ? EventsOf(text) : std::vector{json::parse(Joined(answer.Body()))};
    for (const json& event : events) EXPECT_EQ(event["system_fingerprint"], "fp_1");
    EXPECT_EQ(
        events.back()["timings"],
        json::parse(
            R"({"cache_n":4,"prompt_n":2,"prompt_ms":4.0,"prompt_per_token_ms":2.0,"prompt_per_second":500.0,
                  "predicted_n":2,"predicted_ms":2.0,"predicted_per_token_ms":2.0,"predicted_per_second":500.0})"));
    for (size_t i = 0; i + 1 < events.size(); ++i) EXPECT_FALSE(events[i].contains("timings"));
  }
}

// Returns a tokenizer of bytes; 256 is <|bos|>.
std::unique_ptr<Tokenizer> ByteTokenizer() {
  return *Tokenizer::Parse(TinyTokenizerJson(), kTinyTokenizerConfig);
}

TEST(OpenAiWriter, EchoWithLogprobsHasThePromptsTokens) {
  const auto tokenizer = ByteTokenizer();
  for (const bool stream : {false, true}) {
    Asked asked = Ask(false, stream, 2);
    asked.spec.logprobs = 1;
    asked.spec.echo = {"\u00e9b"};
    asked.spec.scored_from = {256};  // the tokenizer has added it: it is not in the echo
    asked.spec.scored_tokens = 8;
    WrittenAnswer answer = AnswerTo(asked, 1, tokenizer.get());
    Event scored;
    scored.scored = {{.id = 0xc3, .logprob = -3, .top = {{0x61, -0.5f}}},
                     {.id = 0xa9, .logprob = -1, .top = {{0xa9, -1}}}};
    std::string text = answer.Take(0, scored);
    EXPECT_EQ(text, "");
    Event first = Piece(0, 'c', "c");
    first.scored = {{.id = 'b', .logprob = -2, .top = {{'b', -2}}}};
    first.tokens[0].logprob = -4;
    text += answer.Take(0, Finish(std::move(first), FinishReason::kLength));
    text += answer.Take(0, Last(Finish(Piece(1, 'd', "d"), FinishReason::kLength), 4, 0, 2));
    std::vector<json> choices;
    if (stream) {
      for (const json& event : EventsOf(text)) {
        for (const json& choice : event["choices"]) {
          if (!choice["logprobs"].is_null()) choices.push_back(choice);
        }
      }
    } else {
      const json body = json::parse(Joined(answer.Body()));
      choices.assign(body["choices"].begin(), body["choices"].end());
    }
    ASSERT_EQ(choices.size(), 2u);
    for (const json& choice : choices) {
      const bool is_first = choice["index"] == 0;
      EXPECT_EQ(choice["text"], is_first ? "\u00e9bc" : "\u00e9bd");
      const json& logprobs = choice["logprobs"];
      EXPECT_EQ(logprobs["tokens"],
                json({"<|bos|>", "bytes:\\xc3", "bytes:\\xa9", "b", is_first ? "c" : "d"}));
      EXPECT_EQ(logprobs["token_logprobs"], json({nullptr, -3, -1, -2, is_first ? -4 : 0}));
      EXPECT_EQ(logprobs["text_offset"], json({0, 0, 0, 1, 2}));
      EXPECT_TRUE(logprobs["top_logprobs"][0].is_null());
      EXPECT_EQ(logprobs["top_logprobs"][1], (json{{"a", -0.5}, {"bytes:\\xc3", -3}}));
    }
  }
}

TEST(OpenAiWriter, UsageComesWithNoChoices) {
  Asked asked = Ask(false, true);
  asked.form.include_usage = true;
  WrittenAnswer answer = AnswerTo(asked, 2);
  std::string stream = answer.Take(1, Last(Finish(Piece(0, 1, "b"), FinishReason::kStop), 5, 5, 1));
  stream += answer.Take(0, Last(Finish(Piece(0, 1, "a"), FinishReason::kStop), 4, 1, 1));
  const std::vector<json> events = EventsOf(stream);
  EXPECT_EQ(events.back()["choices"], json::array());
  EXPECT_EQ(events.back()["usage"]["prompt_tokens"], 9);
  EXPECT_EQ(events.back()["usage"]["prompt_tokens_details"]["cached_tokens"], 6);
  EXPECT_EQ(events.front()["choices"][0]["index"], 1);
  EXPECT_TRUE(events.front()["usage"].is_null());
}

TEST(OpenAiWriter, TheReceiptOfSeveralPromptsIsTheSumOfTheirs) {
  WrittenAnswer answer = AnswerTo(Ask(false, false), 2);
  Receipt one;
  one.reused_pool = 1;
  one.reused_partial = 20;
  one.reused_disk = 300;
  one.reused_remote = 4000;
  one.computed = 50000;
  one.prompt_tokens = one.cached_tokens() + one.computed;
  for (size_t prompt = 0; prompt < 2; ++prompt) {
    Event event = Last(Finish(Piece(0, 1, "a"), FinishReason::kStop), 0, 0, 1);
    event.receipt = one;
    answer.Take(prompt, event);
  }
  ASSERT_TRUE(answer.done());
  const json body = json::parse(Joined(answer.Body()));
  const json& receipt = body["kvasir"];
  EXPECT_EQ(receipt["reused"], json::parse(R"({"pool":2,"partial":40,"disk":600,"remote":8000})"));
  EXPECT_EQ(receipt["computed"], 100000);
  EXPECT_EQ(receipt["prompt_tokens"], 108642);
  EXPECT_EQ(body["usage"]["prompt_tokens_details"]["cached_tokens"], 8642);
}

TEST(OpenAiWriter, AnErrorEndsItAndIsOneEvent) {
  WrittenAnswer answer = AnswerTo(Ask(true, true), 1);
  answer.Take(0, Piece(0, 1, "a"));
  Event event = Finish({}, FinishReason::kError);
  event.error = Error{Code::kExhausted, "no room"};
  EXPECT_EQ(answer.Take(0, event), "");
  EXPECT_TRUE(answer.done());
  ASSERT_TRUE(answer.error());
  const std::vector<json> events = EventsOf(answer.ErrorEvent(*answer.error()));
  EXPECT_EQ(events[0]["error"]["code"], "exhausted");
  EXPECT_EQ(answer.Take(0, Piece(0, 1, "b")), "");
  EXPECT_EQ(ErrorResponse(*answer.error()).status, 429);
}

// The joined pieces equal the dumped JSON tree.
TEST(OpenAiWriter, ALongBodyComesInPieces) {
  auto tokenizer = *Tokenizer::Parse(TinyTokenizerJson(), kTinyTokenizerConfig);
  for (const bool chat : {false, true}) {
    Asked asked = Ask(chat, false, 2);
    asked.spec.logprobs = 3;
    asked.form.return_token_ids = asked.form.return_tokens = asked.spec.keeps_ids = true;
    if (!chat) asked.spec.echo = {"\x01\xc3\xa9"};
    WrittenAnswer answer = AnswerTo(asked, 1, tokenizer.get());
    const uint64_t expected = answer.ExpectedBytes(1200);
    std::vector<GeneratedToken> tokens;
    std::string text;
    for (int i = 0; i < 600; ++i) {
      // Three bytes each except the first, so that a character crosses every border of a slice.
      text += i == 0 ? "a" : "\"\xe2\x82\xac\n";
      GeneratedToken token{i % 258, i == 0 ? "a" : "\"\xe2\x82\xac\n", -0.5f * i, {}};
      for (int other = 0; other < i % 4; ++other) token.top.push_back({other + 7, -1.0f * other});
      tokens.push_back(token);
      for (const uint32_t choice : {0u, 1u}) {
        Event event;
        event.choice = choice;
        event.text = event.tokens.emplace_back(token).text;
        if (i == 599) event.finish_reason = FinishReason::kLength;
        event.last = i == 599 && choice == 1;
        answer.Take(0, event);
      }
    }
    ASSERT_TRUE(answer.done());
    EXPECT_LE(answer.held_bytes(), expected);
    std::string body;
    Parts parts = answer.Body();
    for (std::string part = parts.Next(); !part.empty(); part = parts.Next()) {
      EXPECT_LT(part.size(), 4 * kPartBytes);
      body += part;
    }
    EXPECT_GT(body.size(), 10 * kPartBytes);
    const json choices = json::parse(body)["choices"];
    ASSERT_EQ(choices.size(), 2u);
    const json& choice = choices[1];
    const std::string echo = chat ? "" : asked.spec.echo[0];
    EXPECT_EQ(chat ? choice["message"]["content"] : choice["text"], echo + text);
    EXPECT_EQ(choice["logprobs"], chat ? ChatLogprobs(tokens, tokenizer.get())
                                       : LegacyLogprobs(tokens, 2, tokenizer.get()));
    EXPECT_EQ(choice["token_ids"].size(), 600u);
    EXPECT_EQ(choice["tokens"][599], tokens[599].id);
    EXPECT_EQ(choice["finish_reason"], "length");
  }
}

TEST(OpenAiWriter, LegacyOffsetsCountCharacters) {
  auto tokenizer = *Tokenizer::Parse(TinyTokenizerJson(), kTinyTokenizerConfig);
  Asked asked = Ask(false, false);
  asked.spec.logprobs = 1;
  asked.spec.echo = {"\xc3\xa9!"};
  WrittenAnswer answer = AnswerTo(asked, 1, tokenizer.get());
  Event event;
  event.text =
      "a\xc3\xa9"
      "b";
  event.tokens = {{'a', "a", -1, {{'a', -1}}},
                  {0xc3, "", -2, {{'x', -0.5}}},
                  {0xa9, "\xc3\xa9", -3, {}},
                  {'b', "b", -INFINITY, {}}};
  answer.Take(0, Last(Finish(event, FinishReason::kLength), 2, 0, 4));
  const json choice = json::parse(Joined(answer.Body()))["choices"][0];
  EXPECT_EQ(choice["text"],
            "\xc3\xa9!a\xc3\xa9"
            "b");
  EXPECT_EQ(choice["logprobs"]["text_offset"], json({2, 3, 3, 4}));
  EXPECT_EQ(choice["logprobs"]["tokens"], json({"a", "bytes:\\xc3", "bytes:\\xa9", "b"}));
  EXPECT_EQ(choice["logprobs"]["token_logprobs"], json({-1.0, -2.0, -3.0, -9999.0}));
  EXPECT_EQ(choice["logprobs"]["top_logprobs"][1], json::parse(R"({"x":-0.5,"bytes:\\xc3":-2.0})"));
}

TEST(OpenAiWriter, ATokenBehindHalfACharacterBeginsBehindItsMark) {
  auto tokenizer = *Tokenizer::Parse(TinyTokenizerJson(), kTinyTokenizerConfig);
  for (const bool streams : {false, true}) {
    Asked asked = Ask(false, streams);
    asked.spec.logprobs = 1;
    WrittenAnswer answer = AnswerTo(asked, 1, tokenizer.get());
    Event event;
    event.text = "a\uFFFDbc";
    event.tokens = {
        {'a', "a", -1, {}}, {0xc3, "", -2, {}}, {'b', "\uFFFDb", -3, {}}, {'c', "c", -4, {}}};
    const std::string sent = answer.Take(0, Last(Finish(event, FinishReason::kLength), 2, 0, 4));
    const json whole = streams ? EventsOf(sent)[0] : json::parse(Joined(answer.Body()));
    EXPECT_EQ(whole["choices"][0]["logprobs"]["text_offset"], json({0, 1, 2, 3}));
  }
}

TEST(SpellToken, GivesTheBytesOfHalfACharacter) {
  auto tokenizer = *Tokenizer::Parse(TinyTokenizerJson(), kTinyTokenizerConfig);
  for (int byte = 0; byte < 256; ++byte) {
    const TokenSpelling spelling = SpellToken(tokenizer.get(), byte);
    EXPECT_EQ(spelling.bytes, std::string(1, static_cast<char>(byte)));
    EXPECT_EQ(spelling.text == spelling.bytes, byte < 0x80);
  }
  EXPECT_EQ(SpellToken(tokenizer.get(), 257).text, "<|end|>");
  EXPECT_EQ(SpellToken(nullptr, 257).text, "token_id:257");
}

std::shared_ptr<const AnswerReading> Reading() {
  AnswerReading reading;
  reading.think = FindThinkMarks("</think>");
  reading.calls = &FindCallFormat("<tool_call>");
  reading.tools = {{"clock", {}}, {"weather", {"city"}}};
  return std::make_shared<const AnswerReading>(std::move(reading));
}

constexpr const char* kThoughtAndCalls[] = {"<think>",
                                            "Hm",
                                            ".</think>",
                                            "\n\nOn it.",
                                            "\n<tool",
                                            "_call>{\"name\": \"clock\", ",
                                            "\"arguments\"",
                                            ": {}}</tool",
                                            "_call>",
                                            "<tool_call>{\"name\": \"weather\", \"arguments\": ",
                                            "{\"city\": \"Oslo\"}}",
                                            "</tool_call>"};

// Returns all events of that answer, given to it.
std::string TakeThoughtAndCalls(WrittenAnswer* answer) {
  std::string stream;
  TokenId id = 0;
  for (const char* text : kThoughtAndCalls) stream += answer->Take(0, Piece(0, ++id, text));
  Event end;
  return stream + answer->Take(0, Last(Finish(end, FinishReason::kStop), 9, 4, 12));
}

TEST(OpenAiWriter, HasThoughtsAndCallsApart) {
  Asked asked = Ask(true, false);
  asked.spec.reading = Reading();
  WrittenAnswer answer = AnswerTo(asked, 1);
  EXPECT_EQ(TakeThoughtAndCalls(&answer), "");
  const json body = json::parse(Joined(answer.Body()));
  const json& message = body["choices"][0]["message"];
  EXPECT_EQ(message["reasoning_content"], "Hm.");
  EXPECT_EQ(message["content"], "On it.");
  ASSERT_EQ(message["tool_calls"].size(), 2u);
  const json& second = message["tool_calls"][1];
  EXPECT_EQ(second["type"], "function");
  EXPECT_EQ(second["function"],
            json::parse(R"({"name":"weather","arguments":"{\"city\": \"Oslo\"}"})"));
  EXPECT_NE(second["id"], message["tool_calls"][0]["id"]);
  EXPECT_EQ(body["choices"][0]["finish_reason"], "tool_calls");
  EXPECT_EQ(body["usage"]["completion_tokens_details"]["reasoning_tokens"], 3);
}

TEST(OpenAiWriter, StreamsTheNameOfACallBeforeItsArguments) {
  Asked asked = Ask(true, true);
  asked.spec.reading = Reading();
  asked.form.return_token_ids = true;
  WrittenAnswer answer = AnswerTo(asked, 1);
  std::string reasoning, content;
  json calls = json::array(), ids = json::array(), finish;
  for (const json& event : EventsOf(TakeThoughtAndCalls(&answer))) {
    for (const json& choice : event["choices"]) {
      if (!choice["finish_reason"].is_null()) finish = choice["finish_reason"];
      for (const json& id : choice.value("token_ids", json::array())) ids.push_back(id);
      reasoning += choice["delta"].value("reasoning_content", "");
      content += choice["delta"].value("content", "");
      for (const json& call : choice["delta"].value("tool_calls", json::array())) {
        if (call.contains("id")) {
          EXPECT_EQ(call["index"], calls.size());
          calls.push_back(call);
          continue;
        }
        json& arguments = calls[call["index"].get<size_t>()]["function"]["arguments"];
        arguments = arguments.get<std::string>() + call["function"]["arguments"].get<std::string>();
      }
    }
  }
  EXPECT_EQ(reasoning, "Hm.");
  EXPECT_EQ(content, "On it.");
  EXPECT_EQ(finish, "tool_calls");
  ASSERT_EQ(ids.size(), std::size(kThoughtAndCalls)) << "each token once";
  EXPECT_EQ(ids.back(), std::size(kThoughtAndCalls));
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_EQ(calls[0]["function"], json::parse(R"({"name":"clock","arguments":"{}"})"));
  EXPECT_EQ(calls[1]["function"]["arguments"], R"({"city": "Oslo"})");

  Asked unstreamed = Ask(true, false);
  unstreamed.spec.reading = Reading();
  WrittenAnswer whole = AnswerTo(unstreamed);
  TakeThoughtAndCalls(&whole);
  const json body = json::parse(Joined(whole.Body()));
  EXPECT_EQ(body["choices"][0]["message"]["tool_calls"][1]["id"], calls[1]["id"]);
}

TEST(OpenAiWriter, ACallThatTheLimitCutsIsTextAndLength) {
  Asked asked = Ask(true, false);
  asked.spec.reading = Reading();
  WrittenAnswer answer = AnswerTo(asked, 1);
  answer.Take(0, Piece(0, 1, "<tool_call>{\"name\": \"clo"));
  answer.Take(0, Last(Finish(Event(), FinishReason::kLength), 9, 4, 1));
  const json choice = json::parse(Joined(answer.Body()))["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_EQ(choice["message"]["content"], "<tool_call>{\"name\": \"clo");
  EXPECT_FALSE(choice["message"].contains("tool_calls"));
}

}  // namespace
}  // namespace kvasir
