#include "api/ollama_request.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/rounds_for_test.h"
#include "server/fake_engine_for_test.h"

namespace kvasir {
namespace {

using nlohmann::json;

struct OllamaParsed {
  json chat = nullptr;  // null: the prompt is not a chat
  std::string field, error;
  std::vector<GenerateRequest> requests;
};

OllamaParsed ParsedBy(decltype(&ParseOllamaChat) parse, const std::string& body) {
  static const auto tokenizer = *Tokenizer::Parse(TinyTokenizerJson(), kTinyTokenizerConfig);
  static const auto chat_template = *ChatTemplate::Parse(
      "{% for m in messages %}{{ m.role }} {{ m.content }}{{ m.tool_call_id }};{% endfor %}");
  ModelView model;
  model.names = {"m"};
  model.tokenizer = tokenizer.get();
  model.chat_template = chat_template.get();
  model.vocab_size = 258;
  model.ctx_size = 4096;
  std::string chat;
  const auto call = parse(body, model, &chat);
  if (!call) return {.field = call.error().field.value_or(""), .error = call.error().message};
  return {.chat = chat.empty() ? json() : json::parse(chat), .requests = call->requests};
}

json CallsOf(std::initializer_list<const char*> names) {
  json calls = json::array();
  for (const char* name : names) {
    calls.push_back({{"function", {{"name", name}, {"arguments", json::object()}}}});
  }
  return {{"role", "assistant"}, {"content", ""}, {"tool_calls", std::move(calls)}};
}

json ResultOf(const char* name) {
  json result = {{"role", "tool"}, {"content", "x"}};
  if (*name != '\0') result["tool_name"] = name;
  return result;
}

// Returns the ids of the calls that results answer.
std::vector<std::string> Answered(std::initializer_list<json> messages) {
  json all = json::array({{{"role", "user"}, {"content", "x"}}});
  for (const json& one : messages) all.push_back(one);
  const OllamaParsed parsed = ParsedBy(ParseOllamaChat, json({{"messages", all}}).dump());
  EXPECT_EQ(parsed.error, "");
  std::vector<std::string> ids;
  for (const json& one : parsed.chat.value("messages", json::array())) {
    if (one.at("role") == "tool") ids.push_back(one.at("tool_call_id"));
  }
  return ids;
}

TEST(OllamaRequest, AResultAnswersTheFirstCallThatWaits) {
  using Ids = std::vector<std::string>;
  EXPECT_EQ(Answered({CallsOf({"a", "b", "a"}), ResultOf("a"), ResultOf("b"), ResultOf("a")}),
            (Ids{"call00001", "call00002", "call00003"}));
  EXPECT_EQ(Answered({CallsOf({"a", "b", "a"}), ResultOf("b"), ResultOf(""), ResultOf("a")}),
            (Ids{"call00002", "call00001", "call00003"}));
  EXPECT_EQ(
      Answered({CallsOf({"a", "b"}), ResultOf(""), CallsOf({"a"}), ResultOf("a"), ResultOf("")}),
      (Ids{"call00001", "call00003", "call00002"}));
}

TEST(OllamaRequest, AResultWithoutACallIsRefused) {
  for (const json& messages :
       {json::array({ResultOf("")}), json::array({CallsOf({"a"}), ResultOf("b")}),
        json::array({CallsOf({"a"}), ResultOf("a"), ResultOf("a")}),
        json::array({CallsOf({"a"}), ResultOf(""), ResultOf("a")})}) {
    const OllamaParsed parsed = ParsedBy(ParseOllamaChat, json({{"messages", messages}}).dump());
    EXPECT_NE(parsed.error.find("no call before it"), std::string::npos) << parsed.error;
  }
}

TEST(OllamaRequest, WhatDoesNotReachTheChatIsNamed) {
  json call = CallsOf({"a"});
  call["tool_calls"][0]["id"] = "x";
  call["tool_calls"][0]["function"]["index"] = 0;
  const json messages = json::array({{{"role", "user"}, {"content", "x"}}, call, ResultOf("a")});
  const auto ignored = [&](json think) {
    const json body = {{"messages", messages}, {"think", std::move(think)}};
    const OllamaParsed parsed = ParsedBy(ParseOllamaChat, body.dump());
    EXPECT_EQ(parsed.error, "");
    return parsed.requests.at(0).ignored;
  };
  using Paths = std::vector<std::string>;
  const std::string id = "messages[1].tool_calls[0].id";
  const std::string index = "messages[1].tool_calls[0].function.index";
  EXPECT_EQ(ignored(nullptr), (Paths{id, index}));
  EXPECT_EQ(ignored(true), (Paths{id, index, "think"})) << "the template reads no enable_thinking";
  EXPECT_EQ(ignored("low"), (Paths{id, index, "think"})) << "once";
}

// As many as a body's 65,536 values hold.
TEST(OllamaRequest, ResultsOfTheLastOfManyCallsAreTheirs) {
  constexpr int kCalls = Rounds(3000, 300);
  json messages = json::array();
  for (const char* name : {"a", "b"}) {
    for (int i = 0; i < kCalls; ++i) messages.push_back(CallsOf({name}));
  }
  for (int i = 0; i < kCalls; ++i) messages.push_back(ResultOf("b"));
  const OllamaParsed parsed = ParsedBy(ParseOllamaChat, json({{"messages", messages}}).dump());
  EXPECT_EQ(parsed.field, "messages") << "it is too long for the context, and nothing else";
  EXPECT_EQ(parsed.error.find("no call before it"), std::string::npos) << parsed.error;
}

std::vector<TokenId> PromptOf(const json& body) {
  const OllamaParsed parsed = ParsedBy(ParseOllamaGenerate, body.dump());
  EXPECT_EQ(parsed.error, "");
  EXPECT_EQ(parsed.requests.size(), 1u);
  return parsed.requests.empty() ? std::vector<TokenId>() : parsed.requests[0].prompt;
}

TEST(OllamaRequest, ARawPromptIsNotAChat) {
  const json raw = {{"prompt", "ab"}, {"raw", true}};
  EXPECT_EQ(PromptOf(raw), (std::vector<TokenId>{'a', 'b'}));
  EXPECT_EQ(ParsedBy(ParseOllamaGenerate, raw.dump()).chat, nullptr);
  EXPECT_EQ(ParsedBy(ParseOllamaGenerate, raw.dump()).requests[0].max_tokens, UINT32_MAX);
  const json limited = {{"prompt", "ab"}, {"raw", true}, {"options", {{"num_predict", 3}}}};
  EXPECT_EQ(ParsedBy(ParseOllamaGenerate, limited.dump()).requests[0].max_tokens, 3u);
}

TEST(OllamaRequest, ContextComesBeforeThePrompt) {
  const std::vector<TokenId> alone = PromptOf({{"prompt", "ab"}});
  std::vector<TokenId> want = {7, 8, 9};
  want.insert(want.end(), alone.begin(), alone.end());
  const json body = {{"prompt", "ab"}, {"context", {7, 8, 9}}};
  EXPECT_EQ(PromptOf(body), want);
  EXPECT_EQ(ParsedBy(ParseOllamaGenerate, body.dump()).chat, nullptr)
      << "the chat explains nothing";
  const json wrong = {{"prompt", "ab"}, {"context", {7, 999}}};
  EXPECT_EQ(ParsedBy(ParseOllamaGenerate, wrong.dump()).field, "context");
}

TEST(OllamaRequest, WithoutAPromptNothingIsAsked) {
  for (const json& body : {json::object(), json({{"prompt", ""}}), json({{"keep_alive", 0}})}) {
    const OllamaParsed parsed = ParsedBy(ParseOllamaGenerate, body.dump());
    EXPECT_EQ(parsed.error, "");
    EXPECT_TRUE(parsed.requests.empty());
  }
  EXPECT_TRUE(ParsedBy(ParseOllamaChat, R"({"messages":[]})").requests.empty());
  EXPECT_EQ(ParsedBy(ParseOllamaChat, R"({"model":"other"})").field, "model");
  EXPECT_EQ(ParsedBy(ParseOllamaGenerate, R"({"prompt":5})").field, "prompt");
  EXPECT_EQ(ParsedBy(ParseOllamaGenerate, R"({"prompt":"","system":"a"})").requests.size(), 1u);
}

TEST(OllamaRequest, APromptThatIsTooLongIsNamedAsTheRequestDoes) {
  const std::string text(20'000, 'a');
  EXPECT_EQ(ParsedBy(ParseOllamaGenerate, json({{"prompt", text}}).dump()).field, "prompt");
  const json chat = {{"messages", {{{"role", "user"}, {"content", text}}}}};
  EXPECT_EQ(ParsedBy(ParseOllamaChat, chat.dump()).field, "messages");
}

}  // namespace
}  // namespace kvasir
