#include "server/openapi.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "server/routes_for_test.h"

namespace kvasir {
namespace {

using nlohmann::json;

class OpenApiTest : public RoutesTest {
 protected:
  void AddRoutes() override { AddListRoutes(&server_->table); }
};

TEST_F(OpenApiTest, ARouteIsDescribedByWhatItsProtocolSays) {
  server_->table.Add({.path = "/a/{id}/{index}",
                      .method = "POST",
                      .handler = {},
                      .errors = &kPlainErrors,
                      .description = {.summary = "Does it.",
                                      .properties = R"("x":{"type":"string"},"y":{"enum":[1]})",
                                      .required = R"(["x"])",
                                      .parameters = {{"index", R"({"type":"integer"})"},
                                                     {"limit", R"({"type":"integer"})"}},
                                      .status = "201",
                                      .answer = "Answers",
                                      .streams = true,
                                      .takes_form = true}});
  server_->table.Add(NotYet("/b"));
  const json paths = AskJson("GET", "/openapi.json")["paths"];
  EXPECT_FALSE(paths.contains("/b"));
  const json& post = paths.at("/a/{id}/{index}").at("post");
  const json& parameters = post["parameters"];
  ASSERT_EQ(parameters.size(), 3u);
  EXPECT_EQ(parameters[0]["schema"]["type"], "string");
  EXPECT_EQ(parameters[1]["in"], "path");
  EXPECT_EQ(parameters[1]["schema"]["type"], "integer");
  EXPECT_EQ(parameters[2]["in"], "query");
  const json& body = post["requestBody"];
  EXPECT_EQ(body["required"], true);
  EXPECT_TRUE(body["content"].contains("multipart/form-data"));
  const json& fields = body["content"]["application/json"]["schema"]["properties"];
  EXPECT_EQ(fields["x"]["type"], "string");
  EXPECT_EQ(fields["y"]["enum"], json({1, nullptr})) << "it may be absent";
  EXPECT_TRUE(post["responses"]["201"]["content"].contains("text/event-stream"));
  EXPECT_EQ(post["responses"]["4XX"]["content"]["application/json"]["schema"]["$ref"],
            "#/components/schemas/PlainError");
}

TEST_F(OpenApiTest, TheListHasEachPathThatAnswers) {
  server_->table.Add({.path = "/a", .method = "PUT", .handler = {}});
  server_->table.Add(NotYet("/b"));
  EXPECT_EQ(AskJson("GET", "/")["endpoints"], json({"GET /openapi.json", "GET /", "PUT /a"}));
}

}  // namespace
}  // namespace kvasir
