// /v1/responses: what its items mean, and the form of its answers.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "api/responses_request.h"
#include "api/responses_writer.h"
#include "api/written_answer.h"
#include "base/base64.h"
#include "server/fake_engine_for_test.h"
#include "source_paths.h"

namespace kvasir {
namespace {

using nlohmann::json;

struct Parsed {
  json chat;
  GenerateRequest request;
  std::string error;
};

Parsed ParsedOf(const json& body) {
  static const auto tokenizer = *Tokenizer::Parse(TinyTokenizerJson(), kTinyTokenizerConfig);
  static const auto chat_template = *ChatTemplate::Parse(
      "{% for m in messages %}{{ m.role }} {{ m.content }}{{ m.reasoning_content }}"
      "{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %};{% endfor %}"
      "{{ tools | tojson if tools else '' }}");
  ModelView model;
  model.names = {"m"};
  model.tokenizer = tokenizer.get();
  model.chat_template = chat_template.get();
  model.vocab_size = 258;
  model.ctx_size = 4096;
  auto read = ParseResponsesRequest(body.dump(), model);
  if (!read) return {.error = read.error().text()};
  return {json::parse(read->chat), std::move(read->call.requests.front()), ""};
}

TEST(Responses, ItemsAreTheChatThatTheyMean) {
  const Parsed parsed = ParsedOf(json::parse(R"({"instructions":"Be kind.","input":[
      {"type":"message","role":"developer","content":[{"type":"input_text","text":"D"}]},
      {"role":"user","content":"Hi"},
      {"type":"reasoning","id":"rs_1","summary":[],"content":null,"encrypted_content":"SG0u"},
      {"type":"message","id":"msg_1","role":"assistant","status":"completed",
       "content":[{"type":"output_text","text":"A","annotations":[]}]},
      {"type":"function_call","id":"fc_1","call_id":"c1","name":"f","arguments":"{\"x\": 1}"},
      {"type":"function_call_output","call_id":"c1","output":[{"type":"input_text","text":"3"}]},
      {"role":"user","content":[{"type":"input_text","text":"so"},{"type":"input_text","text":"on"}]}],
    "tools":[{"type":"web_search"},{"type":"function","name":"f","parameters":{"type":"object"},
              "strict":false},{"type":"namespace","name":"n"}],
    "include":["reasoning.encrypted_content","x"],"reasoning":{"effort":"none","summary":"auto"},
    "store":false,"max_output_tokens":7,"stream_options":{"zz":1},"prompt_cache_key":"k","user":"u",
    "tool_choice":{"type":"function","name":"f","zz":1},
    "text":{"verbosity":"low","format":{"type":"text","zz":1}}})"));
  EXPECT_EQ(parsed.error, "");
  EXPECT_EQ(parsed.chat["messages"], json::parse(R"([
      {"role":"system","content":"Be kind."},{"role":"system","content":"D"},
      {"role":"user","content":"Hi"},
      {"role":"assistant","content":"A","reasoning_content":"Hm.","tool_calls":[
        {"id":"c1","type":"function","function":{"name":"f","arguments":"{\"x\": 1}"}}]},
      {"role":"tool","tool_call_id":"c1","content":"3"},{"role":"user","content":"so\non"}])"));
  EXPECT_EQ(parsed.chat["chat_template_kwargs"], json({{"enable_thinking", false}}));
  EXPECT_EQ(parsed.request.max_tokens, 7u);
  EXPECT_EQ(parsed.request.ignored,
            (std::vector<std::string>{"prompt_cache_key", "user", "tools[0]", "tools[2]",
                                      "tool_choice.zz", "text.verbosity", "text.format.zz",
                                      "reasoning.summary", "include[1]", "stream_options.zz",
                                      "reasoning.effort"}));
}

TEST(Responses, WhatIsReadOfAThoughtIsItsContent) {
  const auto ignored = [](const char* thought) {
    const Parsed parsed =
        ParsedOf({{"input", {json::parse(thought), {{"role", "user"}, {"content", "a"}}}}});
    EXPECT_EQ(parsed.error, "");
    return parsed.request.ignored;
  };
  using Paths = std::vector<std::string>;
  EXPECT_EQ(ignored(R"({"type":"reasoning","summary":[],"encrypted_content":"SG0u"})"), Paths{});
  EXPECT_EQ(ignored(R"({"type":"reasoning","content":[{"type":"reasoning_text","text":"Hm."}],
      "summary":[{"type":"summary_text","text":"S"},{"type":"summary_text","text":"T","x":1}]})"),
            (Paths{"input[0].summary[0]", "input[0].summary[1]"}));
  EXPECT_EQ(ignored(R"({"type":"reasoning","content":"Hm.","summary":"S"})"),
            Paths{"input[0].summary"});
  EXPECT_EQ(ignored(R"({"type":"reasoning","summary":[{"type":"summary_text","text":"S"}]})"),
            Paths{"input[0]"})
      << "all of it is left out";
}

