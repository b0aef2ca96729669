#include "server/generation_starter.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "server/openai_routes.h"
#include "server/routes_for_test.h"

namespace kvasir {
namespace {

using nlohmann::json;

class GenerationStarterTest : public RoutesTest {
 protected:
  void AddRoutes() override {
    AddOpenAiRoutes(server_->generations, server_->preparer, &server_->table);
  }
};

TEST_F(GenerationStarterTest, AnAnswerThatNeverFitsIsRefused) {
  engine_->mutable_options().request_memory_bytes = 16 << 20;
  Restart({});
  json body = {{"prompt", std::vector(100, std::vector<int>{1})}, {"max_tokens", 1000}, {"n", 8}};
  const uint64_t bytes = Start("/v1/completions", body).answer_bytes;
  body["logprobs"] = 1;  // 16 bytes and 8 for each token of the 63 that the context leaves
  EXPECT_EQ(Start("/v1/completions", body).answer_bytes, bytes + 800 * 63 * 24);
  body["logprobs"] = 20;
  const HttpResponse refused = AskText("POST", "/v1/completions", body.dump());
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(ParamOf(refused), "max_tokens");
  EXPECT_NE(refused.body.find("50400 tokens in 800 answers"), std::string::npos) << refused.body;
  EXPECT_NE(refused.body.find(std::to_string((16 << 20) / 20 * 4)), std::string::npos);
  body["stream"] = true;
  EXPECT_LT(Start("/v1/completions", body).answer_bytes, bytes);
}

TEST_F(GenerationStarterTest, TheSmallestTimeLimitCounts) {
  ServerOptions options;
  options.timeout_ms = 50;
  options.max_timeout_ms = 80;
  Restart(options);
  const auto limit = [&](std::optional<uint64_t> body, std::string header) {
    GenerateRequest request;
    request.timeout_ms = body;
    HttpRequest head;
    head.timeout_ms = std::move(header);
    server_->generations.LimitTime(head, &request);
    return request.timeout_ms;
  };
  EXPECT_EQ(limit({}, ""), 50u);
  EXPECT_EQ(limit(70, ""), 70u);
  EXPECT_EQ(limit(70, "60"), 60u);
  EXPECT_EQ(limit({}, "500"), 80u);
}

TEST_F(GenerationStarterTest, ATenantsEntryBoundsItsRequests) {
  auto entry = std::make_shared<TenantEntry>();
  entry->name = "t";
  entry->rules.cache_owner = "group";
  entry->most_priority = 3;
  caller_ = {.tenant = "t", .entry = entry};
  const GenerateRequest request =
      std::move(Start("/v1/completions", {{"prompt", "a"}, {"priority", 9}}).requests[0]);
  EXPECT_EQ(request.tenant, "t");
  EXPECT_EQ(request.cache_owner, "group");
  EXPECT_EQ(request.priority, 3);
  EXPECT_FALSE(request.on_trace) << "nothing is traced";
}

}  // namespace
}  // namespace kvasir
