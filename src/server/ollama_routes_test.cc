#include "server/ollama_routes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>

#include "server/routes_for_test.h"

namespace kvasir {
namespace {

using nlohmann::json;

class OllamaRoutesTest : public RoutesTest {
 protected:
  void AddRoutes() override {
    AddOllamaRoutes(server_->generations, server_->preparer, &server_->table);
  }
  static json Chat(const json& more = json::object()) {
    json body = {{"model", "fake"}, {"messages", {{{"role", "user"}, {"content", "a"}}}}};
    body.update(more);
    return body;
  }
};

TEST_F(OllamaRoutesTest, ListsTheModelUnderEachOfItsNames) {
  ServerOptions options;
  options.aliases = {"other"};
  Restart(options);
  engine_->mutable_plan().weights_bytes = 1000;
  engine_->mutable_plan().mapped_bytes = 24;
  engine_->mutable_card().content = "c0ffee";
  engine_->mutable_card().parameters = 1'250'000;
  const json models = AskJson("GET", "/api/tags")["models"];
  std::set<std::string> names;
  for (const json& model : models) {
    names.insert(model.at("name").get<std::string>());
    EXPECT_EQ(model.at("model"), model.at("name"));
    EXPECT_EQ(model.at("size"), 1024);
    EXPECT_EQ(model.at("digest"), "c0ffee");
    EXPECT_EQ(model.at("details").at("parameter_size"), "1.2M");
  }
  EXPECT_TRUE(names.contains("other:latest")) << models;
  EXPECT_EQ(names.size(), models.size());
  const json loaded = AskJson("GET", "/api/ps")["models"];
  ASSERT_EQ(loaded.size(), 1u);
  EXPECT_EQ(loaded[0]["name"], models[0]["name"]);
  EXPECT_EQ(loaded[0]["context_length"], engine_->card().ctx_size);
  EXPECT_EQ(loaded[0]["expires_at"], "9999-12-31T23:59:59Z") << "it stays loaded";
}

TEST_F(OllamaRoutesTest, ShowsWhatTheModelCanDo) {
  engine_->mutable_card().architecture = "llama";
  const json shown = AskJson("POST", "/api/show", {{"model", "fake:latest"}});
  EXPECT_EQ(shown["template"], std::string(kTinyTemplate));
  EXPECT_EQ(shown["model_info"]["llama.context_length"], engine_->card().ctx_size);
  const json& can = shown["capabilities"];
  EXPECT_NE(std::ranges::find(can, "completion"), can.end()) << can;
  EXPECT_NE(std::ranges::find(can, "tools"), can.end()) << can;
  EXPECT_EQ(std::ranges::find(can, "embedding"), can.end()) << can;
  engine_->mutable_card().decoder_start = 257;
  EXPECT_EQ(AskJson("POST", "/api/show", json::object())["capabilities"].size(), can.size() - 1);
  EXPECT_EQ(Ask("POST", "/api/show", {{"name", "unknown"}}).status, 404);
  EXPECT_EQ(Ask("POST", "/api/show", {{"model", 3}}).status, 400);
  EXPECT_EQ(AskText("POST", "/api/show", "{").status, 400);
}

TEST_F(OllamaRoutesTest, ToolsAreACapabilityWhereTheTemplateShowsThem) {
  server_.reset();
  auto plain = ChatTemplate::Parse("{% for m in messages %}{{ m['content'] }}{% endfor %}");
  ASSERT_TRUE(plain) << plain.error().message;
  template_ = std::move(*plain);
  engine_ = std::make_unique<FakeEngine>(tokenizer_.get(), template_.get());
  Restart({});
  EXPECT_EQ(AskJson("POST", "/api/show", json::object())["capabilities"],
            json::array({"completion"}));
}

TEST_F(OllamaRoutesTest, AChatAndATextStartAGeneration) {
  const GenerationStart chat =
      Start("/api/chat", Chat({{"options", {{"num_predict", 7}, {"temperature", 0.5}}}}));
  ASSERT_EQ(chat.requests.size(), 1u);
  // <|bos|> "user:a" <|end|> "assistant:"
  EXPECT_EQ(chat.requests[0].prompt.size(), 18u);
  EXPECT_EQ(chat.requests[0].max_tokens, 7u);
  EXPECT_EQ(chat.requests[0].sampling.temperature, 0.5f);
  EXPECT_TRUE(chat.answer->streams()) << "Ollama's answers stream unless they say no";
  EXPECT_FALSE(Start("/api/chat", Chat({{"stream", false}})).answer->streams());
  const GenerationStart text =
      Start("/api/generate", {{"model", "fake"}, {"prompt", "abc"}, {"raw", true}});
  ASSERT_EQ(text.requests.size(), 1u);
  EXPECT_EQ(text.requests[0].prompt, IdsOfBytes("abc"));
}

TEST_F(OllamaRoutesTest, ARequestWithoutAPromptSaysThatTheModelIsLoaded) {
  for (const char* path : {"/api/chat", "/api/generate"}) {
    const json answer = AskJson("POST", path, {{"model", "fake"}});
    EXPECT_EQ(answer["done"], true) << answer;
    EXPECT_EQ(answer["done_reason"], "load") << answer;
  }
  EXPECT_TRUE(engine_->submitted.empty());
}

TEST_F(OllamaRoutesTest, WhatChangesModelsIsRefused) {
  for (const char* path : {"/api/pull", "/api/push", "/api/create", "/api/copy", "/api/delete"}) {
    for (const char* method : {"POST", "DELETE"}) {
      const HttpResponse response = Ask(method, path, json::object());
      EXPECT_EQ(response.status, 501) << path;
      EXPECT_NE(response.body.find(path), std::string::npos) << response.body;
    }
  }
}

TEST_F(OllamaRoutesTest, EachPathHasErrorsThatItsClientsRead) {
  for (const Route& route : server_->table.all()) {
    EXPECT_EQ(route.errors, &kPlainErrors) << route.path;
    const bool generates = route.work == Route::kGeneration;
    EXPECT_EQ(route.access == Access::kTenant, generates) << route.path;
    EXPECT_EQ(route.for_model == Route::kTextModel, generates) << route.path;
  }
  const UnknownPaths* const unknown = server_->table.FindUnknown("/api/blobs/x");
  ASSERT_NE(unknown, nullptr);
  EXPECT_EQ(unknown->errors, &kPlainErrors);
  EXPECT_EQ(AskJson("GET", "/api/version")["version"], server_->options.version);
}

}  // namespace
}  // namespace kvasir
