#include "api/anthropic_messages.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "chat/chat_template.h"

namespace kvasir {
namespace {

using nlohmann::json;

// Refuses system messages, and two of a role in a row.
constexpr std::string_view kAlternates =
    "{% for m in messages %}"
    "{% if m.role == 'system' or (loop.index0 > 0 and m.role == messages[loop.index0 - 1].role) %}"
    "{{ raise_exception('no') }}{% endif %}"
    "{{ m.role }} {{ m.content }};{% endfor %}";
constexpr std::string_view kTakesAll =
    "{% for m in messages %}{{ m.role }} {{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | tojson }}"
    "{% endfor %};{% endfor %}";
// Moves system messages to the head.
constexpr std::string_view kHoists =
    "{% for m in messages %}{% if m.role == 'system' %}{{ m.content }};{% endif %}{% endfor %}"
    "{% for m in messages %}{% if m.role != 'system' %}{{ m.role }} {{ m.content }};{% endif %}"
    "{% endfor %}";

struct Read {
  json chat;
  std::vector<std::string> ignored;
  std::string error;
};

Read ReadWith(std::string_view source, const json& body, ReadFor purpose = ReadFor::kCount) {
  const auto chat_template = ChatTemplate::Parse(source);
  EXPECT_TRUE(chat_template);
  ModelView model;
  model.chat_template = chat_template->get();
  auto made = TranslateMessages(body.dump(), model, purpose);
  if (!made) return {.error = made.error().text()};
  return {json::parse(TextOf(made->chat.fields)), made->chat.ignored, ""};
}

Read ReadAll(const json& body) { return ReadWith(kTakesAll, body); }

json User(json content) { return {{"role", "user"}, {"content", std::move(content)}}; }
json AnswerOf(json content) { return {{"role", "assistant"}, {"content", std::move(content)}}; }
json Text(const char* text) { return {{"type", "text"}, {"text", text}}; }

TEST(AnthropicMessages, AreTheChatThatTheyMean) {
  const json body = json::parse(R"({
    "system": [{"type":"text","text":"Be"},{"type":"text","text":"kind."}],
    "messages": [
      {"role":"user","content":"Hi \"you\""},
      {"role":"assistant","content":[
        {"type":"thinking","thinking":"Hm.","signature":"any"},{"type":"text","text":"A"},
        {"type":"tool_use","id":"c1","name":"ls","input":{"path":".","n":[1,2]}},
        {"type":"tool_use","id":"c2","name":"b","input":{}}]},
      {"role":"user","content":[{"type":"text","text":"And"},
        {"type":"tool_result","tool_use_id":"c1","content":"x.py"},
        {"type":"tool_result","tool_use_id":"c2","content":[{"type":"text","text":"y"},
                                                            {"type":"text","text":"z"}]},
        {"type":"text","text":"so on"}]}],
    "tools": [{"name":"ls","description":"Lists.","input_schema":{"type":"object"}}]})");
  const json messages = json::parse(R"([
      {"role":"system","content":"Be\nkind."},
      {"role":"user","content":"Hi \"you\""},
      {"role":"assistant","content":"A","reasoning_content":"Hm.","tool_calls":[
        {"id":"c1","type":"function","function":{"name":"ls","arguments":{"path":".","n":[1,2]}}},
        {"id":"c2","type":"function","function":{"name":"b","arguments":{}}}]},
      {"role":"tool","tool_call_id":"c1","content":"x.py"},
      {"role":"tool","tool_call_id":"c2","content":"y\nz"},
      {"role":"user","content":"And\nso on"}])");
  const json tools = json::parse(R"([{"type":"function","function":{"name":"ls",
      "description":"Lists.","parameters":{"type":"object"}}}])");
  const Read read = ReadAll(body);
  EXPECT_EQ(read.error, "");
  EXPECT_EQ(read.chat, (json{{"messages", messages}, {"tools", tools}}));
  EXPECT_TRUE(read.ignored.empty());
  // A template that shows calls as text gets them as models write them.
  const Read spaced = ReadWith("{{ messages[0].content }}", body);
  EXPECT_EQ(spaced.chat["messages"][2]["tool_calls"][0]["function"]["arguments"],
            R"({"n": [1, 2], "path": "."})");
}

