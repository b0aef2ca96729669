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

}  // namespace
}  // namespace kvasir
