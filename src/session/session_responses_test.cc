// Stored responses in a SessionStore: apart from sessions, and in each other's way alone.
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "base/own_clock.h"
#include "session/session_folder_for_test.h"

namespace kvasir {
namespace {

std::string IdOf(int number) { return "resp_" + std::to_string(number); }

Status StoreText(SessionStore& store, const std::string& id, const std::string& text,
                 const std::string& tenant = "t") {
  return store.Store(tenant, id, store.Removals(tenant),
                     [&](SessionStore& own) -> Result<SessionState> {
                       SessionState state = FreshState(own);
                       state.response = *own.Keep(ResponseBody("{\"a\":1}"));
                       return Append(own, state, OneSaid("user", text));
                     });
}

bool Has(SessionStore& store, const std::string& id, const std::string& tenant = "t") {
  return store.Find(tenant, id).has_value();
}

TEST(SessionResponses, AreNoSessionsAndBelongToTheirTenant) {
  SessionStore sessions({.max_sessions = 1, .max_responses = 4});
  SessionStore responses = sessions.Responses();
  ASSERT_TRUE(StoreText(responses, IdOf(1), "a"));
  EXPECT_EQ(responses.Find("t", IdOf(1))->state->response->json, "{\"a\":1}");
  EXPECT_TRUE(responses.FindLoaded("t", IdOf(1)));
  EXPECT_FALSE(sessions.FindLoaded("t", IdOf(1)));
  EXPECT_FALSE(Has(sessions, IdOf(1)));
  EXPECT_FALSE(sessions.Queue("t", IdOf(1), [] {}));
  EXPECT_TRUE(sessions.List("t", std::nullopt, 9)->entries.empty());
  EXPECT_TRUE(sessions.Loaded("t", 9).empty());
  EXPECT_EQ(sessions.OthersOf("t", "").size(), 1u);  // a forget of a session leaves its text
  // The place of the session is free.
  const auto session = sessions.Create("t", FreshState(sessions));
  ASSERT_TRUE(session);
  EXPECT_FALSE(Has(responses, session->id));
  EXPECT_EQ(sessions.counts().sessions, 1u);
  EXPECT_EQ(sessions.counts().responses, 1u);
  const auto foreign = responses.Find("other", IdOf(1)), unknown = responses.Find("t", IdOf(2));
  ASSERT_FALSE(foreign);
  EXPECT_EQ(foreign.error().text(), unknown.error().text());
  {
    const auto turn = *responses.Queue("t", IdOf(1), [] {});
    EXPECT_TRUE(turn->Remove());
  }
  EXPECT_EQ(responses.Find("t", IdOf(1)).error().text(), unknown.error().text());
  EXPECT_EQ(sessions.counts().responses, 0u);
}

TEST(SessionResponses, TheOneUsedLongestAgoGoes) {
  SessionStore store({.max_responses = 2});
  SessionStore responses = store.Responses();
  ASSERT_TRUE(StoreText(responses, IdOf(1), "a"));
  ASSERT_TRUE(StoreText(responses, IdOf(2), "b"));
  EXPECT_TRUE(Has(responses, IdOf(1)));  // used now
  ASSERT_TRUE(StoreText(responses, IdOf(3), "c"));
  EXPECT_TRUE(Has(responses, IdOf(1)) && !Has(responses, IdOf(2)) && Has(responses, IdOf(3)));
  // One that a call has the turn of stays.
  const auto turn = *responses.Queue("t", IdOf(1), [] {});
  EXPECT_TRUE(Has(responses, IdOf(3)));
  ASSERT_TRUE(StoreText(responses, IdOf(4), "d"));
  EXPECT_TRUE(Has(responses, IdOf(1)) && !Has(responses, IdOf(3)) && Has(responses, IdOf(4)));
  SessionStore none({.max_responses = 0});
  EXPECT_EQ(StoreText(none, IdOf(1), "a").error().code, Code::kExhausted);
}

TEST(SessionResponses, NeverGoForAnotherTenant) {
  SessionStore store({.max_responses = 8});
  store.SetTenants({{"t", {}}, {"u", {}}});  // 2 for each, and 2 of the others at most
  SessionStore responses = store.Responses();
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(StoreText(responses, IdOf(i), "a", "u"));
  for (int i = 10; i < 30; ++i) ASSERT_TRUE(StoreText(responses, IdOf(i), "a"));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Has(responses, IdOf(i), "u")) << i;
  size_t own = 0;
  for (int i = 10; i < 30; ++i) own += Has(responses, IdOf(i));
  EXPECT_EQ(own, 4u);
  EXPECT_TRUE(Has(responses, IdOf(29)));
}

TEST(SessionResponses, TakeHalfOfTheMemoryAtMost) {
  SessionStore store({.max_responses = 1000, .memory_bytes = 200'000});
  SessionStore responses = store.Responses();
  for (int i = 0; i < 40; ++i) {
    ASSERT_TRUE(StoreText(responses, IdOf(i), std::string(9000, 'x')));
    EXPECT_LE(store.counts().bytes, 100'000u);
  }
  EXPECT_GT(store.counts().bytes, 50'000u);
  EXPECT_TRUE(Has(responses, IdOf(39)) && !Has(responses, IdOf(0)));
  // Sessions have all that is left, and then responses go for each other.
  std::vector<std::string> sessions;
  for (;;) {
    SessionStore own = store.Of("t");
    auto state = Append(own, FreshState(own), OneSaid("user", std::string(9000, 'x')));
    if (!state) break;
    auto made = store.Create("t", std::move(*state));
    if (!made) break;
    sessions.push_back(made->id);
  }
  EXPECT_GT(sessions.size(), 8u);
  ASSERT_TRUE(StoreText(responses, IdOf(99), std::string(9000, 'y')));
  for (const std::string& id : sessions) EXPECT_TRUE(Has(store, id));
  // What does not fit takes nothing with it that is another's.
  EXPECT_EQ(StoreText(responses, IdOf(100), std::string(150'000, 'z')).error().code,
            Code::kExhausted);
  for (const std::string& id : sessions) EXPECT_TRUE(Has(store, id));
  ASSERT_TRUE(store.RemoveAll("t"));
  EXPECT_EQ(store.counts().bytes, 0u);
}

TEST(SessionResponses, SharedPartsAreCountedOnceAndUntilTheLastOneGoes) {
  SessionStore store({.max_responses = 9});
  SessionStore responses = store.Responses();
  ASSERT_TRUE(StoreText(responses, IdOf(1), std::string(9000, 'x')));
  const uint64_t one = store.counts().bytes;
  const auto first = responses.Find("t", IdOf(1))->state;
  const auto added = std::make_shared<const SessionMessage>(Said("user", std::string(500, 'y')));
  const auto make = [&](SessionStore& own) -> Result<SessionState> {
    SessionState state = *first;
    state.messages.push_back(*own.KeepShared(added));
    return state;
  };
  ASSERT_TRUE(responses.Store("t", IdOf(2), 0, make));
  EXPECT_LT(store.counts().bytes, one + 2500);
  {
    const auto turn = *responses.Queue("t", IdOf(1), [] {});
    ASSERT_TRUE(turn->Remove());
  }
  EXPECT_GT(store.counts().bytes, 9500u);
  ASSERT_TRUE((*responses.Queue("t", IdOf(2), [] {}))->Remove());
  EXPECT_LT(store.counts().bytes, one);  // `first`, which this test has
}

TEST(SessionResponses, AreNotStoredAfterAllOfTheTenantWasRemoved) {
  SessionStore store({.max_responses = 9});
  SessionStore responses = store.Responses();
  const uint64_t before = responses.Removals("t");
  const auto make = [](SessionStore& own) -> Result<SessionState> { return FreshState(own); };
  ASSERT_TRUE(store.RemoveAll("t"));
  EXPECT_EQ(responses.Store("t", IdOf(1), before, make).error().code, Code::kCancelled);
  EXPECT_FALSE(Has(responses, IdOf(1)));
  EXPECT_EQ(store.counts().bytes, 0u);
  EXPECT_TRUE(responses.Store("u", IdOf(2), 0, make)) << "another tenant";
  EXPECT_TRUE(responses.Store("t", IdOf(3), responses.Removals("t"), make));
}

TEST(SessionResponses, AreNotStoredAfterTheOneBeforeThemWasRemoved) {
  SessionStore store({.max_responses = 9});
  SessionStore responses = store.Responses();
  const auto make = [](SessionStore& own) -> Result<SessionState> { return FreshState(own); };
  for (const int id : {1, 2}) ASSERT_TRUE(responses.Store("t", IdOf(id), 0, make));
  ASSERT_TRUE((*responses.Queue("t", IdOf(1), [] {}))->Remove());
  EXPECT_EQ(responses.Store("t", IdOf(3), 0, make, IdOf(1)).error().code, Code::kCancelled);
  EXPECT_FALSE(Has(responses, IdOf(3)));
  EXPECT_TRUE(responses.Store("t", IdOf(4), 0, make, IdOf(2)));
  EXPECT_TRUE(responses.Store("u", IdOf(5), 0, make, IdOf(1))) << "another tenant's id";
}

TEST(SessionResponses, WhatWasRemovedBeforeThemIsKnownHoweverManyGo) {
  SessionStore store({.max_responses = 900});
  SessionStore responses = store.Responses();
  const auto make = [](SessionStore& own) -> Result<SessionState> { return FreshState(own); };
  const auto remove = [&](const char* tenant, int id) {
    ASSERT_TRUE(responses.Store(tenant, IdOf(id), 0, make));
    ASSERT_TRUE((*responses.Queue(tenant, IdOf(id), [] {}))->Remove());
  };
  auto running = responses.Announce("t", IdOf(1));
  remove("t", 2);
  for (int id = 1000; id < 1200; ++id) remove("u", id);
  EXPECT_EQ(responses.Store("t", IdOf(1), 0, make, IdOf(2)).error().code, Code::kCancelled)
      << "another tenant's do not count";
  for (int id = 2000; id < 2200; ++id) remove("t", id);
  EXPECT_EQ(responses.Store("t", IdOf(1), 0, make, IdOf(2)).error().code, Code::kCancelled);
  EXPECT_TRUE(responses.Store("t", IdOf(3), 0, make));
  running = nullptr;
  running = responses.Announce("t", IdOf(4));
  EXPECT_TRUE(responses.Store("t", IdOf(4), 0, make, IdOf(3))) << "nothing that it names has gone";
}

TEST(SessionResponses, ACallForARunningOneComesAfterItsAnswer) {
  SessionStore store({.max_responses = 9});
  SessionStore responses = store.Responses();
  const std::string unknown = responses.Find("t", IdOf(9)).error().text();
  auto running = responses.Announce("t", IdOf(1));
  EXPECT_FALSE(Has(responses, IdOf(1)));
  EXPECT_EQ(responses.Queue("other", IdOf(1), [] {}).error().text(), unknown);
  bool has_come = false;
  auto turn = *responses.Queue("t", IdOf(1), [&] { has_come = true; });
  ASSERT_TRUE(StoreText(responses, IdOf(1), "a"));
  EXPECT_TRUE(Has(responses, IdOf(1)));
  EXPECT_FALSE(has_come || turn->has_come());
  running = nullptr;
  EXPECT_TRUE(has_come && turn->has_come());
  EXPECT_TRUE(turn->Read() && turn->Remove());
  EXPECT_FALSE(Has(responses, IdOf(1)));
  // One that is not stored after all.
  running = responses.Announce("t", IdOf(2));
  turn = *responses.Queue("t", IdOf(2), [] {});
  running = nullptr;
  EXPECT_EQ(turn->Read().error().text(), unknown);
  EXPECT_EQ(turn->Remove().error().text(), unknown);
  turn = nullptr;
  EXPECT_FALSE(responses.Queue("t", IdOf(2), [] {}));
  EXPECT_EQ(store.counts().bytes, 0u);
}

TEST(SessionResponses, AreCountedApart) {
  SessionStore store({.max_responses = 9});
  SessionStore responses = store.Responses();
  ASSERT_TRUE(store.Create("t", FreshState(store)));
  ASSERT_TRUE(StoreText(responses, IdOf(1), std::string(5000, 'x')));
  ASSERT_TRUE(StoreText(responses, IdOf(2), "a", "u"));
  const SessionCounts all = store.counts(), own = store.ResponsesOf("t");
  EXPECT_EQ(all.responses, 2u);
  EXPECT_EQ(own.responses, 1u);
  EXPECT_GT(own.response_bytes, 5000u);
  EXPECT_EQ(all.response_bytes, own.response_bytes + store.ResponsesOf("u").response_bytes);
  EXPECT_GT(all.bytes, all.response_bytes);
}

TEST(SessionResponses, PathsOfAChainAreFewAndHaveEveryId) {
  SessionStore store{SessionLimits()};
  SessionPaths paths;
  std::vector<TokenId> ids(2000, 1);
  std::vector<SessionPath::Begin> begins;
  uint64_t held = 0;
  for (int turn = 0; turn < 300; ++turn) {
    const auto name = static_cast<uint64_t>(turn);
    begins.push_back({name, name, static_cast<uint32_t>(ids.size())});
    ids.resize(ids.size() + 20, turn);
    const SessionPaths before = paths;
    paths = *AddPath(store, before, ids, begins, {}, LastPath::kLongStays);
    held += paths.back()->ids.size();
    ASSERT_EQ(IdsOf(paths, paths.size() - 1), ids) << turn;
    ASSERT_EQ(BeginsOf(paths, paths.size() - 1).size(), size_t(turn) + 1);
    ASSERT_LE(paths.size(), 12u);
  }
  EXPECT_LT(held, 300u * 20 * 12) << "about log n times each id, where copies have n times";
}

class KeptResponsesTest : public SessionFolderTest {};

TEST_F(KeptResponsesTest, OutliveTheStoreAndLeaveTheFileForNewerOnes) {
  const SessionLimits limits{.max_responses = 3};
  std::string session;
  {
    const auto store = OpenStore(limits);
    SessionStore responses = store->Responses();
    session = store->Create("t", FreshState(*store))->id;
    for (int i = 0; i < 5; ++i) {
      ASSERT_TRUE(StoreText(responses, IdOf(i), "text " + std::to_string(i)));
    }
    EXPECT_EQ(store->file()->List()->size(), 4u);
  }
  {
    const auto store = OpenStore(limits);
    SessionStore responses = store->Responses();
    EXPECT_EQ(store->List("t", std::nullopt, 9)->entries.size(), 1u);
    EXPECT_FALSE(Has(responses, IdOf(1)));
    const auto entry = responses.Find("t", IdOf(3));
    ASSERT_TRUE(entry);
    EXPECT_TRUE(entry->on_disk);
    EXPECT_EQ(entry->state->messages.front()->content, "text 3");
    EXPECT_EQ(entry->state->response->json, "{\"a\":1}");
    EXPECT_FALSE(Has(responses, IdOf(3), "other"));
    ASSERT_TRUE(StoreText(responses, IdOf(5), "text 5"));
    EXPECT_FALSE(Has(responses, IdOf(2)));
    EXPECT_EQ(store->counts().responses, 3u);
  }
  {
    const auto fewer = OpenStore({.max_responses = 1});
    SessionStore responses = fewer->Responses();
    EXPECT_TRUE(Has(responses, IdOf(3)) && Has(responses, IdOf(5)));
    ASSERT_TRUE(StoreText(responses, IdOf(6), "text 6"));
    EXPECT_FALSE(Has(responses, IdOf(3)) || Has(responses, IdOf(5)));
    EXPECT_EQ(fewer->file()->List()->size(), 2u);
  }
  const auto listed = ListSessionFile(options_);
  ASSERT_TRUE(listed);
  EXPECT_EQ(listed->sessions, 1u);
  ASSERT_EQ(listed->readable.size(), 1u);
  EXPECT_EQ(listed->readable.front().id, session);
  const auto checked = CheckSessionFile(options_);
  ASSERT_TRUE(checked && *checked);
  EXPECT_EQ((*checked)->sessions, 1u);
  EXPECT_EQ((*checked)->responses, 1u);
  {
    const auto none = OpenStore();
    EXPECT_EQ(none->counts().responses, 0u) << "it is for sessions alone";
    EXPECT_TRUE(Has(*none, session));
    ASSERT_TRUE(none->RemoveAll("t"));
    EXPECT_TRUE(none->file()->List()->empty());
  }
}

TEST_F(KeptResponsesTest, OneThatWasDeletedIsNotInTheFile) {
  const auto store = OpenStore({.max_responses = 3});
  SessionStore responses = store->Responses();
  ASSERT_TRUE(StoreText(responses, IdOf(1), "a"));
  ASSERT_TRUE((*responses.Queue("t", IdOf(1), [] {}))->Remove());
  EXPECT_TRUE(store->file()->List()->empty());
  EXPECT_FALSE(Has(responses, IdOf(1)));
}

// After an erase of all has returned, the file must not even for a moment get what was stored
// meanwhile: the process may end there. A long text takes a while to be written as JSON.
TEST_F(KeptResponsesTest, NothingIsWrittenAfterAnEraseOfAll) {
  std::atomic<bool> is_erased = false;
  std::atomic<int> written_late = 0;
  options_.cap_bytes = uint64_t{1} << 30;
  options_.on_need = [&](uint64_t) { written_late += is_erased; };  // before a row is written
  const auto store = OpenStore({.max_responses = 1000, .memory_bytes = uint64_t{1} << 30});
  SessionStore responses = store->Responses();
  for (int i = 0; i < 8; ++i) {
    std::atomic<bool> is_made = false;
    is_erased = false;
    const uint64_t removals = responses.Removals("t");
    std::thread storing([&] {
      const auto make = [&](SessionStore& own) -> Result<SessionState> {
        auto state = Append(own, FreshState(own), OneSaid("user", std::string(4 << 20, 'x')));
        is_made = true;
        return state;
      };
      (void)responses.Store("t", IdOf(i), removals, make);
    });
    while (!is_made) std::this_thread::yield();
    ASSERT_TRUE(store->RemoveAll("t"));
    is_erased = true;
    EXPECT_TRUE(store->file()->List()->empty());
    storing.join();
    EXPECT_FALSE(Has(responses, IdOf(i)));
    EXPECT_TRUE(store->file()->List()->empty());
  }
  EXPECT_EQ(written_late, 0);
}

TEST_F(KeptResponsesTest, TheFileMakesRoomToo) {
  options_.cap_bytes = uint64_t{4} << 20;  // 256 KiB of rows
  const auto store = OpenStore({.max_responses = 1000, .memory_bytes = uint64_t{64} << 20});
  SessionStore responses = store->Responses();
  for (int i = 0; i < 60; ++i) {
    ASSERT_TRUE(StoreText(responses, IdOf(i), std::string(20'000, 'x'))) << i;
  }
  EXPECT_TRUE(Has(responses, IdOf(59)) && !Has(responses, IdOf(0)));
  EXPECT_EQ(store->file()->List()->size(), store->counts().responses);
}

}  // namespace
}  // namespace kvasir
