#include "server/service.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "base/rounds_for_test.h"
#include "server/fake_engine_for_test.h"

namespace kvasir {
namespace {

using nlohmann::json;

// A Service in front of a FakeEngine with the tiny tokenizer and template.
class ServiceTest : public testing::Test {
 protected:
  void SetUp() override { Make({}); }

  void Make(const ServerOptions& options) {
    auto tokenizer = Tokenizer::Parse(TinyTokenizerJson(), kTinyTokenizerConfig);
    ASSERT_TRUE(tokenizer) << tokenizer.error().message;
    auto chat_template = ChatTemplate::Parse(kTinyTemplate);
    ASSERT_TRUE(chat_template) << chat_template.error().message;
    service_.reset();
    tokenizer_ = std::move(*tokenizer);
    template_ = std::move(*chat_template);
    engine_ = std::make_unique<FakeEngine>(tokenizer_.get(), template_.get());
    service_ = *Service::Make(options, *engine_);
  }

  HttpResponse Ask(const HttpRequest& request) { return AskService(*service_, request); }
  HttpResponse Ask(std::string method, std::string target, std::string body = "") {
    return Ask(RequestOf(std::move(method), std::move(target), std::move(body)));
  }

  GenerationStart Start(const std::string& target, const json& body) {
    Outcome outcome = service_->Handle(RequestOf("POST", target, body.dump()));
    auto* start = std::get_if<GenerationStart>(&outcome);
    EXPECT_NE(start, nullptr) << std::get<HttpResponse>(outcome).body;
    return start ? std::move(*start) : GenerationStart{};
  }

