#include "server/text_routes.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "server/routes_for_test.h"

namespace kvasir {
namespace {

using nlohmann::json;

class TextRoutesTest : public RoutesTest {
 protected:
  void AddRoutes() override { AddTextRoutes(&server_->table); }
};

TEST_F(TextRoutesTest, ToolsKeepTheOrderOfTheirKeys) {
  const std::string body =
      R"({"messages":[{"role":"user","content":"x"}],"tools":[{"zeta":1,"name":"f","alpha":{"b":1,"a":2}}]})";
  const HttpResponse response = AskText("POST", "/apply-template", body);
  EXPECT_NE(
      response.body.find(R"([{\"zeta\": 1, \"name\": \"f\", \"alpha\": {\"b\": 1, \"a\": 2}}])"),
      std::string::npos)
      << response.body;
}

TEST_F(TextRoutesTest, TextBecomesTokensAndTextAgain) {
  EXPECT_EQ(AskJson("POST", "/tokenize", {{"content", "ab"}, {"with_pieces", true}}),
            json::parse(R"({"count":2,"max_model_len":64,
                "tokens":[{"id":97,"piece":"a"},{"id":98,"piece":"b"}]})"));
  EXPECT_EQ(AskJson("POST", "/detokenize", {{"tokens", {97, 98}}}),
            json({{"content", "ab"}, {"prompt", "ab"}}));
  EXPECT_EQ(ErrorOf("/tokenize", json::object())["param"], "content");
  EXPECT_EQ(ErrorOf("/detokenize", {{"tokens", {300}}})["param"], "tokens");
}

// As routers ask for them, in vLLM's form.
TEST_F(TextRoutesTest, AChatBecomesTheTokensOfItsPrompt) {
  const json body = {{"messages", {{{"role", "user"}, {"content", "Hi"}}}},
                     {"tools", {{{"name", "f"}}}},
                     {"add_generation_prompt", true},
                     {"chat_template_kwargs", {{"who", "bob"}}}};
  const std::string text = AskJson("POST", "/apply-template", body)["prompt"];
  const json tokens = AskJson("POST", "/tokenize", body);
  EXPECT_EQ(tokens["count"], tokens["tokens"].size());
  EXPECT_EQ(AskJson("POST", "/detokenize", {{"tokens", tokens["tokens"]}})["content"], text);
  json open = body;
  open["add_generation_prompt"] = false;
  EXPECT_NE(AskJson("POST", "/tokenize", open)["tokens"], tokens["tokens"]);
  json wrong = body;
  wrong["messages"][0]["role"] = "king";
  EXPECT_EQ(ErrorOf("/tokenize", wrong)["param"], "messages[0].role");
  // A text beside it is what is asked for, as before.
  json both = body;
  both["content"] = "ab";
  EXPECT_EQ(AskJson("POST", "/tokenize", both)["count"], 2);
}

}  // namespace
}  // namespace kvasir
