#include "server/session_routes.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>

#include "api/other_prompts.h"
#include "server/routes_for_test.h"

namespace kvasir {
namespace {

using nlohmann::json;

class SessionRoutesTest : public RoutesTest {
 protected:
  void AddRoutes() override {
    AddSessionRoutes({server_->generations, server_->preparer, server_->sessions, server_->texts},
                     &server_->table);
  }
  std::string Create(const json& body = {{"messages", {{{"role", "user"}, {"content", "a"}}}}}) {
    const json made = AskJson("POST", "/v1/sessions", body, 201);
    return "/v1/sessions/" + made["id"].get<std::string>();
  }
};

TEST_F(SessionRoutesTest, ASessionIsMadeChangedAndDeleted) {
  const std::string path = Create();
  EXPECT_EQ(AskJson("GET", "/v1/sessions")["data"].size(), 1u);
  EXPECT_EQ(AskJson("POST", path + "/messages",
                    {{"messages", {{{"role", "assistant"}, {"content", "b"}}}}})["messages"],
            2);
  EXPECT_EQ(AskJson("PUT", path + "/system", {{"content", "s"}})["messages"], 3);
  EXPECT_EQ(AskJson("PUT", path + "/messages/1", {{"content", "c"}, {"x", 1}})["ignored"],
            json({"x"}));
  const json whole = AskJson("GET", path + "?ids=true");
  ASSERT_EQ(whole["messages"].size(), 2u) << "later messages go";
  EXPECT_EQ(whole["messages"][1]["content"], "c");
  EXPECT_EQ(whole["ids"].size(), whole["tokens"]);
  EXPECT_EQ(AskJson("POST", path + "/fork", {{"messages", 1}}, 201)["messages"], 1);
  EXPECT_EQ(AskJson("POST", path + "/truncate", {{"messages", 1}})["messages"], 1);
  EXPECT_EQ(ErrorOf(path + "/truncate", json::object())["param"], "messages");
  EXPECT_EQ(AskJson("DELETE", path)["deleted"], true);
  EXPECT_EQ(Ask("GET", path).status, 404);
  caller_ = {.tenant = "other", .entry = nullptr};
  EXPECT_EQ(AskJson("GET", "/v1/sessions")["data"], json::array());
}

TEST_F(SessionRoutesTest, AGenerationAnswersTheLastMessageAndIsKept) {
  const std::string path = Create();
  EXPECT_EQ(ErrorOf(path + "/generate", {{"n", 2}})["param"], "n");
  EXPECT_EQ(ErrorOf(path + "/generate", {{"tools", json::array({json::object()})}})["param"],
            "tools");
  GenerationStart start = Start(path + "/generate", {{"max_tokens", 1}});
  ASSERT_EQ(start.requests.size(), 1u);
  Event event;
  event.tokens.push_back({98, "b"});
  event.text = "b";
  event.finish_reason = FinishReason::kLength;
  event.last = true;
  start.answer->Take(0, event);
  ASSERT_FALSE(start.answer->error()) << start.answer->error()->message;
  start.answer.reset();
  const json messages = AskJson("GET", path)["messages"];
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_EQ(messages[1]["content"], "b");
  EXPECT_EQ(messages[1]["generated"], true);
  EXPECT_EQ(ErrorOf(path + "/generate", json::object())["param"], "messages")
      << "nothing is there to answer";
}

TEST_F(SessionRoutesTest, AFunctionsResultIsKeptAsAToolsResult) {
  engine_->mutable_card().ctx_size = engine_->mutable_card().max_positions = 1 << 10;
  engine_->mutable_plan().groups.emplace_back();  // of all tokens
  Restart({});
  const std::string path = Create({{"messages",
                                    {{{"role", "user"}, {"content", "a"}},
                                     {{"role", "assistant"},
                                      {"content", nullptr},
                                      {"function_call", {{"name", "f"}, {"arguments", "{}"}}}},
                                     {{"role", "function"}, {"name", "f"}, {"content", "1"}}}}});
  EXPECT_EQ(AskJson("GET", path)["messages"][2]["role"], "tool");
}

TEST_F(SessionRoutesTest, WhatIsForgottenLeavesTheCacheAndEndsTheTurn) {
  const std::string path =
      Create({{"messages",
               {{{"role", "user"}, {"content", "a"}}, {{"role", "assistant"}, {"content", "b"}}}}});
  EXPECT_EQ(ErrorOf(path + "/forget", {{"index", 9}})["param"], "index");
  EXPECT_EQ(ErrorOf(path + "/forget", {{"segment", "s"}, {"index", 0}})["param"], "segment");
  engine_->erasure.tokens = 4;
  const json forgotten = AskJson("POST", path + "/forget", {{"index", 1}});
  EXPECT_EQ(forgotten["messages"], 1);
  EXPECT_EQ(forgotten["erased_tokens"], 4 * engine_->forgotten.size());
  EXPECT_GE(engine_->forgotten.size(), 1u);
  EXPECT_EQ(AskJson("GET", path)["messages"].size(), 1u);
}

// A tenant that leaves its share group leaves what its sessions have read in the group's cache.
TEST_F(SessionRoutesTest, ADeleteForgetsInTheCacheThatTheSessionWasReadIn) {
  const auto entry = std::make_shared<TenantEntry>();
  entry->name = "default";
  entry->rules.cache_owner = "group";
  caller_.entry = entry;
  const std::string path = Create();
  Event event;
  event.tokens.push_back({98, "b"});
  event.text = "b";
  event.finish_reason = FinishReason::kLength;
  event.last = true;
  for (const char* owner : {"group", "default"}) {
    GenerationStart start = Start(path + "/generate", {{"max_tokens", 1}});
    ASSERT_EQ(start.requests.size(), 1u);
    EXPECT_EQ(start.requests[0].tenant, "default");
    EXPECT_EQ(start.requests[0].cache_owner.value_or("default"), owner);
    start.answer->Take(0, event);
    start.answer.reset();
    caller_.entry = nullptr;  // it leaves
    if (owner == std::string_view("group")) {
      AskJson("POST", path + "/messages", {{"messages", {{{"role", "user"}, {"content", "c"}}}}});
    }
  }
  EXPECT_EQ(AskJson("DELETE", path)["deleted"], true);
  std::set<std::string> owners;
  for (const ForgetRequest& request : engine_->forgotten) owners.insert(request.owner);
  EXPECT_EQ(owners, (std::set<std::string>{"group", "default"}));
}

// The prompt is noted before it is read: its client may leave before there is an answer.
TEST_F(SessionRoutesTest, ADeleteForgetsInTheCacheInWhichAPromptWasBegun) {
  const auto entry = std::make_shared<TenantEntry>();
  entry->name = "default";
  entry->rules.cache_owner = "group";
  caller_.entry = entry;
  const std::string path = Create();
  Start(path + "/generate", {{"max_tokens", 1}}).answer.reset();
  caller_.entry = nullptr;  // it leaves the group
  EXPECT_EQ(AskJson("DELETE", path)["deleted"], true);
  ASSERT_EQ(engine_->forgotten.size(), 2u);
  EXPECT_EQ(engine_->forgotten[0].owner, "group");
  EXPECT_EQ(engine_->forgotten[1].owner, "default") << "where the next prompt would be read";
}

// What others pay for a delete is bounded: of long sessions that were never read it is enough to
// know with which messages they begin.
TEST_F(SessionRoutesTest, ADeleteRendersOnlySoMuchOfOtherSessions) {
  engine_->mutable_card().ctx_size = engine_->mutable_card().max_positions = 1 << 21;
  engine_->mutable_plan().groups.emplace_back();  // of all tokens
  Restart({});
  const std::string system(300, 's');
  const auto create = [&](const std::string& text) {
    return Create(
        {{"messages",
          {{{"role", "system"}, {"content", system}}, {{"role", "user"}, {"content", text}}}}});
  };
  const auto kept_tokens = [&](const std::string& path) {
    engine_->forgotten.clear();
    AskJson("DELETE", path);
    EXPECT_EQ(engine_->forgotten.size(), 1u);
    return engine_->forgotten.back().kept.at(0).size();
  };
  const std::string text(1000, 'a'), other = create(std::string(500, 'a') + "b");
  const size_t said = std::string("user:").size() + 500, rendered = kept_tokens(create(text));
  ASSERT_GT(rendered, said + system.size());
  const size_t begins = rendered - said;
  // Two that leave less than the smallest rendering counts.
  create("c" + std::string(600'000, 'c'));
  create("d" + std::string(OtherPrompts::kMostRenderedBytes - 601'000, 'd'));
  const size_t kept = kept_tokens(create(text));
  EXPECT_GE(kept, begins);
  EXPECT_LE(kept, begins + std::string("user:").size());
}

}  // namespace
}  // namespace kvasir
