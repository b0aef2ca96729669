#include "server/anthropic_routes.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "server/routes_for_test.h"

namespace kvasir {
namespace {

using nlohmann::json;

class AnthropicRoutesTest : public RoutesTest {
 protected:
  void AddRoutes() override { AddAnthropicRoutes(&server_->table); }
};

TEST_F(AnthropicRoutesTest, CountsTokensAndNamesWhatIsNotThere) {
  const json body = {{"system", "s"}, {"messages", {{{"role", "user"}, {"content", "a"}}}}};
  // <|bos|> "system:s" <|end|> "user:a" <|end|> "assistant:"
  EXPECT_EQ(AskJson("POST", "/v1/messages/count_tokens", body), json({{"input_tokens", 27}}));
  EXPECT_EQ(Ask("POST", "/v1/messages/count_tokens", json::object()).status, 400);
  EXPECT_EQ(Ask("POST", "/v1/messages", body).status, 404);
}

}  // namespace
}  // namespace kvasir