TEST(AnthropicMessages, FieldsHaveTheMeaningThatTheirProtocolGivesThem) {
  const auto field = [](const char* fields, const char* name) {
    json body = json::parse(fields);
    body["messages"] = json::array({User("a")});
    const Read read = ReadAll(body);
    EXPECT_EQ(read.error, "");
    return read.chat.contains(name) ? read.chat[name] : json("absent");
  };
  EXPECT_EQ(field(R"({"max_tokens":7})", "max_tokens"), 7);
  EXPECT_EQ(field(R"({"stop_sequences":["x"]})", "stop"), json({"x"}));
  EXPECT_EQ(field(R"({"temperature":0.5})", "temperature"), 0.5);
  EXPECT_EQ(field(R"({"cache_salt":"s"})", "cache_salt"), "s");
  EXPECT_EQ(field(R"({"tool_choice":{"type":"any"}})", "tool_choice"), "required");
  EXPECT_EQ(field(R"({"tool_choice":{"type":"none"}})", "tool_choice"), "none");
  EXPECT_EQ(field(R"({"tool_choice":{"type":"tool","name":"f"}})", "tool_choice"),
            json::parse(R"({"type":"function","function":{"name":"f"}})"));
  EXPECT_EQ(field(R"({"tool_choice":{"type":"auto","disable_parallel_tool_use":true}})",
                  "parallel_tool_calls"),
            false);
  EXPECT_EQ(field(R"({"thinking":{"type":"enabled","budget_tokens":9}})", "chat_template_kwargs"),
            json({{"enable_thinking", true}}));
  EXPECT_EQ(field(R"({"thinking":{"type":"disabled"},"chat_template_kwargs":{"x":1}})",
                  "chat_template_kwargs"),
            json({{"enable_thinking", false}, {"x", 1}}));
  EXPECT_EQ(field(R"({"thinking":{"type":"adaptive"}})", "chat_template_kwargs"), "absent");
  EXPECT_EQ(field(R"({"output_config":{"format":{"type":"json_schema","schema":{"a":1}}}})",
                  "response_format"),
            json::parse(R"({"type":"json_schema","json_schema":{"schema":{"a":1}}})"));
}

TEST(AnthropicMessages, WhatDoesNotReachTheChatIsNamed) {
  const json body = json::parse(R"({"system": [
      {"type":"text","text":"x-anthropic-billing-header: cc_version=1.2.3a"},
      {"type":"text","text":"Be kind.","cache_control":{"type":"ephemeral","zz":1}}],
    "cache_control": {"type":"ephemeral","zz":1}, "metadata": {"user_id":"u"}, "context_management": {}, "n": 2,
    "thinking": {"type":"enabled","budget_tokens":9,"display":"omitted"},
    "output_config": {"effort":"low","format":{"type":"json_schema","schema":{},"x":1}},
    "tools": [{"type":"web_search_20250305","name":"web_search"},
              {"name":"f","input_schema":{},"defer_loading":true}],
    "messages": [{"role":"user","content":"a"},
      {"role":"assistant","content":[{"type":"redacted_thinking","data":"?"},
        {"type":"tool_use","id":"c","name":"f","input":{},"caller":{"type":"direct","zz":1}},
        {"type":"tool_use","id":"d","name":"f","input":{},
         "caller":{"type":"code_execution_20250825","tool_id":"t"}}]},
      {"role":"user","id":"m","content":[
        {"type":"tool_result","tool_use_id":"c","content":"no","is_error":true}]}]})");
  const Read read = ReadAll(body);
  EXPECT_EQ(read.error, "");
  EXPECT_EQ(read.ignored, (std::vector<std::string>{
                              "context_management", "n", "tools[0]", "tools[1].defer_loading",
                              "system[0]", "system[1].cache_control.zz", "messages[1].content[0]",
                              "messages[1].content[1].caller.zz", "messages[1].content[2].caller",
                              "messages[2].content[0].is_error", "messages[2].id",
                              "cache_control.zz", "thinking.budget_tokens", "thinking.display",
                              "output_config.format.x", "output_config.effort"}));
  EXPECT_EQ(read.chat["messages"][0]["content"], "Be kind.");
  EXPECT_EQ(read.chat["tools"].size(), 1u);
  EXPECT_EQ(read.chat.dump().find("billing"), std::string::npos);
}