TEST(Responses, EmptyInstructionsAreNoMessage) {
  const json turn = json::parse(R"([{"role":"user","content":"Hi"}])");
  EXPECT_EQ(ParsedOf({{"input", "Hi"}, {"instructions", ""}}).chat["messages"], turn);
  EXPECT_EQ(ParsedOf({{"input", "Hi"}, {"instructions", json::array()}}).chat["messages"], turn);
}

TEST(Responses, NameTheFieldThatIsWrong) {
  const std::pair<const char*, const char*> wrong[] = {
      {R"({})", "input: is missing, not a text or a list with at least one item"},
      {R"({"input":[]})", "input: is empty, not a text or a list with at least one item"},
      {R"({"input":"a","previous_response_id":"resp_1"})",
       "previous_response_id: this server stores no responses (--responses 0): send the whole "
       "conversation as input"},
      {R"({"input":"a","truncation":"some"})",
       R"(truncation: is "some", not "auto" or "disabled")"},
      {R"({"input":"a","background":true})",
       "background: is not supported in this version; leave it out"},
      {R"({"input":"a","conversation":"c"})",
       "conversation: is not supported in this version; leave it out"},
      {R"({"input":[{"type":"item_reference","id":"x"}]})",
       "input[0].type: item_reference is not supported in this version: send the item itself"},
      {R"({"input":[{"role":"user","content":[{"type":"input_image"}]}]})",
       "input[0].content[0].type: \"input_image\" is not supported: models read text; send parts "
       "of type input_text"},
      {R"({"input":[{"type":"function_call_output","call_id":"c","output":"3"}]})",
       "input[0].call_id: no function_call before it has this id"},
      {R"({"input":[{"role":"critic","content":"a"}]})",
       R"(input[0].role: is "critic", not "user", "assistant", "system" or "developer")"},
      {R"({"input":"a","tools":[{"type":"function"}]})",
       "tools[0].name: is missing, where a text must be"},
      {R"({"input":"a","text":{"format":{"type":"json_schema","name":"x"}}})",
       "text.format.schema: must be a JSON Schema"},
      {R"({"input":"a","metadata":[1]})", "metadata: is an array, not an object"},
      {R"({"input":[{"role":"user","content":[
          {"type":"input_text","text":"a","prompt_cache_breakpoint":{"ttl":"2h"}}]}]})",
       "input[0].content[0].prompt_cache_breakpoint: is not true, false or an object with a ttl of "
       R"("5m", "30m", "1h", "12h" or "24h")"},
      {R"({"input":"a","prompt_cache_options":{"ttl":"5m"}})",
       R"(prompt_cache_options.ttl: is "5m", not "30m" or "12h")"},
      {R"({"input":"a","prompt_cache_options":{"prewarm":1}})",
       "prompt_cache_options.prewarm: is a number, not a boolean"},
      {R"({"input":"a","prompt_cache_options":[]})",
       "prompt_cache_options: is an empty array, not an object"},
      {R"({"input":"a","prompt_cache_retention":"1h"})",
       R"(prompt_cache_retention: is "1h", not "in_memory" or "24h")"},
      {R"({"input":"a","stream_options":1})", "stream_options: is 1, not an object"},
      {R"({"input":"a","max_output_tokens":-1})",
       "max_output_tokens: -1 is not an integer of at least 0"}};
  for (const auto& [body, says] : wrong) EXPECT_EQ(ParsedOf(json::parse(body)).error, says) << body;
  EXPECT_EQ(ParsedOf({{"input", std::string(5000, 'a')}}).error.substr(0, 7), "input: ");
}

