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
    "store":false,"max_output_tokens":7,"text":{"verbosity":"low"}})"));
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
            (std::vector<std::string>{"tools[0]", "tools[2]", "text.verbosity", "reasoning.summary",
                                      "include[1]"}));
}

TEST(Responses, NameTheFieldThatIsWrong) {
  const std::pair<const char*, const char*> wrong[] = {
      {R"({})", "input: is missing, not a text or a list with at least one item"},
      {R"({"input":[]})", "input: is empty, not a text or a list with at least one item"},
      {R"({"input":"a","previous_response_id":"resp_1"})",
       "previous_response_id: this server stores no responses (--responses 0): send the whole "
       "conversation as input"},
      {R"({"input":"a","truncation":"some"})", R"(truncation: is neither "auto" nor "disabled")"},
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
       R"(input[0].role: is not "user", "assistant", "system" or "developer")"},
      {R"({"input":"a","tools":[{"type":"function"}]})",
       "tools[0].name: is missing, where the name of a function must be"},
      {R"({"input":"a","text":{"format":{"type":"json_schema","name":"x"}}})",
       "text.format.schema: must be a JSON Schema"},
      {R"({"input":"a","metadata":[1]})", "metadata: must be an object"},
      {R"({"input":"a","max_output_tokens":-1})",
       "max_output_tokens: -1 is not an integer between 0 and 4294967295"}};
  for (const auto& [body, says] : wrong) EXPECT_EQ(ParsedOf(json::parse(body)).error, says) << body;
  EXPECT_EQ(ParsedOf({{"input", std::string(5000, 'a')}}).error.substr(0, 7), "input: ");
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

// The objects of a stream: each has its type as the event's name, and the next number.
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
  WrittenAnswer failed = ResponseOf(true, {});
  failed.PingEvent();
  Error error{Code::kInvalidArgument, "too long"};
  error.excess = {.prompt_tokens = 9, .ctx_size = 8};
  const std::string event = failed.ErrorEvent(error);
  const json said = json::parse(event.substr(event.find("data: ") + 6));
  EXPECT_EQ(said["type"], "response.failed");
  EXPECT_EQ(said["sequence_number"], 2);
  EXPECT_EQ(said["response"]["error"]["code"], "context_length_exceeded");
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
