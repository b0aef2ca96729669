#include "server/cache_routes.h"

#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/digest.h"
#include "server/routes_for_test.h"

namespace kvasir {
namespace {

using nlohmann::json;

class CacheRoutesTest : public RoutesTest {
 protected:
  void AddRoutes() override {
    AddCacheRoutes(*engine_, server_->keys, server_->activity,
                   {server_->sessions, server_->texts, server_->slots, server_->preparer},
                   &server_->table);
  }
};

TEST_F(CacheRoutesTest, AnErasureTakesTheTenantsStoresToo) {
  ASSERT_TRUE(
      server_->sessions.Create("default", SessionState{.setup = std::make_shared<SessionSetup>()}));
  ASSERT_TRUE(
      server_->sessions.Create("other", SessionState{.setup = std::make_shared<SessionSetup>()}));
  engine_->erasure.tokens = 3;
  const json erased = AskJson("DELETE", "/v1/cache");
  EXPECT_EQ(erased["sessions"], 1);
  EXPECT_EQ(erased["tokens"], 3);
  EXPECT_EQ(engine_->erased, std::vector<std::string>{"default"});
  EXPECT_EQ(server_->sessions.counts().sessions, 1u);
}

TEST_F(CacheRoutesTest, WhatAnotherMachineErasesTakesTheTenantsSessions) {
  engine_->remote.emplace();
  Restart({});
  const auto make = [&](const char* tenant) {
    return server_->sessions.Create(tenant,
                                    SessionState{.setup = std::make_shared<SessionSetup>()});
  };
  ASSERT_TRUE(make("default"));
  ASSERT_TRUE(make("other"));
  {
    const MutexLock lock(engine_->mutex);
    engine_->erased_elsewhere = {{Sha256Of("default"), 5}, {Sha256Of(OwnerOfGroup("g")), 6}};
  }
  for (int i = 0; i < 2000 && !engine_->ListErasedElsewhere().empty(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_TRUE(engine_->ListErasedElsewhere().empty()) << "the engine has to know that it is done";
  EXPECT_EQ(server_->sessions.counts().sessions, 1u);
  EXPECT_TRUE(engine_->erased.empty()) << "the engine has done its part";
}

TEST_F(CacheRoutesTest, AnErasureNamesATenantOrAGroup) {
  const auto status = [&](const char* query) {
    return Ask("DELETE", std::string("/v1/cache") + query).status;
  };
  EXPECT_EQ(status("?tenant=t&share_group=g"), 200) << "without keys all callers may";
  EXPECT_EQ(engine_->erased, (std::vector<std::string>{"t", OwnerOfGroup("g")}));
  EXPECT_EQ(status("?tenant=%20"), 400);
  for (const char* query : {"?tenent=t", "?tenant=t&all=1", "?id=t", "?Tenant=t"}) {
    const HttpResponse refused = Ask("DELETE", std::string("/v1/cache") + query);
    EXPECT_EQ(refused.status, 400) << query << ": it may mean less than all of the caller";
    EXPECT_FALSE(refused.refusal->field) << "no log has the client's word";
  }
  EXPECT_EQ(engine_->erased.size(), 2u);
  json erased = AskJson("DELETE", "/v1/cache?tenant=t");
  EXPECT_EQ(erased["erased"], false);
  EXPECT_EQ(erased["note"],
            "no key names the tenant \"t\", and nothing was stored under that name");
  erased = AskJson("DELETE", "/v1/cache?tenant=default");
  EXPECT_EQ(erased["erased"], true) << "the caller's own";
  EXPECT_FALSE(erased.contains("note"));
  engine_->erasure.disk_blocks = 1;
  erased = AskJson("DELETE", "/v1/cache?tenant=t");
  EXPECT_EQ(erased["erased"], true);
  EXPECT_EQ(erased["note"],
            "no key names the tenant \"t\": what was stored under that name before is erased");
  caller_ = {.tenant = std::nullopt, .is_admin = true, .entry = nullptr};
  EXPECT_EQ(status(""), 403) << "the admin key has no tenant";
  ServerOptions options;
  options.api_keys = {"a", "b"};
  Restart(options);
  EXPECT_EQ(status("?tenant=t"), 200);
  caller_ = {.tenant = "x", .entry = nullptr};
  EXPECT_EQ(status("?tenant=t"), 403);
}

TEST_F(CacheRoutesTest, ACallerSeesItsOwnSumsAndSequences) {
  engine_->sequences = {{.tenant = "default", .state = "decode"}, {.tenant = "other"}};
  EXPECT_EQ(AskJson("GET", "/v1/cache/sequences")["data"].size(), 1u);
  EXPECT_TRUE(AskJson("GET", "/v1/cache")["cache"].contains("blocks"));
  EXPECT_EQ(Ask("POST", "/v1/cache/flush").status, 400) << "there is no disk tier";
  ServerOptions options;
  options.api_keys = {"a", "b"};
  Restart(options);
  server_->activity.Add("default", {.prompt_tokens = 5}, 2);
  const json own = AskJson("GET", "/v1/cache")["cache"];
  EXPECT_FALSE(own.contains("blocks"));
  EXPECT_EQ(own["tokens"]["generated"], 2);
  server_->activity.Add("other", {.prompt_tokens = 9}, 1);
  EXPECT_EQ(AskJson("GET", "/v1/cache")["cache"]["last_hour"]["prompt"], 5);
  EXPECT_EQ(own["last_hour"]["prompt"], 5);
  EXPECT_EQ(own["last_hour"]["minutes"].size(), 60u);
  EXPECT_EQ(AskJson("GET", "/v1/cache/tenants")["data"].size(), 2u);
}

TEST_F(CacheRoutesTest, TenantsHaveAnEpochInAFleet) {
  ServerOptions options;
  options.api_keys = {"a", "b"};
  Restart(options);
  const auto tenants = [&] { return AskJson("GET", "/v1/cache/tenants")["data"]; };
  EXPECT_FALSE(tenants()[0].contains("remote_epoch"));
  engine_->remote.emplace();
  engine_->remote_epochs[tenants()[0]["tenant"].get<std::string>()] = 1700000000000;
  EXPECT_EQ(tenants()[0]["remote_epoch"], 1700000000000);
  EXPECT_TRUE(tenants()[1]["remote_epoch"].is_null()) << "it is not known yet";
  EXPECT_FALSE(tenants()[0].contains("remote_group_epoch"));
}

TEST_F(CacheRoutesTest, TenantsHaveTheEpochOfTheirShareGroup) {
  ServerOptions options;
  options.keys.tenants = {{.name = "red", .share_group = "pair"}, {.name = "blue"}};
  options.keys.tenants[0].rules.cache_owner = OwnerOfGroup("pair");
  Restart(options);
  engine_->remote.emplace();
  engine_->remote_epochs = {{"red", 3}, {"blue", 4}};
  const auto red = [&] {
    const json body = AskJson("GET", "/v1/cache/tenants");
    for (const json& row : body["data"]) {
      if (row["tenant"] == "red") return row;
      EXPECT_FALSE(row.contains("remote_group_epoch")) << row;
    }
    return json();
  };
  EXPECT_EQ(red()["remote_epoch"], 3);
  EXPECT_TRUE(red()["remote_group_epoch"].is_null()) << "it is not known yet";
  engine_->remote_epochs[OwnerOfGroup("pair")] = 7;
  EXPECT_EQ(red()["remote_group_epoch"], 7);
}

TEST_F(CacheRoutesTest, APrefixShowsTheTextThatAnOwnSessionHasRead) {
  engine_->prefixes.runs = {{.begin = 0, .tokens = IdsOfBytes("abc")},
                            {.parent = 0, .begin = 3, .tokens = IdsOfBytes("de")}};
  auto setup = std::make_shared<SessionSetup>();
  SessionState state{.setup = setup};
  state.paths = *AddPath(server_->sessions, {}, IdsOfBytes("abcd"), {}, {});
  const auto entry = server_->sessions.Create("default", std::move(state));
  ASSERT_TRUE(entry);
  const json runs = AskJson("GET", "/v1/cache/prefixes")["data"];
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[0]["text"], "abc");
  EXPECT_EQ(runs[0]["session"], entry->id);
  EXPECT_EQ(runs[1]["text"], "d") << "the session has not read more";
  caller_ = {.tenant = "other", .entry = nullptr};
  EXPECT_TRUE(AskJson("GET", "/v1/cache/prefixes")["data"][0]["text"].is_null());
}

TEST_F(CacheRoutesTest, ALimitOfPrefixesIsANumberInItsRange) {
  engine_->prefixes.runs = {{.begin = 0, .tokens = IdsOfBytes("abc")},
                            {.parent = 0, .begin = 3, .tokens = IdsOfBytes("de")}};
  const json one = AskJson("GET", "/v1/cache/prefixes?limit=1");
  EXPECT_EQ(one["data"].size(), 1u);
  EXPECT_EQ(one["has_more"], true);
  const json two = AskJson("GET", "/v1/cache/prefixes?limit=512");
  EXPECT_EQ(two["data"].size(), 2u);
  EXPECT_EQ(two["has_more"], false);
  for (const char* limit : {"0", "-1", "513", "99999999999999999999", "x", ""}) {
    const json refused =
        AskJson("GET", std::string("/v1/cache/prefixes?limit=") + limit, nullptr, 400);
    EXPECT_EQ(refused["error"]["param"], "limit") << limit;
  }
}

// A session that was edited a thousand times has read its beginning a thousand times.
TEST_F(CacheRoutesTest, OnlySoManyIdsOfSessionsAreComparedWithPrefixes) {
  std::vector<TokenId> beginning(10'000, 97);
  engine_->prefixes.runs = {{.begin = 0, .tokens = IdsOfBytes("b")},
                            {.begin = 0, .tokens = IdsOfBytes("a")}};
  SessionState state{.setup = std::make_shared<SessionSetup>()};
  state.paths = *AddPath(server_->sessions, {}, IdsOfBytes("b"), {}, {});
  for (TokenId i = 0; i < 200; ++i) {
    std::vector<TokenId> ids = beginning;
    ids.push_back(i);
    state.paths = *AddPath(server_->sessions, state.paths, std::move(ids), {}, {});
  }
  ASSERT_TRUE(server_->sessions.Create("default", std::move(state)));
  const json runs = AskJson("GET", "/v1/cache/prefixes")["data"];
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_TRUE(runs[0]["text"].is_null()) << "it was read before the others";
  EXPECT_EQ(runs[1]["text"], "a");
}

}  // namespace
}  // namespace kvasir
