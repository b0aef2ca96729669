#include "server/anthropic_routes.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "server/routes_for_test.h"

namespace kvasir {
namespace {

using nlohmann::json;

class AnthropicRoutesTest : public RoutesTest {
 protected:
  void AddRoutes() override {
    engine_->mutable_card().ctx_size = 128;
    engine_->mutable_plan().max_tokens = 128;
    AddAnthropicRoutes(server_->generations, server_->preparer, &server_->table);
  }
  void SetUp() override {
    Make({});
    Restart({});  // with the context
  }
};

constexpr const char* kMessages = "/v1/messages";

json Asked(const char* more = "{}") {
  json body = json::parse(more);
  body["max_tokens"] = body.value("max_tokens", 9);
  if (!body.contains("messages")) body["messages"] = {{{"role", "user"}, {"content", "a"}}};
  return body;
}

TEST_F(AnthropicRoutesTest, CountsWhatAMessageComputes) {
  const json body = Asked(R"({"system":"s"})");
  // <|bos|> "system:s" <|end|> "user:a" <|end|> "assistant:"
  EXPECT_EQ(AskJson("POST", "/v1/messages/count_tokens", body), json({{"input_tokens", 27}}));
  EXPECT_EQ(Start(kMessages, body).requests[0].prompt.size(), 27u);
  EXPECT_EQ(Ask("POST", "/v1/messages/count_tokens", json::object()).status, 400);
  EXPECT_EQ(Ask("POST", "/v1/messages/batches", body).status, 404);
}

TEST_F(AnthropicRoutesTest, FieldsReachTheEngine) {
  const GenerationStart start = Start("/v1/messages?beta=true", Asked(R"({"max_tokens":5,
      "temperature":0.5,"top_p":0.25,"top_k":7,"stop_sequences":["x","yy"],"stream":true,
      "cache_salt":"s","seed":3,"n":2,"metadata":{"user_id":"u"},"tools":[{"type":"bash_1"}]})"));
  ASSERT_EQ(start.requests.size(), 1u);
  const GenerateRequest& request = start.requests[0];
  EXPECT_EQ(request.max_tokens, 5u);
  EXPECT_EQ(request.sampling.temperature, 0.5f);
  EXPECT_EQ(request.sampling.top_p, 0.25f);
  EXPECT_EQ(request.sampling.top_k, 7u);
  EXPECT_EQ(request.sampling.seed, 3u);
  EXPECT_EQ(request.stop, (std::vector<std::string>{"x", "yy"}));
  EXPECT_EQ(request.cache_salt, "s");
  EXPECT_EQ(request.n, 1u);
  EXPECT_TRUE(request.reports_progress);
  EXPECT_EQ(request.ignored, (std::vector<std::string>{"n", "tools[0]"}));
  EXPECT_TRUE(start.answer->id().starts_with("msg_"));
  EXPECT_TRUE(start.answer->streams());
  EXPECT_FALSE(Start(kMessages, Asked()).requests[0].reports_progress);
}

TEST_F(AnthropicRoutesTest, ErrorsHaveTheFormThatTheirSchemaSays) {
  HttpRequest request = RequestOf("GET", "/v1/messages/batches/x");
  request.id = "r";
  const Route* route = server_->table.FindPath("/v1/messages/batches/x");
  ASSERT_NE(route, nullptr);
  json body = json::parse(ErrorResponse({Code::kNotFound, "is not there", "path"}).body);
  ASSERT_NE(route->errors->reshape, nullptr);
  route->errors->reshape(request, 404, &body);
  EXPECT_EQ(body["type"], "error");
  EXPECT_EQ(body["request_id"], "r");
  EXPECT_EQ(body["error"]["type"], "not_found_error");
  const json schema = json::parse(route->errors->schema);
  for (const json& name : schema["required"]) EXPECT_TRUE(body.contains(name)) << name;
}

TEST_F(AnthropicRoutesTest, NamesAreThoseOfTheRequest) {
  // What the prompt does not show: the template knows neither thoughts nor results' ids.
  const json body = Asked(R"({"messages":[{"role":"user","content":"a"},
      {"role":"assistant","content":[{"type":"text","text":"b"},{"type":"thinking","thinking":"t"},
        {"type":"tool_use","id":"c","name":"f","input":{"x":1}}]},
      {"role":"user","content":[{"type":"tool_result","tool_use_id":"c","content":"3"},
        {"type":"text","text":"d"}]}]})");
  EXPECT_EQ(Start(kMessages, body).requests[0].ignored,
            (std::vector<std::string>{"messages[1].content[1]"}));
  const auto param = [&](const char* more) { return ParamOf(Ask("POST", kMessages, Asked(more))); };
  EXPECT_EQ(param(R"({"stop_sequences":[""]})"), "stop_sequences");
  EXPECT_EQ(param(R"({"messages":[{"role":"user","content":[{"type":"text"}]}]})"),
            "messages[0].content[0].text");
  EXPECT_EQ(param(R"({"output_config":{"format":{"type":"json_schema","schema":3}}})"),
            "output_config.format.schema");
  EXPECT_EQ(param(R"({"tool_choice":{"type":"tool","name":"f"}})"), "tool_choice");
  EXPECT_EQ(param(R"({"temperature":"hot"})"), "temperature");
  EXPECT_EQ(param(R"({"model":"claude"})"), "model");
  const GenerationStart formatted =
      Start(kMessages, Asked(R"({"output_config":{"format":{"type":"json_schema","schema":{}}}})"));
  EXPECT_EQ(formatted.requests[0].format->text->field, "output_config.format.schema");
}

TEST_F(AnthropicRoutesTest, APromptThatIsTooLongSaysByHowMuch) {
  for (const size_t bytes : {size_t{500}, size_t{100'000}}) {
    const json body =
        Asked(json({{"messages", {{{"role", "user"}, {"content", std::string(bytes, 'a')}}}}})
                  .dump()
                  .c_str());
    const json error = ErrorOf(kMessages, body);
    EXPECT_GT(error["n_prompt_tokens"], 128) << error;
    EXPECT_EQ(error["n_ctx"], 128);
    EXPECT_EQ(Ask("POST", "/v1/messages/count_tokens", body).status, bytes < 1000 ? 200 : 400);
  }
}

TEST_F(AnthropicRoutesTest, MarksAreCountedInTheFiguresOfThePrompt) {
  GenerationStart start = Start(kMessages, Asked(R"({"system":[
      {"type":"text","text":"s","cache_control":{"type":"ephemeral","ttl":"1h"}}]})"));
  Event event;
  event.finish_reason = FinishReason::kStop;
  event.last = true;
  event.receipt.prompt_tokens = event.receipt.computed = 27;
  event.completion_tokens = 1;
  start.answer->Take(0, event);
  Parts body = start.answer->Body();
  const json usage = json::parse(Joined(std::move(body)))["usage"];
  EXPECT_EQ(usage["cache_creation"]["ephemeral_1h_input_tokens"], 10);  // <|bos|>system:s<|end|>
  EXPECT_EQ(usage["input_tokens"], 17);
}

}  // namespace
}  // namespace kvasir