TEST(AnthropicMessages, ALateSystemMessageStaysInItsPlace) {
  const json system = {{"role", "system"}, {"content", "S"}};
  const json body = {{"messages", {User("a"), system, AnswerOf("b"), User("c"), User("d")}}};
  const auto messages = [&](std::string_view source) {
    std::string said;
    const Read read = ReadWith(source, body);
    for (const json& one : read.chat["messages"]) {
      said += one["role"].get<std::string>().substr(0, 1) + ":" +
              one["content"].get<std::string>() + ";";
    }
    return said;
  };
  EXPECT_EQ(messages(kTakesAll), "u:a;s:S;a:b;u:c;u:d;");
  EXPECT_EQ(messages(kHoists), "u:a\n<system>\nS\n</system>;a:b;u:c;u:d;");
  EXPECT_EQ(messages(kAlternates), "u:a\n<system>\nS\n</system>;a:b;u:c\nd;");
  // After an answer it is a message of the user.
  const json after = {{"messages", {User("a"), AnswerOf("b"), system, User("c")}}};
  const Read read = ReadWith(kAlternates, after);
  ASSERT_EQ(read.chat["messages"].size(), 3u);
  EXPECT_EQ(read.chat["messages"][2]["content"], "<system>\nS\n</system>\nc");
}

TEST(AnthropicMessages, MarksAreThoseOfTheChatsMessages) {
  const auto marks = [](const char* fields) {
    const Read read = ReadAll(json::parse(fields));
    EXPECT_EQ(read.error, "");
    std::string said;
    for (const json& one : read.chat["messages"]) {
      said += one.value("/prompt_cache_breakpoint/ttl"_json_pointer, std::string("-")) + " ";
    }
    return said;
  };
  EXPECT_EQ(marks(R"({"messages":[{"role":"user","content":"a"}]})"), "- ");
  EXPECT_EQ(
      marks(
          R"({"system":[{"type":"text","text":"s","cache_control":{"type":"ephemeral","ttl":"1h"}}],
      "messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]})"),
      "1h - - ");
  EXPECT_EQ(marks(R"({"tools":[{"name":"f","input_schema":{},"cache_control":{"type":"ephemeral"}}],
      "messages":[{"role":"user","content":"a"}]})"),
            "5m ");
  EXPECT_EQ(marks(R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":[
      {"type":"text","text":"b","cache_control":{"type":"ephemeral"}}]},{"role":"user","content":"c"}]})"),
            "- 5m - ");
  EXPECT_EQ(marks(R"({"cache_control":{"type":"ephemeral"},
      "messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]})"),
            "- 5m ");
}

TEST(AnthropicMessages, AskAboutAnEarlierOne) {
  json body = {{"messages", {User("a")}}, {"diagnostics", {{"previous_message_id", "msg_1"}}}};
  const Read read = ReadAll(body);
  EXPECT_EQ(read.chat["prompt_cache_options"], json({{"comparison_response_id", "msg_1"}}));
  EXPECT_TRUE(read.ignored.empty());
  body["diagnostics"]["previous_message_id"] = nullptr;
  EXPECT_FALSE(ReadAll(body).chat.contains("prompt_cache_options"));
}