  static std::string ParamOf(const HttpResponse& response) {
    const json error = json::parse(response.body).at("error");
    return error.at("param").is_null() ? "" : error.at("param").get<std::string>();
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<ChatTemplate> template_;
  std::unique_ptr<FakeEngine> engine_;
  std::unique_ptr<Service> service_;
};

TEST_F(ServiceTest, ATenantComesFromTheKeyOnly) {
  ServerOptions options;
  options.api_keys = {"alpha", "beta"};
  Make(options);
  HttpRequest request =
      RequestOf("POST", "/v1/completions", R"({"prompt":"a","tenant":"default","user":"default"})");
  EXPECT_EQ(Ask(request).status, 401);
  std::vector<std::string> tenants;
  for (const char* key : {"Bearer alpha", "bearer alpha", "Bearer beta"}) {
    request.authorization = key;
    Outcome outcome = service_->Handle(request);
    tenants.push_back(std::get<GenerationStart>(outcome).requests[0].tenant);
  }
  EXPECT_EQ(tenants[0], tenants[1]);
  EXPECT_NE(tenants[0], tenants[2]);
  EXPECT_NE(tenants[0], "default");
  EXPECT_EQ(tenants[0].find("alpha"), std::string::npos);
  HttpRequest erase = RequestOf("DELETE", "/v1/cache");
  erase.api_key = "beta";
  engine_->erasure = {.blocks = 1, .tokens = 17, .cursors = 2};
  const HttpResponse erased = Ask(erase);
  EXPECT_EQ(erased.status, 200);
  EXPECT_EQ(engine_->erased, std::vector<std::string>{tenants[2]});
  EXPECT_EQ(json::parse(erased.body), json({{"erased", true},
                                            {"tiers", {"pool"}},
                                            {"blocks", 1},
                                            {"tokens", 17},
                                            {"cursors", 2},
                                            {"sessions", 0}}));
}

TEST_F(ServiceTest, AHeadIsRefusedBeforeItsBodyIsRead) {
  const HttpRequest post = RequestOf("POST", "/v1/completions");
  EXPECT_EQ(service_->CheckHead(post, uint64_t{8} << 20), std::nullopt);
  EXPECT_EQ(service_->CheckHead(post, (uint64_t{8} << 20) + 1)->status, 413);
  EXPECT_EQ(service_->CheckHead(RequestOf("GET", "/v1/completions"), 0)->status, 405);
  EXPECT_EQ(service_->CheckHead(RequestOf("GET", "/no"), 0)->status, 404);
  const auto compact = service_->CheckHead(RequestOf("POST", "/v1/responses/compact"), 0);
  EXPECT_EQ(compact->status, 404) << "no response has this id";
  EXPECT_NE(compact->body.find("unknown path /v1/responses/compact"), std::string::npos);
  const std::string one = "/v1/responses/resp_" + std::string(32, '0');
  EXPECT_EQ(service_->CheckHead(RequestOf("POST", one), 0)->status, 405);
  service_->BeginDrain();
  EXPECT_EQ(service_->CheckHead(post, 5)->status, 503);
  EXPECT_EQ(Ask("GET", "/ready").status, 503);
  EXPECT_EQ(Ask("GET", "/health").status, 200);
}

TEST_F(ServiceTest, OriginsCanBeNarrowed) {
  const auto allowed = [this](const ServerOptions& options, std::string origin) -> std::string {
    Make(options);
    HttpRequest request = RequestOf("GET", "/health");
    request.origin = std::move(origin);
    for (const auto& [name, value] : service_->CommonHeaders(request)) {
      if (name == "Access-Control-Allow-Origin") return value;
    }
    return "";
  };
  ServerOptions options;
  EXPECT_EQ(allowed(options, "http://a"), "*");
  EXPECT_EQ(allowed(options, ""), "");
  options.cors_origins = {"http://a", "http://b"};
  EXPECT_EQ(allowed(options, "http://b"), "http://b");
  EXPECT_EQ(allowed(options, "http://c"), "");
  options.cors_origins = {"none"};
  EXPECT_EQ(allowed(options, "http://a"), "");
}

TEST_F(ServiceTest, AModelWithoutATokenizerTakesIds) {
  engine_ = std::make_unique<FakeEngine>(nullptr, nullptr);
  service_ = *Service::Make({}, *engine_);
  EXPECT_EQ(Ask("POST", "/v1/completions", R"({"prompt":"a"})").status, 400);
  EXPECT_EQ(
      Ask("POST", "/v1/chat/completions", R"({"messages":[{"role":"user","content":"a"}]})").status,
      400);
  EXPECT_EQ(Ask("POST", "/tokenize", R"({"content":"a"})").status, 400);
  EXPECT_EQ(Ask("POST", "/detokenize", R"({"tokens":[1]})").status, 400);
  const GenerationStart start = Start("/v1/completions", {{"prompt", {1, 2}}});
  Event event;
  event.tokens.push_back({5, ""});
  event.finish_reason = FinishReason::kLength;
  event.last = true;
  start.answer->Take(0, event);
  const json choice = json::parse(Joined(start.answer->Body()))["choices"][0];
  EXPECT_EQ(choice["tokens"], json({5}));
  EXPECT_EQ(choice["text"], "");
}

// What was said must be deletable, however long it is.
TEST_F(ServiceTest, ADeleteIsNotRefusedForItsMemory) {
  engine_->mutable_card().ctx_size = engine_->mutable_card().max_positions = 1 << 23;
  service_ = *Service::Make({}, *engine_);
  constexpr size_t kText = Rounds(1 << 20, 1 << 18);
  const json message = {{"role", "user"}, {"content", std::string(kText, 'a')}};
  const json body = {{"messages", {message, message, message, message}}};
  const std::string id = json::parse(Ask("POST", "/v1/sessions", body.dump()).body)["id"];
  const HttpRequest erase = RequestOf("DELETE", "/v1/sessions/" + id);
  MemoryQuota quota(kText);
  QuotaShare share;
  auto turn = service_->AwaitTurn(erase, [] {});
  ASSERT_TRUE(turn);
  EXPECT_GT(service_->WorkBytes(erase), 4 * kText);
  Outcome outcome = service_->Prepare(erase, quota, &share, *turn);
  auto* later = std::get_if<LaterAnswer>(&outcome);
  ASSERT_NE(later, nullptr) << std::get<HttpResponse>(outcome).body;
  engine_->erasure.tokens = 7;
  HttpResponse answer;
  later->begin([&](HttpResponse response) { answer = std::move(response); });
  EXPECT_EQ(answer.status, 200);
  const json told = json::parse(answer.body);
  EXPECT_EQ(told["deleted"], true);
  EXPECT_EQ(told["cache_erased"], true);
  EXPECT_EQ(told["erased_tokens"], 7);
  EXPECT_EQ(engine_->erased, std::vector<std::string>{"default"});
  EXPECT_EQ(json::parse(Ask("GET", "/v1/sessions").body)["data"], json::array());
}

// Memory that other calls have comes back, so a delete waits for it and takes what was asked.
TEST_F(ServiceTest, ADeleteForWhichOthersLeaveNoMemoryTakesNothing) {
  engine_->mutable_card().ctx_size = engine_->mutable_card().max_positions = 1 << 23;
  service_ = *Service::Make({}, *engine_);
  const json message = {{"role", "user"}, {"content", std::string(256 << 10, 'a')}};
  const json body = {{"messages", {message}}};
  const std::string id = json::parse(Ask("POST", "/v1/sessions", body.dump()).body)["id"];
  const HttpRequest erase = RequestOf("DELETE", "/v1/sessions/" + id);
  MemoryQuota quota(64 << 20);
  QuotaShare others(quota), share;
  const auto answer = [&] {
    const auto turn = service_->AwaitTurn(erase, [] {});
    Outcome outcome = service_->Prepare(erase, quota, &share, *turn);
    if (auto* now = std::get_if<HttpResponse>(&outcome)) return std::move(*now);
    HttpResponse later;
    std::get<LaterAnswer>(outcome).begin([&](HttpResponse got) { later = std::move(got); });
    return later;
  };
  ASSERT_TRUE(others.Resize((64 << 20) - (128 << 10)));
  const HttpResponse refused = answer();
  EXPECT_EQ(refused.status, 503);
  EXPECT_NE(refused.body.find("try again"), std::string::npos);
  EXPECT_EQ(Ask("GET", "/v1/sessions/" + id).status, 200);
  EXPECT_TRUE(engine_->erased.empty());
  EXPECT_TRUE(engine_->forgotten.empty());
  others.Resize(0);
  const HttpResponse deleted = answer();
  EXPECT_EQ(deleted.status, 200) << deleted.body;
  EXPECT_FALSE(json::parse(deleted.body).contains("cache_erased"));
  EXPECT_TRUE(engine_->erased.empty());
  EXPECT_EQ(engine_->forgotten.size(), 1u);
}

}  // namespace
}  // namespace kvasir