TEST(Responses, MarksAreThoseOfTheChatsMessages) {
  const auto keeps = [](const char* body) {
    const Parsed parsed = ParsedOf(json::parse(body));
    EXPECT_EQ(parsed.error, "");
    EXPECT_TRUE(parsed.request.ignored.empty()) << body;
    std::string said;
    for (const GenerateRequest::Keep& keep : parsed.request.keeps) {
      const auto at = std::ranges::find(parsed.request.message_ends, keep.tokens);
      said += std::to_string(at - parsed.request.message_ends.begin()) + " " +
              std::to_string(keep.ttl_s) + " ";
    }
    return said;
  };
  EXPECT_EQ(keeps(R"({"input":"a"})"), "");
  EXPECT_EQ(keeps(R"({"instructions":"s","input":[{"role":"user","content":[
      {"type":"input_text","text":"a","prompt_cache_breakpoint":{"mode":"explicit","ttl":"12h"}},
      {"type":"input_text","text":"b"}]},{"role":"user","content":"c"}]})"),
            "1 43200 ");
  EXPECT_EQ(keeps(R"({"prompt_cache_options":{"ttl":"12h"},"input":[
      {"role":"user","content":"a","prompt_cache_breakpoint":true},
      {"role":"assistant","content":[
        {"type":"output_text","text":"b","prompt_cache_breakpoint":{"mode":"explicit"}}]},
      {"role":"user","content":[{"type":"input_text","text":"c","prompt_cache_breakpoint":false}]}]})"),
            "0 43200 1 43200 ");
  EXPECT_EQ(keeps(R"({"input":[{"type":"function_call","call_id":"c1","name":"f","arguments":"{}"},
      {"type":"function_call_output","call_id":"c1","output":[
        {"type":"input_text","text":"3","prompt_cache_breakpoint":true}]},
      {"role":"user","content":"c"}]})"),
            "1 1800 ");
  EXPECT_EQ(keeps(R"({"input":[{"role":"user","content":"a"},{"role":"user","content":"b"}],
      "prompt_cache_retention":"24h"})"),
            "1 86400 ");
  const Parsed unknown = ParsedOf(json::parse(R"({"input":[{"role":"user","content":[
      {"type":"input_text","text":"a","prompt_cache_breakpoint":{"ttl":"5m","zz":1}}]}]})"));
  EXPECT_EQ(unknown.request.ignored,
            std::vector<std::string>{"input[0].content[0].prompt_cache_breakpoint.zz"});
}

TEST(Responses, APrewarmComputesThePromptAndAnswersNothing) {
  const Parsed plain = ParsedOf({{"input", "a"}});
  const Parsed parsed = ParsedOf(json::parse(
      R"({"input":"a","max_output_tokens":9,"prompt_cache_options":{"prewarm":true}})"));
  EXPECT_EQ(parsed.request.max_tokens, 0u);
  EXPECT_EQ(parsed.request.prompt, plain.request.prompt);
  EXPECT_TRUE(parsed.request.ignored.empty());
}

Event ItemEvent(std::string text) {
  Event event;
  event.tokens.push_back({1, text});
  event.text = std::move(text);
  return event;
}

Event LastEvent(FinishReason reason) {
  Event event;
  event.finish_reason = reason;
  event.last = true;
  event.receipt.prompt_tokens = 9;
  event.receipt.reused_pool = 4;
  event.receipt.computed = 5;
  event.completion_tokens = 2;
  return event;
}

WrittenAnswer ResponseOf(bool stream, ResponsesForm form,
                         std::shared_ptr<const AnswerReading> reading = nullptr) {
  AnswerSpec spec;
  spec.id_prefix = "resp_";
  spec.model = "m";
  spec.stream = stream;
  spec.reading = std::move(reading);
  return WrittenAnswer(std::move(spec), 1, "7", 5, nullptr,
                       std::make_unique<ResponsesWriter>(form));
}

