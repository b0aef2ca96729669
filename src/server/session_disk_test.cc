// Kept sessions of a Service over a FakeEngine with a disk tier, and SessionDisk alone.
#include "server/session_disk.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/secret.h"
#include "http/request_memory.h"
#include "kvasir/session_file.h"
#include "server/fake_engine_for_test.h"

namespace kvasir {
namespace {

using nlohmann::json;

class SessionDiskTest : public testing::Test {
 protected:
  SessionDiskTest() {
    std::string pattern = testing::TempDir() + "/kvasir-service-XXXXXX";
    parent_ = mkdtemp(pattern.data());
    engine_.HaveDisk(parent_);
  }
  ~SessionDiskTest() override {
    service_.reset();
    std::filesystem::remove_all(parent_);
  }

  // Starts the server anew.
  void Restart(const ServerOptions& options = {}) {
    service_.reset();
    service_ = *Service::Make(options, engine_);
  }
  json Ask(const std::string& method, const std::string& target, int status = 200,
           const std::string& key = "", const std::string& body = "") {
    HttpRequest request = RequestOf(method, target, body);
    request.api_key = key;
    const HttpResponse response = AskService(*service_, request);
    EXPECT_EQ(response.status, status) << response.body;
    return json::parse(response.body);
  }
  std::unique_ptr<SessionFile> OpenedByAnother() {
    auto opened = SessionFile::Open(SessionFileOptionsOf(engine_));
    EXPECT_TRUE(opened) << opened.error().message;
    return std::move(*opened);
  }
  static ServerOptions WithoutSessions() {
    ServerOptions options;
    options.max_sessions = options.max_responses = 0;
    return options;
  }

