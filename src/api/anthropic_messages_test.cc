#include "api/anthropic_messages.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "http/json_body.h"

namespace kvasir {
namespace {

using nlohmann::json;

std::string ChatOf(const std::string& body) {
  const auto parsed = ParseBody(body);
  EXPECT_TRUE(parsed);
  const auto chat = ChatBodyOf(parsed->fields);
  return chat ? json::parse(*chat).dump()
              : chat.error().field.value_or("") + ": " + chat.error().message;
}

TEST(AnthropicMessages, AreTheChatThatTheyMean) {
  EXPECT_EQ(ChatOf(R"({"messages":[{"role":"user","content":"Hi \"you\""}],"max_tokens":1})"),
            R"({"messages":[{"content":"Hi \"you\"","role":"user"}]})");
  EXPECT_EQ(json::parse(ChatOf(R"({
    "system": [{"type":"text","text":"Be "},{"type":"text","text":"kind."}],
    "messages": [
      {"role":"assistant","content":[{"type":"thinking","thinking":"Hm."},{"type":"text","text":"A"},
        {"type":"tool_use","id":"c1","name":"ls","input":{"path":"."}}]},
      {"role":"user","content":[{"type":"tool_result","tool_use_id":"c1","content":"x.py"},
        {"type":"tool_result","tool_use_id":"c2","content":[{"type":"text","text":"y"}]},
        {"type":"text","text":"And"}]}],
    "tools": [{"name":"ls","description":"Lists.","input_schema":{"type":"object"}},{"name":"b"}]})")),
            json::parse(R"({
    "messages": [
      {"role":"system","content":"Be kind."},
      {"role":"assistant","content":"A","reasoning_content":"Hm.","tool_calls":[
        {"id":"c1","type":"function","function":{"name":"ls","arguments":"{\"path\":\".\"}"}}]},
      {"role":"tool","tool_call_id":"c1","content":"x.py"},
      {"role":"tool","tool_call_id":"c2","content":"y"},
      {"role":"user","content":"And"}],
    "tools": [
      {"type":"function","function":{"name":"ls","description":"Lists.","parameters":{"type":"object"}}},
      {"type":"function","function":{"name":"b"}}]})"));
}

TEST(AnthropicMessages, NameTheFieldThatIsWrong) {
  const std::pair<const char*, const char*> wrong[] = {
      {R"({})", "messages: is not a list of messages"},
      {R"({"messages":[]})", "messages: is not a list of messages"},
      {R"({"messages":[3]})", "messages[0].role: is missing, where a text must be"},
      {R"({"messages":[{"role":"system","content":"a"}]})",
       "messages[0].role: is not \"user\" or \"assistant\""},
      {R"({"messages":[{"role":"user"}]})",
       "messages[0].content: is missing, where a text must be"},
      {R"({"messages":[{"role":"user","content":[{"type":"image"}]}]})",
       "messages[0].content[0]: blocks of type \"image\" are not available: models read text"},
      {R"({"messages":[{"role":"user","content":[{"type":"text","text":1}]}]})",
       "messages[0].content[0].text: is a number, where a text must be"},
      {R"({"messages":[{"role":"user","content":[{"type":"tool_use","id":"a","name":"b"}]}]})",
       "messages[0].content[0].input: is not an object"},
      {R"({"messages":[{"role":"user","content":"a"}],"system":1})",
       "system: is a number, not a text or a list of blocks"},
      {R"({"messages":[{"role":"user","content":"a"}],"tools":[{}]})",
       "tools[0].name: is missing, where a text must be"}};
  for (const auto& [body, says] : wrong) EXPECT_EQ(ChatOf(body), says) << body;
}

}  // namespace
}  // namespace kvasir