// Returns the objects of a stream: each has its type as the event's name, and the next number.
std::vector<json> NumberedEvents(const std::string& stream) {
  std::vector<json> events;
  for (size_t at = 0; at < stream.size();) {
    const size_t end = stream.find("\n\n", at), line = stream.find('\n', at);
    events.push_back(json::parse(stream.substr(line + 7, end - line - 7)));
    EXPECT_EQ(stream.substr(at, line - at), "event: " + events.back()["type"].get<std::string>());
    EXPECT_EQ(events.back()["sequence_number"], events.size() - 1);
    at = end + 2;
  }
  return events;
}

TEST(Responses, AStreamHasItsEventsInTheirOrder) {
  WrittenAnswer answer = ResponseOf(true, {});
  std::string stream = answer.PingEvent();
  stream += answer.PingEvent();
  stream += answer.Take(0, ItemEvent("a"));
  stream += answer.Take(0, ItemEvent("b"));
  stream += answer.Take(0, LastEvent(FinishReason::kStop));
  const std::vector<json> events = NumberedEvents(stream);
  std::vector<std::string> types;
  for (const json& event : events) types.push_back(event["type"].get<std::string>().substr(9));
  EXPECT_EQ(types, (std::vector<std::string>{
                       "created", "in_progress", "in_progress", "output_item.added",
                       "content_part.added", "output_text.delta", "output_text.delta",
                       "output_text.done", "content_part.done", "output_item.done", "completed"}));
  const json& response = events.back()["response"];
  EXPECT_EQ(response["id"], "resp_7");
  EXPECT_EQ(response["status"], "completed");
  EXPECT_EQ(response["output"][0]["content"][0]["text"], "ab");
  EXPECT_EQ(response["output"][0], events[9]["item"]);
  EXPECT_EQ(response["usage"], json::parse(R"({"input_tokens":9,
      "input_tokens_details":{"cached_tokens":4,"cache_write_tokens":0},"output_tokens":2,
      "output_tokens_details":{"reasoning_tokens":0},"total_tokens":11})"));
  EXPECT_EQ(response["kvasir"]["reused"]["pool"], 4);
}

TEST(Responses, AnAnswerThatIsCutIsIncomplete) {
  for (const bool is_stream : {false, true}) {
    WrittenAnswer answer = ResponseOf(
        is_stream, {.max_tokens = 1, .tool_choice = R"("required")", .metadata = R"({"a":"b"})"});
    std::string text = answer.Take(0, ItemEvent("a"));
    text += answer.Take(0, LastEvent(FinishReason::kLength));
    const json response =
        is_stream ? NumberedEvents(text).back()["response"] : json::parse(Joined(answer.Body()));
    EXPECT_EQ(response["status"], "incomplete");
    EXPECT_EQ(response["incomplete_details"], json({{"reason", "max_output_tokens"}}));
    EXPECT_EQ(response["tool_choice"], "required");
    EXPECT_EQ(response["metadata"], json({{"a", "b"}}));
    EXPECT_EQ(response["output"][0]["status"], "incomplete");
  }
  for (const bool is_stream : {false, true}) {
    WrittenAnswer answer = ResponseOf(is_stream, {.prewarms = true});
    const std::string text = answer.Take(0, LastEvent(FinishReason::kLength));
    const json response =
        is_stream ? NumberedEvents(text).back()["response"] : json::parse(Joined(answer.Body()));
    EXPECT_EQ(response["status"], "completed");
    EXPECT_EQ(response["output"], json::array());
    EXPECT_EQ(response["store"], false);
  }
  WrittenAnswer failed = ResponseOf(true, {});
  failed.PingEvent();
  Error error{Code::kInvalidArgument, "too long"};
  error.cause = Cause::kContext;
  error.excess = {.prompt_tokens = 9, .ctx_size = 8};
  const std::string event = failed.ErrorEvent(error);
  const json said = json::parse(event.substr(event.find("data: ") + 6));
  EXPECT_EQ(said["type"], "response.failed");
  EXPECT_EQ(said["sequence_number"], 2);
  EXPECT_EQ(said["response"]["error"]["code"], "context_length_exceeded");
}