  std::filesystem::path parent_;
  const std::unique_ptr<Tokenizer> tokenizer_ =
      *Tokenizer::Parse(TinyTokenizerJson(), kTinyTokenizerConfig);
  const std::unique_ptr<ChatTemplate> template_ = *ChatTemplate::Parse(kTinyTemplate);
  FakeEngine engine_{tokenizer_.get(), template_.get()};
  std::unique_ptr<Service> service_;
};

TEST_F(SessionDiskTest, AServerThatKeepsNoneErasesThoseOfBefore) {
  Restart();
  const json made = Ask("POST", "/v1/sessions", 201);
  ASSERT_EQ(made["durable"], true);
  Restart(WithoutSessions());
  {
    const auto other = OpenedByAnother();
    const std::string text = Ask("DELETE", "/v1/cache", 503)["error"]["message"];
    EXPECT_NE(text.find("kept sessions: another server has their file"), text.npos) << text;
    EXPECT_EQ(text.find(parent_), text.npos) << text;
  }
  EXPECT_EQ(Ask("DELETE", "/v1/cache")["erased"], true);
  Restart();
  EXPECT_EQ(Ask("GET", "/v1/sessions")["data"], json::array());
}

TEST_F(SessionDiskTest, EachKeyIsToldWhySessionsAreNotKept) {
  const auto other = OpenedByAnother();
  ServerOptions options;
  Restart(options);
  const json whole = Ask("GET", "/v1/cache")["cache"]["disk"];
  EXPECT_EQ(whole["cap_bytes"], 64 << 20);
  options.api_keys = {"a", "b"};
  Restart(options);
  const json own = Ask("GET", "/v1/cache", 200, "a")["cache"]["disk"];
  EXPECT_EQ(own, json({{"no_sessions", whole["no_sessions"]}}));
  EXPECT_NE(whole["no_sessions"].get<std::string>().find("another server uses"), std::string::npos);
}

TEST_F(SessionDiskTest, WhatReadsOrWritesFilesWaitsForTheDisk) {
  const auto waits = [&](const char* method, const char* target) {
    return service_->WaitsForDisk(RequestOf(method, target));
  };
  for (const bool keeps : {true, false}) {
    Restart(keeps ? ServerOptions() : WithoutSessions());
    EXPECT_TRUE(waits("DELETE", "/v1/cache")) << "it removes keys of a file that is not open";
    EXPECT_TRUE(waits("POST", "/slots/0?action=save"));
    EXPECT_FALSE(waits("GET", "/v1/cache"));
    EXPECT_FALSE(waits("POST", "/v1/chat/completions"));
    EXPECT_EQ(waits("POST", "/v1/sessions"), keeps);
  }
  engine_.disk.reset();
  Restart();
  EXPECT_FALSE(waits("DELETE", "/v1/cache")) << "those threads were not started";
}

TEST_F(SessionDiskTest, AFileThatAnotherProcessHasIsOpenedBySweepLater) {
  SessionStore keeps_none{SessionLimits{.max_sessions = 0}};
  SessionDisk none(engine_, keeps_none);
  none.Open();
  EXPECT_EQ(keeps_none.file(), nullptr);
  EXPECT_FALSE(none.waits());
  SessionStore sessions{SessionLimits()};
  SessionDisk disk(engine_, sessions);
  {
    const auto other = OpenedByAnother();
    disk.Open();
    EXPECT_TRUE(disk.waits());
    ASSERT_TRUE(sessions.no_file());
    EXPECT_EQ(sessions.no_file()->code, Code::kUnavailable);
  }
  disk.Sweep();
  EXPECT_FALSE(disk.waits());
  EXPECT_NE(sessions.file(), nullptr);
}

// Else one of three servers on a folder could get the blocks and another one the sessions, for
// good.
TEST_F(SessionDiskTest, WhoWaitsForTheBlocksDoesNotTakeTheSessions) {
  using State = TierStats::State;
  for (const State later : {State::kOn, State::kFull, State::kBroken}) {
    SessionStore sessions{SessionLimits()};
    SessionDisk disk(engine_, sessions);
    engine_.disk->state = State::kWaiting;
    disk.Open();
    disk.Sweep();
    EXPECT_TRUE(disk.waits());
    EXPECT_EQ(sessions.file(), nullptr);
    EXPECT_EQ(sessions.no_file().value().code, Code::kUnavailable);
    engine_.disk->state = later;
    disk.Sweep();
    EXPECT_FALSE(disk.waits());
    EXPECT_NE(sessions.file(), nullptr);
  }
}

// A tier that fails leaves its blocks for a minute. Else the server that takes them would wait for
// the sessions as long as this one runs.
TEST_F(SessionDiskTest, WhoLosesTheBlocksGivesTheSessionsUp) {
  using State = TierStats::State;
  SessionStore sessions{SessionLimits()};
  SessionDisk disk(engine_, sessions);
  disk.Open();
  ASSERT_NE(sessions.file(), nullptr);
  SessionState state;
  state.setup = *sessions.Keep(SessionSetup());
  const std::string id = sessions.Create("t", std::move(state))->id;
  engine_.disk->state = State::kBroken;
  disk.Sweep();
  EXPECT_NE(sessions.file(), nullptr) << "no other process has the blocks";
  engine_.disk->state = State::kWaiting;
  disk.Sweep();
  EXPECT_TRUE(disk.waits());
  EXPECT_EQ(sessions.Find("t", id).error().code, Code::kUnavailable);
  EXPECT_EQ(OpenedByAnother()->List()->size(), 1u);
  engine_.disk->state = State::kOn;
  disk.Sweep();
  EXPECT_FALSE(disk.waits());
  EXPECT_TRUE(sessions.Find("t", id));
}

// What another secret has made may be any tenant's.
TEST_F(SessionDiskTest, AListSaysHowManyRowsItDoesNotShow) {
  Restart();
  Ask("POST", "/v1/sessions", 201);
  const json whole = Ask("GET", "/v1/sessions");
  EXPECT_EQ(whole["data"].size(), 1u);
  for (const char* name : {"damaged", "newer", "unreadable"}) EXPECT_EQ(whole[name], 0) << name;
  service_.reset();
  std::filesystem::remove_all(parent_ / "state");
  ASSERT_TRUE(LoadOrCreateSecret(parent_ / "state"));
  ServerOptions options;
  options.api_keys = {"a"};
  for (const bool is_alone : {true, false}) {
    if (!is_alone) options.api_keys.emplace_back("b");
    Restart(options);
    const json list = Ask("GET", "/v1/sessions", 200, "a");
    EXPECT_EQ(list["data"], json::array());
    EXPECT_EQ(list.value("unreadable", -1), is_alone ? 1 : -1);
  }
}

// One that is in the file alone is as long as it may be: the lane of small requests must not read
// it.
TEST_F(SessionDiskTest, WhatReadsSessionsFromTheFileIsLargeWork) {
  Restart();
  const std::string id = Ask("POST", "/v1/sessions", 201)["id"], path = "/v1/sessions/" + id;
  const auto is_large = [&](const char* method, const std::string& target) {
    return service_->WorkBytes(RequestOf(method, target)) > kSmallBodyBytes;
  };
  const auto check = [&](bool expected) {
    EXPECT_EQ(is_large("GET", "/v1/sessions"), expected);
    EXPECT_EQ(is_large("GET", path), expected);
    EXPECT_EQ(is_large("DELETE", path), expected);
    EXPECT_EQ(is_large("POST", path + "/forget"), expected);
    EXPECT_EQ(is_large("POST", path + "/generate"), expected);
  };
  check(false);
  Restart();
  check(true);
  EXPECT_EQ(Ask("GET", "/v1/sessions")["data"][0]["id"], id);
  check(true);
  Ask("GET", path);
  check(false);
}

// What it has read is not known then, so all that its tenant has cached goes with it.
TEST_F(SessionDiskTest, ADeleteWithoutMemoryToReadTheSessionEndsAllTheSame) {
  engine_.mutable_card().ctx_size = engine_.mutable_card().max_positions = 1 << 20;
  engine_.mutable_plan().groups.emplace_back();  // of all tokens
  Restart();
  const json body = {{"messages", {{{"role", "user"}, {"content", std::string(200'000, 'a')}}}}};
  const std::string id = Ask("POST", "/v1/sessions", 201, "", body.dump())["id"];
  engine_.mutable_options().session_memory_bytes = 64 << 10;
  Restart();
  EXPECT_NE(Ask("GET", "/v1/sessions/" + id, 429)["error"]["message"], "");
  EXPECT_TRUE(engine_.erased.empty());
  const json answer = Ask("DELETE", "/v1/sessions/" + id);
  EXPECT_EQ(answer["deleted"], true);
  EXPECT_EQ(answer["cache_erased"], true);
  EXPECT_EQ(engine_.erased, std::vector<std::string>{"default"});
  Ask("GET", "/v1/sessions/" + id, 404);
  Restart();
  Ask("GET", "/v1/sessions/" + id, 404);
}

}  // namespace
}  // namespace kvasir
