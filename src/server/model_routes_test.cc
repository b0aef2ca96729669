#include "server/model_routes.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "server/routes_for_test.h"

namespace kvasir {
namespace {

using nlohmann::json;

class ModelRoutesTest : public RoutesTest {
 protected:
  void AddRoutes() override { AddModelRoutes(&server_->table); }
};

TEST_F(ModelRoutesTest, TheModelHasAllItsNames) {
  ServerOptions options;
  options.aliases = {"a", "b"};
  Restart(options);
  for (const char* path : {"/v1/models", "/models"}) {
    const json models = AskJson("GET", path);
    ASSERT_EQ(models["data"].size(), 1u);
    EXPECT_EQ(models["data"][0]["id"], "a");
    EXPECT_EQ(models["data"][0]["aliases"], json({"a", "b", "fake"}));
  }
  EXPECT_EQ(AskJson("GET", "/v1/models/%62")["id"], "b");
  EXPECT_EQ(Ask("GET", "/v1/models/c").status, 404);
}

}  // namespace
}  // namespace kvasir
