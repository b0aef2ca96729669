#include "server/chat_prompt.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "server/fake_engine_for_test.h"

namespace kvasir {
namespace {

using nlohmann::json;

// The text that the template `source` renders for a request body, or the error's message.
std::string Rendered(std::string_view source, std::string_view body, bool knows_calls = true) {
  const auto chat_template = ChatTemplate::Parse(source);
  if (!chat_template) return chat_template.error().text();
  ModelView model;
  model.chat_template = chat_template->get();
  model.knows_calls = knows_calls;
  auto parsed = ParseBody(body);
  if (!parsed) return parsed.error().text();
  JsonFields fields(parsed->fields);
  const auto chat = RenderMessages(fields, &parsed->tree, model);
  return chat ? chat->text : chat.error().text();
}

TEST(ChatPrompt, AModelWithoutATokenizerSaysWhy) {
  ModelView model;
  model.no_text = "m.gguf: kind 'x'";
  auto parsed = ParseBody(R"({"messages": []})");
  ASSERT_TRUE(parsed);
  JsonFields fields(parsed->fields);
  const auto refused = RenderMessages(fields, &parsed->tree, model);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kUnsupported);
  EXPECT_EQ(refused.error().text(),
            "messages: m.gguf: kind 'x', or send token ids as the prompt of /v1/completions");
}

TEST(ChatPrompt, DocumentsReachTheTemplatesThatUseThem) {
  const std::string_view source =
      "{% for d in documents %}[{{ d.title }}]{% endfor %}{{ x }}{{ messages[0].content }}";
  EXPECT_EQ(Rendered(source, R"({"documents": [{"title": "a"}, {"title": "b"}],
      "chat_template_kwargs": {"x": 7}, "messages": [{"role": "user", "content": "!"}]})"),
            "[a][b]7!");
  const std::string_view wrong =
      R"({"documents": ["a"], "messages": [{"role": "user", "content": "!"}]})";
  EXPECT_EQ(Rendered(source, wrong), "documents: must be an array of objects");
  const std::string_view unused =
      R"({"documents": [{"title": "a"}], "messages": [{"role": "user", "content": "!"}]})";
  EXPECT_EQ(Rendered("{{ messages[0].content }}", unused),
            "documents: the chat template does not use documents; write them in a message");
}

TEST(ChatPrompt, CallsStandInTheContentOfTemplatesThatDoNotKnowThem) {
  const std::string_view source = "{% for m in messages %}[{{ m.content }}]{% endfor %}";
  const std::string_view body = R"({"messages": [{"role": "user", "content": "a"},
      {"role": "assistant", "content": "Wait.", "tool_calls": [
        {"function": {"name": "f", "arguments": "{\"x\":  1}"}}, {"function": {"name": "g"}}]}]})";
  EXPECT_EQ(Rendered(source, body, false), R"([a][Wait.
{"name": "f", "arguments": {"x":  1}}
{"name": "g", "arguments": {}}])");
  EXPECT_EQ(Rendered(source, body), "[a][Wait.]");
}

TEST(ChatPrompt, ToolsKeepTheOrderInWhichTheirKeysWereSent) {
  EXPECT_EQ(Rendered("{{ tools | tojson }}",
                     R"({"tools":[{"type":"function","function":{"name":"f","arguments":{"z":1,
                         "a":2}}}],"messages":[{"role":"user","content":"x"}]})"),
            R"([{"type": "function", "function": {"name": "f", "arguments": {"z": 1, "a": 2}}}])");
}

TEST(ChatPrompt, ArgumentsOfACallKeepTheOrderInWhichTheirKeysWereSent) {
  EXPECT_EQ(Rendered("{{ messages[0].tool_calls[0].function.arguments | tojson }}",
                     R"({"messages":[{"role":"assistant","tool_calls":[{"function":
                         {"name":"f","arguments":"{\"to\": 1, \"from\": {\"y\": 2, \"b\": 3}}"}}]}]})"),
            R"({"to": 1, "from": {"y": 2, "b": 3}})");
}

// A tool's arguments may have any names: a list in them is never a list of token ids.
TEST(ChatPrompt, ArgumentsMayHaveTheNamesOfOurFields) {
  for (const std::string arguments :
       {R"({"tokens": [1, 2]})", R"({"prompt": []})", R"({"tokens": [1.5, "a", -1]})",
        R"({"stop_token_ids": [1, 2]})", R"({"prompt": [[1], null]})"}) {
    const json body = {
        {"messages",
         {{{"role", "assistant"},
           {"tool_calls", {{{"function", {{"name", "f"}, {"arguments", arguments}}}}}}}}}};
    EXPECT_EQ(Rendered("{{ messages[0].tool_calls[0].function.arguments | tojson }}", body.dump()),
              arguments);
  }
}

TEST(ChatPrompt, ArgumentsThatAreNoJsonStayText) {
  EXPECT_EQ(Rendered("{{ messages[0].tool_calls[0].function.arguments is string }}",
                     R"({"messages":[{"role":"assistant","tool_calls":[{"function":
                         {"name":"f","arguments":"{\"a\":1}\u0000x"}}]}]})"),
            "True");
}

// Templates add strings to `content` (the bundled one does): null would be an error.
TEST(ChatPrompt, ContentBesideToolCallsMayBeNullOrAbsentAndIsEmptyThen) {
  const std::string call = R"("tool_calls":[{"function":{"name":"f","arguments":"{}"}}])";
  for (const std::string content : {"", R"("content":null,)", R"("content":"",)"}) {
    EXPECT_EQ(Rendered(kTinyTemplate,
                       R"({"add_generation_prompt":false,"messages":[{"role":"assistant",)" +
                           content + call + "}]}"),
              "assistant:<|end|>");
  }
}

TEST(ChatPrompt, ContentWithoutToolCallsMustBeThere) {
  for (const std::string message :
       {R"({"role":"assistant","content":null})", R"({"role":"assistant","tool_calls":[]})",
        R"({"role":"user","tool_calls":[{"function":{"name":"f"}}]})", R"({"role":"tool"})"}) {
    EXPECT_EQ(Rendered(kTinyTemplate, R"({"messages":[)" + message + "]}"),
              "messages[0].content: is missing");
  }
}

}  // namespace
}  // namespace kvasir
