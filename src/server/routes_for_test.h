// RoutesTest: the routes of one protocol over a FakeEngine, without a Service.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "access/key_ring.h"
#include "api/turn_preparer.h"
#include "kvasir/session.h"
#include "server/activity.h"
#include "server/fake_engine_for_test.h"
#include "server/generation_starter.h"
#include "server/kept_texts.h"
#include "server/route_table.h"
#include "server/served_model.h"
#include "server/slots.h"

namespace kvasir {

inline std::vector<TokenId> IdsOfBytes(std::string_view text) {
  std::vector<TokenId> ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

// A server's parts for one test. Keys are not checked: every caller is the tenant "default", unless
// a test says otherwise.
class RoutesTest : public testing::Test {
 protected:
  struct Server {
    Server(const ServerOptions& given, FakeEngine& engine)
        : options(given),
          model(*ServedModel::Make(options, engine)),
          keys(options.api_keys, options.admin_key, 1024,
               [](const TenantTable&) { return Status(); }),
          preparer(engine),
          slots(model.view().num_slots),
          generations(options, engine, model.view(), slots, nullptr) {
      EXPECT_TRUE(keys.Use(options.keys));
    }
    const ServerOptions options;
    const ServedModel model;
    KeyRing keys;
    Activity activity;
    TurnPreparer preparer;
    SessionStore sessions{SessionLimits{.max_responses = 1024}};
    SessionStore responses{sessions.Responses()};
    KeptTexts texts{1 << 20, 1 << 20, 1};
    Slots slots;
    GenerationStarter generations;
    RouteTable table;
  };

  void SetUp() override { Make({}); }
  // Adds the routes that the test is about to server_->table.
  virtual void AddRoutes() = 0;

  void Make(const ServerOptions& options, const std::string& tokenizer_json = TinyTokenizerJson()) {
    server_.reset();
    auto tokenizer = Tokenizer::Parse(tokenizer_json, kTinyTokenizerConfig);
    ASSERT_TRUE(tokenizer) << tokenizer.error().message;
    auto chat_template = ChatTemplate::Parse(kTinyTemplate);
    ASSERT_TRUE(chat_template) << chat_template.error().message;
    tokenizer_ = std::move(*tokenizer);
    template_ = std::move(*chat_template);
    engine_ = std::make_unique<FakeEngine>(tokenizer_.get(), template_.get());
    engine_->mutable_options().parallel = 3;
    Restart(options);
  }
  // Starts the server anew, with the engine as it is.
  void Restart(const ServerOptions& options) {
    server_ = std::make_unique<Server>(options, *engine_);
    AddRoutes();
  }

  Outcome Handle(const HttpRequest& request) {
    const Route* route = server_->table.Find(request);
    EXPECT_NE(route, nullptr) << request.method << " " << request.target;
    if (route == nullptr) return HttpResponse{.status = 0};
    const std::string_view path = PathOf(request.target);
    std::shared_ptr<SessionStore::Turn> turn;
    if (route->also == Route::kQueues) {
      const bool is_response = route->names == SessionKind::kResponse;
      SessionStore& store = is_response ? server_->responses : server_->sessions;
      auto queued = store.Queue(*caller_.tenant, SegmentOf(path, 2), [] {});
      if (!queued) return ErrorResponse(queued.error());
      turn = std::move(*queued);
    }
    return route->handler({request, path, caller_, turn, PieceSpace(), HeadSpace(), *engine_,
                           server_->options, server_->model.view()});
  }
  // Returns the whole answer; status 0: a generation, or one that comes later.
  HttpResponse Ask(const std::string& method, const std::string& target,
                   const nlohmann::json& body = nullptr) {
    return AskText(method, target, body.is_null() ? "" : body.dump());
  }
  HttpResponse AskText(const std::string& method, const std::string& target, std::string body) {
    const HttpRequest request = RequestOf(method, target, std::move(body));
    Outcome outcome = Handle(request);
    if (auto* response = std::get_if<HttpResponse>(&outcome)) {
      response->body += Joined(std::move(response->rest));
      return std::move(*response);
    }
    HttpResponse answer{.status = 0};
    if (auto* later = std::get_if<LaterAnswer>(&outcome)) {
      later->begin([&answer](HttpResponse response) {
        answer = std::move(response);
        answer.body += Joined(std::move(answer.rest));
      });
    }
    return answer;
  }
  nlohmann::json AskJson(const std::string& method, const std::string& target,
                         const nlohmann::json& body = nullptr, int status = 200) {
    const HttpResponse response = Ask(method, target, body);
    EXPECT_EQ(response.status, status) << method << " " << target << ": " << response.body;
    return nlohmann::json::parse(response.body, nullptr, false);
  }
  GenerationStart Start(const std::string& target, const nlohmann::json& body) {
    return StartText(target, body.dump());
  }
  GenerationStart StartText(const std::string& target, std::string body) {
    const HttpRequest request = RequestOf("POST", target, std::move(body));
    Outcome outcome = Handle(request);
    auto* start = std::get_if<GenerationStart>(&outcome);
    EXPECT_NE(start, nullptr) << std::get<HttpResponse>(outcome).body;
    return start ? std::move(*start) : GenerationStart{};
  }
  // Returns what an error says of the field that is wrong.
  static std::string ParamOf(const HttpResponse& response) {
    const nlohmann::json error = nlohmann::json::parse(response.body).at("error");
    return error.at("param").is_null() ? "" : error.at("param").get<std::string>();
  }
  nlohmann::json ErrorOf(const std::string& target, const nlohmann::json& body) {
    return nlohmann::json::parse(Ask("POST", target, body).body).value("error", nlohmann::json());
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<ChatTemplate> template_;
  std::unique_ptr<FakeEngine> engine_;
  std::unique_ptr<Server> server_;
  Caller caller_{.tenant = "default", .entry = nullptr};
};

}  // namespace kvasir
