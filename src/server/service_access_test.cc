// Access: API keys, the admin key, host names and origins; and what answers show about others.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/random.h"
#include "server/fake_engine_for_test.h"
#include "server/service.h"

namespace kvasir {
namespace {

using nlohmann::json;

// A Service in front of a FakeEngine without a tokenizer.
class ServiceAccess : public testing::Test {
 protected:
  void SetUp() override { Make({}); }
  void Make(const ServerOptions& options) {
    engine_->erased.clear();
    service_ = *Service::Make(options, *engine_);
  }

  HttpResponse Ask(const HttpRequest& request) { return AskService(*service_, request); }

  const std::unique_ptr<FakeEngine> engine_ = std::make_unique<FakeEngine>(nullptr, nullptr);
  std::unique_ptr<Service> service_;
};

TEST_F(ServiceAccess, SumsOverTenantsAreTheOperators) {
  const auto metrics = [this](const std::vector<std::string>& keys, const std::string& admin,
                              const std::string& given) {
    ServerOptions options;
    options.api_keys = keys;
    if (!admin.empty()) options.admin_key = admin;
    Make(options);
    HttpRequest request = RequestOf("GET", "/metrics");
    request.api_key = given;
    const HttpResponse response = Ask(request);
    EXPECT_EQ(response.body.find("vllm:") != std::string::npos, response.status == 200);
    if (response.status == 200) return std::string("200");
    return json::parse(response.body)["error"]["code"].get<std::string>();
  };
  EXPECT_EQ(metrics({}, "", ""), "200");
  EXPECT_EQ(metrics({}, "", "whatever"), "200");
  EXPECT_EQ(metrics({"a"}, "", ""), "invalid_api_key");
  EXPECT_EQ(metrics({"a"}, "", "a"), "200");
  EXPECT_EQ(metrics({"a", "a"}, "", "a"), "200");
  EXPECT_EQ(metrics({"a", "b"}, "", ""), "invalid_api_key");
  EXPECT_EQ(metrics({"a", "b"}, "", "a"), "not_admin");
  EXPECT_EQ(metrics({"a", "b"}, "root", "b"), "not_admin");
  EXPECT_EQ(metrics({"a", "b"}, "root", ""), "invalid_api_key");
  EXPECT_EQ(metrics({"a", "b"}, "root", "root"), "200");
  EXPECT_EQ(metrics({"a", "b"}, "b", "b"), "200");
  EXPECT_EQ(metrics({"a"}, "root", "a"), "not_admin");
  EXPECT_EQ(metrics({}, "root", ""), "invalid_api_key");
  EXPECT_EQ(metrics({}, "root", "whatever"), "invalid_api_key");
  EXPECT_EQ(metrics({}, "root", "root"), "200");
}

TEST_F(ServiceAccess, TheAdminKeyReadsStateAndIsNoTenant) {
  ServerOptions options;
  options.api_keys = {"a", "b"};
  options.admin_key = "root";
  Make(options);
  const auto ask = [this](std::string method, std::string path, const char* key) {
    HttpRequest request = RequestOf(std::move(method), std::move(path), R"({"prompt":"a"})");
    request.api_key = key;
    return Ask(request);
  };
  EXPECT_TRUE(json::parse(ask("GET", "/v1/cache", "root").body)["cache"].contains("blocks"));
  EXPECT_FALSE(json::parse(ask("GET", "/v1/cache", "a").body)["cache"].contains("blocks"));
  for (const char* path : {"/v1/models", "/props", "/", "/health", "/ready"}) {
    EXPECT_EQ(ask("GET", path, "root").status, 200) << path;
  }
  for (const char* path : {"/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize",
                           "/apply-template", "/v1/cache/flush"}) {
    const HttpResponse refused = ask("POST", path, "root");
    EXPECT_EQ(refused.status, 403) << path;
    EXPECT_EQ(json::parse(refused.body)["error"]["code"], "not_tenant");
  }
  EXPECT_EQ(ask("DELETE", "/v1/cache", "root").status, 403);
  EXPECT_TRUE(engine_->erased.empty());
  EXPECT_EQ(ask("GET", "/nothing", "root").status, 404);
}

TEST_F(ServiceAccess, ReadyNamesTheModelToWhoMayCallIt) {
  const auto model = [this](const char* key) {
    HttpRequest request = RequestOf("GET", "/ready");
    request.api_key = key;
    const json body = json::parse(Ask(request).body);
    EXPECT_EQ(body["status"], "ready");
    return body.value("model", "");
  };
  EXPECT_EQ(model(""), "fake");
  ServerOptions options;
  options.api_keys = {"a"};
  options.admin_key = "root";
  Make(options);
  EXPECT_EQ(model(""), "");
  EXPECT_EQ(model("b"), "");
  EXPECT_EQ(model("a"), "fake");
  EXPECT_EQ(model("root"), "fake");
}

TEST_F(ServiceAccess, AnErasureIsAnsweredWhenItIsDone) {
  engine_->holds_erasures = true;
  Outcome outcome = service_->Handle(RequestOf("DELETE", "/v1/cache"));
  std::optional<HttpResponse> told;
  std::get<LaterAnswer>(outcome).begin([&](HttpResponse response) { told = std::move(response); });
  EXPECT_FALSE(told);
  engine_->erasing.front()({.tokens = 3});
  ASSERT_TRUE(told);
  EXPECT_EQ(json::parse(told->body)["tokens"], 3);
  service_->BeginDrain();
  EXPECT_EQ(Ask(RequestOf("DELETE", "/v1/cache")).status, 503);
}

TEST_F(ServiceAccess, BrowserRulesComeBeforeKeysAndPaths) {
  ServerOptions options;
  options.api_keys = {"a"};
  options.cors_origins = {"https://app.example"};
  Make(options);
  service_->ListensOnLoopback();
  for (const char* method : {"GET", "POST", "DELETE", "OPTIONS"}) {
    for (const char* path : {"/v1/cache", "/health", "/nothing"}) {
      HttpRequest request = RequestOf(method, path);
      request.host = "evil.example";
      request.origin = "https://app.example";
      EXPECT_EQ(service_->CheckHead(request, uint64_t{1} << 40)->status, 421) << method << path;
      request.host = "localhost";
      request.origin = "https://evil.example";
      EXPECT_EQ(service_->CheckHead(request, uint64_t{1} << 40)->status, 403) << method << path;
    }
  }
  HttpRequest request = RequestOf("OPTIONS", "/v1/cache");
  request.host = "localhost";
  request.origin = "https://app.example";
  EXPECT_EQ(service_->CheckHead(request, 0), std::nullopt);
}

TEST_F(ServiceAccess, AFileWithTooManyTenantsIsRefusedWhenItIsReloaded) {
  engine_->mutable_options().max_tenants = 2;
  const std::string path = testing::TempDir() + "/service_access_test.json";
  const auto write = [&](const char* text) {
    std::ofstream(path) << text;
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  };
  ServerOptions options;
  options.api_keys = {"a"};
  options.keys_path = path;
  Make(options);
  write(R"({"tenants": {"x": {}}})");
  EXPECT_TRUE(service_->ReloadKeys());
  EXPECT_TRUE(engine_->tenants.contains("x"));
  write(R"({"tenants": {"y": {}, "z": {}}})");
  const Status refused = service_->ReloadKeys();
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("at most 2 are allowed"), std::string::npos);
  EXPECT_TRUE(engine_->tenants.contains("x")) << "nothing has changed";
  std::filesystem::remove(path);
}

// Inverts SplitMix64's finaliser, to detect ids that are a mixed counter.
uint64_t Unmix64(uint64_t x) {
  x = (x ^ (x >> 31) ^ (x >> 62)) * 0x319642b2d24d8ec3ull;
  x = (x ^ (x >> 27) ^ (x >> 54)) * 0x96de1b173f119089ull;
  return (x ^ (x >> 30) ^ (x >> 60)) - 0x9e3779b97f4a7c15ull;
}

TEST_F(ServiceAccess, AnIdSaysNothingOfTheNext) {
  ASSERT_EQ(Unmix64(Mix64(12345)), 12345u);
  std::set<std::string> ids;
  uint64_t before = 0;
  for (int i = 0; i < 100; ++i) {
    Outcome outcome = service_->Handle(RequestOf("POST", "/v1/completions", R"({"prompt":[1]})"));
    const auto& start = std::get<GenerationStart>(outcome);
    Event event;
    event.finish_reason = FinishReason::kLength;
    event.last = true;
    start.answer->Take(0, event);
    const std::string id = json::parse(Joined(start.answer->Body()))["id"].get<std::string>();
    const std::string digits = id.substr(id.find('-') + 1);
    ASSERT_EQ(digits.size(), 32u) << id;
    EXPECT_EQ(digits.find_first_not_of("0123456789abcdef"), std::string::npos) << id;
    EXPECT_TRUE(ids.insert(digits).second);
    const uint64_t high = std::stoull(digits.substr(0, 16), nullptr, 16);
    const uint64_t low = std::stoull(digits.substr(16), nullptr, 16);
    EXPECT_GT(Unmix64(high) ^ before, uint64_t{1} << 20);
    EXPECT_NE(Unmix64(high) ^ Unmix64(low), ~uint64_t{0});
    before = Unmix64(high);
  }
}

}  // namespace
}  // namespace kvasir
