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
    AddSessionRoutes(
        {server_->generations, server_->preparer, server_->keys, server_->sessions, server_->texts},
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
  EXPECT_FALSE(forgotten.contains("disk_blocks")) << "the server has no disk";
  EXPECT_EQ(AskJson("GET", path)["messages"].size(), 1u);
}

TEST_F(SessionRoutesTest, WhatLeftTheDiskAloneIsSaid) {
  engine_->disk = TierStats{};
  engine_->erasure.disk_blocks = 3;
  engine_->erasure.disk_bytes = 50;
  const auto check = [&](const json& answer) {
    const auto requests = engine_->forgotten.size();
    EXPECT_GE(requests, 1u);
    EXPECT_EQ(answer["erased_blocks"], 0);
    EXPECT_EQ(answer["disk_blocks"], 3 * requests);
    EXPECT_EQ(answer["disk_bytes"], 50 * requests);
    engine_->forgotten.clear();
  };
  const std::string path =
      Create({{"messages",
               {{{"role", "user"}, {"content", "a"}}, {{"role", "assistant"}, {"content", "b"}}}}});
  check(AskJson("POST", path + "/truncate", {{"messages", 1}, {"forget", true}}));
  check(AskJson("DELETE", path));
}

TEST_F(SessionRoutesTest, TurnsAndRangesAreForgottenAndTheFormsAreNamed) {
  engine_->mutable_card().ctx_size = engine_->mutable_card().max_positions = 1 << 10;
  engine_->mutable_plan().groups.emplace_back();  // of all tokens
  Restart({});
  json messages = json::array();
  for (const char* text : {"a", "b", "c", "d"}) {
    messages.push_back({{"role", "user"}, {"content", text}});
    messages.push_back({{"role", "assistant"}, {"content", text}});
  }
  const std::string path = Create({{"messages", messages}});
  const auto left = [&](const json& body) {
    EXPECT_EQ(AskJson("POST", path + "/forget", body)["object"], "session.forgotten");
    const json whole = AskJson("GET", path);
    std::string text;
    for (const json& message : whole["messages"]) {
      text += message["content"].get<std::string>();
    }
    return text;
  };
  EXPECT_EQ(left({{"last", 1}}), "aabbcc");
  EXPECT_EQ(left({{"from", 1}, {"to", 2}}), "abcc");
  EXPECT_EQ(left({{"index", -1}}), "abc");
  EXPECT_EQ(left({{"from", -2}}), "a");
  for (const json& body : {json(), json::object(), json{{"to", 1}}}) {  // json(): no bytes
    const std::string message = ErrorOf(path + "/forget", body)["message"];
    for (const char* form : {R"({"last": 1})", R"({"index": -1})", R"({"from": 3, "to": 4})"}) {
      EXPECT_NE(message.find(form), message.npos) << message;
    }
  }
  EXPECT_EQ(ErrorOf(path + "/forget", {{"last", 2}})["param"], "last");
  EXPECT_EQ(ErrorOf(path + "/forget", {{"last", 1}, {"index", 0}})["param"], "last");
  EXPECT_EQ(Ask("POST", path + "/forget", {{"last", 2}}).refusal->field, "last");
  // The name of a field that is not known is the client's text, which a log would keep.
  const HttpResponse unknown = Ask("POST", path + "/forget", {{"last", 1}, {"my secret", 0}});
  EXPECT_EQ(ParamOf(unknown), "my secret");
  EXPECT_FALSE(unknown.refusal->field);
}

TEST_F(SessionRoutesTest, AnIndexOfAnEditMayCountFromTheEnd) {
  const std::string path =
      Create({{"messages",
               {{{"role", "user"}, {"content", "a"}}, {{"role", "assistant"}, {"content", "b"}}}}});
  AskJson("PUT", path + "/messages/-1", {{"content", "c"}});
  AskJson("PUT", path + "/messages/-2", {{"content", "d"}, {"keep_later", true}});
  const json messages = AskJson("GET", path)["messages"];
  EXPECT_EQ(messages[0]["content"], "d");
  EXPECT_EQ(messages[1]["content"], "c");
  const auto error = [&](const std::string& index) {
    return AskJson("PUT", path + "/messages/" + index, {{"content", "e"}}, 400)["error"];
  };
  EXPECT_EQ(error("-3")["param"], "index");
  EXPECT_EQ(error("-3")["message"],
            "index: -3 names no message; the session has 2 messages: 0 to 1, or from its end -1 to "
            "-2");
  EXPECT_EQ(error("2")["message"], error("-3")["message"].get<std::string>().replace(7, 2, "2"));
  EXPECT_EQ(error("x")["message"],
            "index: 'x' is not the index of a message; the session has 2 messages: 0 to 1, or from "
            "its end -1 to -2");
  EXPECT_EQ(ErrorOf(path + "/forget", {{"last", 0}})["message"],
            "last: 0 is not an integer of at least 1");
}

TEST_F(SessionRoutesTest, WhatATruncateOrAnEditTakesBackIsErasedIfItIsAsked) {
  const auto make = [&] {
    return Create(
        {{"messages",
          {{{"role", "user"}, {"content", "a"}}, {{"role", "assistant"}, {"content", "b"}}}}});
  };
  const auto erased = [&](const char* method, const std::string& target, json body, bool forget) {
    engine_->forgotten.clear();
    if (forget) body["forget"] = true;
    const json answer = AskJson(method, target, body);
    EXPECT_EQ(answer["object"], "session");
    EXPECT_EQ(answer["messages"], 1);
    EXPECT_EQ(answer.contains("erased_blocks"), forget);
    return !engine_->forgotten.empty();
  };
  for (const bool forget : {false, true}) {
    EXPECT_EQ(erased("POST", make() + "/truncate", {{"messages", 1}}, forget), forget);
    EXPECT_EQ(erased("PUT", make() + "/messages/0", {{"content", "c"}}, forget), forget);
  }
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
  for (const ForgetRequest& request : engine_->forgotten) {
    EXPECT_EQ(request.first, 0u);
    EXPECT_EQ(request.ids.at(request.last), 257) << "the mark that ends the message";
  }
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
