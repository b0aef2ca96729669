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

TEST_F(ModelRoutesTest, TheTagLatestMeansNone) {
  ServerOptions options;
  options.aliases = {"a", "b:latest"};
  Restart(options);
  const auto id = [&](const std::string& name) {
    return AskJson("GET", "/v1/models/" + name)["id"].get<std::string>();
  };
  EXPECT_EQ(id("a:latest"), "a");
  EXPECT_EQ(id("default:latest"), "a");
  EXPECT_EQ(id("b:latest"), "b:latest") << "it is named so";
  EXPECT_EQ(id("b:latest:latest"), "b:latest");
  for (const char* name : {"b", "c:latest", "a:late", "a:latest:x"}) {
    EXPECT_EQ(Ask("GET", std::string("/v1/models/") + name).status, 404) << name;
  }
  engine_->adapters = {{.id = 1, .name = "tuned", .path = {}, .is_model = true}};
  EXPECT_EQ(id("tuned:latest"), "tuned");
}

}  // namespace
}  // namespace kvasir