TEST(AnthropicMessages, NameTheFieldThatIsWrong) {
  const std::pair<const char*, const char*> wrong[] = {
      {R"({})", "messages: is missing, not a list with at least one message"},
      {R"({"messages":[]})", "messages: is an empty array, not a list with at least one message"},
      {R"({"messages":[3]})", "messages[0]: is a number, not an object"},
      {R"({"messages":[{"content":"a"}]})", "messages[0].role: is missing, where a text must be"},
      {R"({"messages":[{"role":"tool","content":"a"}]})",
       R"(messages[0].role: is "tool", not "user", "assistant" or "system")"},
      {R"({"messages":[{"role":"user"}]})",
       "messages[0].content: is missing, where a text must be"},
      {R"({"messages":[{"role":"user","content":[{"type":"image"}]}]})",
       "messages[0].content[0].type: \"image\" is not supported: models read text; send blocks of "
       "type text or tool_result"},
      {R"({"messages":[{"role":"user","content":"a"}],"system":[{"type":"tool_use"}]})",
       "system[0].type: \"tool_use\" is not supported: models read text; send blocks of type text"},
      {R"({"messages":[{"role":"user","content":"a"}],"diagnostics":3})",
       "diagnostics: is 3, not an object"},
      {R"({"messages":[{"role":"user","content":"a"}],"diagnostics":{"previous_message_id":3}})",
       "diagnostics.previous_message_id: is a number, not a string"},
      {R"({"messages":[{"role":"user","content":[{"type":"text","text":1}]}]})",
       "messages[0].content[0].text: is a number, not a string"},
      {R"({"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"b"}]}]})",
       "messages[0].content[0].input: is missing, not an object"},
      {R"({"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"a"}]}]})",
       "messages[0].content[0].tool_use_id: no tool_use before it has this id"},
      {R"({"messages":[{"role":"user","content":[
          {"type":"text","text":"a","cache_control":{"type":"ephemeral","ttl":"2h"}}]}]})",
       R"(messages[0].content[0].cache_control: is not {"type": "ephemeral"}, with a ttl of "5m" or "1h")"},
      {R"({"messages":[{"role":"user","content":"a"}],"system":1})",
       "system: is a number, not a text or a list of blocks"},
      {R"({"messages":[{"role":"user","content":"a"}],"tools":[{"name":"f"}]})",
       "tools[0].input_schema: is missing, where the schema of the tool's input must be"},
      {R"({"messages":[{"role":"user","content":"a"}],"tool_choice":{"type":"some"}})",
       R"(tool_choice.type: is "some", not "auto", "any", "tool" or "none")"},
      {R"({"messages":[{"role":"user","content":"a"}],"output_config":{"format":{"type":"xml"}}})",
       R"(output_config.format.type: is "xml", not "json_schema")"},
      {R"({"messages":[{"role":"user","content":"a"}],"output_config":"xxxxxxxxxx"})",
       R"(output_config: is "xxxxxxxxxx", not an object)"},
      {R"({"messages":[{"role":"user","content":"a"}],"output_config":[1,2]})",
       "output_config: is an array, not an object"},
      {R"({"messages":[{"role":"user","content":"a"}],"output_config":18446744073709551616})",
       "output_config: is 1.8446744073709552e+19, not an object"},
      {R"({"messages":[{"role":"user","content":"a"}],"max_tokens":-1})",
       "max_tokens: -1 is not an integer of at least 0"}};
  for (const auto& [body, says] : wrong) EXPECT_EQ(ReadAll(json::parse(body)).error, says) << body;
  const json user = User(json::array({Text("a")}));
  EXPECT_EQ(ReadWith(kTakesAll, {{"messages", {user}}}, ReadFor::kAnswer).error,
            "max_tokens: is missing; give the most tokens that the answer may have");
}

TEST(AnthropicMessages, ABlockThatIsNotAnObjectSaysSo) {
  for (const json& body :
       {json{{"system", {"text"}}, {"messages", {User("x")}}},
        json{{"messages", {User(json::array({"text"}))}}},
        json{
            {"messages",
             {User("x"),
              AnswerOf(json::array(
                  {{{"type", "tool_use"}, {"id", "c"}, {"name", "f"}, {"input", json::object()}}})),
              User(json::array({{{"type", "tool_result"},
                                 {"tool_use_id", "c"},
                                 {"content", json::array({"text"})}}}))}}}}) {
    const std::string error = ReadAll(body).error;
    EXPECT_NE(error.find("not an object"), std::string::npos) << error;
  }
}

}  // namespace
}  // namespace kvasir