TEST(Responses, SayHowThePromptDiffersFromAnEarlierOne) {
  const auto said = [](const HeadComparison& compared) {
    AnswerSpec spec;
    spec.model = "m";
    spec.compared = std::make_shared<HeadComparison>(compared);
    WrittenAnswer answer(std::move(spec), 1, "7", 5, nullptr,
                         std::make_unique<ResponsesWriter>(ResponsesForm()));
    answer.Take(0, LastEvent(FinishReason::kStop));
    return json::parse(Joined(answer.Body()))["prompt_cache_diagnostics"];
  };
  EXPECT_EQ(said({.change = HeadChange::kNone, .tokens = 5}), json({{"type", "cache_hit"}}));
  EXPECT_EQ(said({.change = HeadChange::kNone, .tokens = 500}), json({{"type", "unavailable"}}));
  EXPECT_EQ(said({.change = HeadChange::kUnknown}),
            json({{"type", "comparison_response_not_found"}}));
  EXPECT_EQ(said({}), json({{"type", "unavailable"}}));
  EXPECT_EQ(said({.change = HeadChange::kTools, .tokens = 7}), json::parse(R"({"type":"cache_miss",
      "reason":"tools_changed","cache_missed_tokens":3,"comparison_reusable_tokens":7})"));
  EXPECT_EQ(said({.change = HeadChange::kSystem})["reason"], "input_changed");
  EXPECT_EQ(said({.change = HeadChange::kMessages})["reason"], "input_changed");
  EXPECT_EQ(said({.change = HeadChange::kModel})["reason"], "model_changed");
}

// Transcripts of every format of thoughts and calls, cut at random.
TEST(Responses, AStreamIsTheWholeAnswer) {
  std::ifstream file(KVASIR_SOURCE_DIR "/tests/data/answers.json");
  const json cases = json::parse(file);
  std::minstd_rand random(7);
  size_t num_thoughts = 0, num_calls = 0;
  for (const json& one : cases) {
    SCOPED_TRACE(one["name"].get<std::string>());
    const std::string chat_template = one["template"], text = one["answer"];
    auto reading = std::make_shared<AnswerReading>();
    reading->think = FindThinkMarks(chat_template);
    reading->calls = &FindCallFormat(chat_template);
    reading->tools = {{"weather", {"city"}}, {"clock", {}}};
    reading->begins_inside_thought = one.value("inside", false);
    for (int round = 0; round < 4; ++round) {
      const ResponsesForm form{.encodes_thoughts = round % 2 == 1};
      WrittenAnswer whole = ResponseOf(false, form, reading);
      WrittenAnswer streamed = ResponseOf(true, form, reading);
      std::string stream;
      for (size_t at = 0; at < text.size();) {
        size_t end = std::min(text.size(), at + 1 + random() % 20);
        while (end < text.size() && (text[end] & 0xC0) == 0x80) ++end;
        const Event event = ItemEvent(text.substr(at, end - at));
        at = end;
        whole.Take(0, event);
        stream += streamed.Take(0, event);
      }
      whole.Take(0, LastEvent(FinishReason::kStop));
      stream += streamed.Take(0, LastEvent(FinishReason::kStop));
      const std::vector<json> events = NumberedEvents(stream);
      json body = json::parse(Joined(whole.Body())), last = events.back()["response"];
      body.erase("completed_at"), last.erase("completed_at");
      EXPECT_EQ(last, body);
      // What deltas add up to is what the items have.
      std::map<size_t, std::string> joined;
      for (const json& event : events) {
        if (event.contains("delta")) {
          joined[event["output_index"].get<size_t>()] += event["delta"].get<std::string>();
        }
      }
      for (size_t i = 0; i < body["output"].size(); ++i) {
        const json& item = body["output"][i];
        const bool is_call = item["type"] == "function_call";
        const json& whole = is_call ? item["arguments"] : item["content"][0]["text"];
        EXPECT_EQ(joined[i], whole.get<std::string>());
        num_calls += is_call;
        if (item["type"] != "reasoning") continue;
        ++num_thoughts;
        EXPECT_EQ(item.contains("encrypted_content"), form.encodes_thoughts);
        if (form.encodes_thoughts) {
          EXPECT_EQ(DecodeBase64(item["encrypted_content"].get<std::string>()), joined[i]);
        }
      }
    }
  }
  EXPECT_GT(num_calls, 50u);
  EXPECT_GT(num_thoughts, 20u);
}

}  // namespace
}  // namespace kvasir
