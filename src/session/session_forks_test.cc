// Memory of sessions that share a text: forks that forget a part of it, and lists that read none.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kvasir/session.h"
#include "session/session_folder_for_test.h"

namespace kvasir {
namespace {

std::shared_ptr<SessionStore::Turn> TurnOfFork(SessionStore& store, const std::string& id) {
  return *store.Queue("t", id, [] {});
}

using SessionForksTest = SessionFolderTest;

// Forks share a text until one of them forgets a part of it: its copy needs room like all others.
TEST(SessionForks, ForksThatForgetStayWithinTheMemory) {
  constexpr uint64_t kBytes = 200'000;
  SessionStore store({.memory_bytes = kBytes});
  SessionStore own = store.Of("t");
  std::vector<std::string> ids = {store.Create("t", FreshState(own))->id};
  {
    const auto turn = TurnOfFork(store, ids[0]);
    auto more =
        Append(turn->store(), *turn->Read()->state, OneSaid("user", std::string(30'000, 'x')));
    ASSERT_TRUE(turn->Replace(std::move(*more)));
  }
  while (ids.size() < 20) {
    const auto turn = TurnOfFork(store, ids[0]);
    auto fork = ForkOf(turn->store(), *turn->Read()->state, 1);
    ASSERT_TRUE(fork);
    ids.push_back(store.Create("t", std::move(*fork))->id);
  }
  const auto forget = [&](const std::string& id, uint32_t bytes) {
    const auto turn = TurnOfFork(store, id);
    auto part = Remove(turn->store(), *turn->Read()->state, {0, 0, bytes});
    EXPECT_TRUE(part) << part.error().text();
    return turn->Replace(std::move(*part));
  };
  size_t forgotten = 0;
  for (const std::string& id : ids) {
    const Status done = forget(id, 1);
    EXPECT_LE(store.counts().bytes, kBytes);
    if (done) {
      ++forgotten;
      continue;
    }
    EXPECT_EQ(done.error().code, Code::kExhausted);
    EXPECT_NE(done.error().message.find("other sessions or calls have"), std::string::npos);
    EXPECT_EQ(store.Find("t", id)->state->messages[0]->content.size(), 30'000u);
  }
  EXPECT_GE(forgotten, 3u);
  EXPECT_LE(forgotten, 5u);
  // What no other session has is forgotten in a full store too, again and again.
  for (uint32_t bytes = 1; bytes < 100; ++bytes) EXPECT_TRUE(forget(ids[0], bytes));
  EXPECT_LE(store.counts().bytes, kBytes);
  for (const std::string& id : ids) ASSERT_TRUE(TurnOfFork(store, id)->Remove());
  EXPECT_EQ(store.counts().bytes, 0u);
}

// A list of a hundred sessions must not read a hundred conversations.
TEST_F(SessionForksTest, AreNotMadeOfWhatWasErasedMeanwhile) {
  for (const bool has_file : {false, true}) {
    auto store = has_file ? OpenStore() : std::make_unique<SessionStore>(SessionLimits());
    const std::string id = store->Create("t", FreshState(*store))->id;
    const uint64_t removals = store->Removals("t");
    {
      const auto turn = TurnOfFork(*store, id);
      auto fork = ForkOf(turn->store(), *turn->Read()->state, 0);
      ASSERT_TRUE(store->RemoveAll("t"));
      const auto made = store->Create("t", std::move(*fork), removals);
      ASSERT_FALSE(made);
      EXPECT_EQ(made.error().code, Code::kNotFound);
    }
    EXPECT_EQ(store->counts().sessions, 0u);
    EXPECT_EQ(store->counts().bytes, 0u);
    if (has_file) EXPECT_TRUE(store->file()->List()->empty());
    EXPECT_TRUE(store->Create("t", FreshState(*store), store->Removals("t")));
  }
}

TEST_F(SessionForksTest, AListReadsNothingBehindTheHeadOfASession) {
  SessionStore store{SessionLimits()};
  SessionSetup setup;
  setup.metadata = R"({"a":",\"messages\":["})";
  setup.max_context = 77;
  SessionState state =
      *Append(store, FreshState(store, std::move(setup)), OneSaid("user", "hello"));
  state.tokens = 5;
  const std::string json = ToJson({.id = "sess_1", .tenant = "t", .created_s = 9, .state = state});
  const auto expect = [](const Result<SessionHead>& head) {
    ASSERT_TRUE(head) << head.error().message;
    EXPECT_EQ(head->id, "sess_1");
    EXPECT_EQ(head->tenant, "t");
    EXPECT_EQ(head->created_s, 9);
    EXPECT_EQ(head->setup.max_context, 77u);
    EXPECT_EQ(head->setup.metadata, R"({"a":",\"messages\":["})");
    EXPECT_EQ(head->tokens, 5u);
    EXPECT_EQ(head->num_messages, 1u);
  };
  expect(ParseSessionHead(json));
  expect(ParseSessionHead(json.substr(0, json.rfind("hello"))));
  // An older version did not write their number.
  std::string older = json;
  const std::string number = R"("num_messages":1,)";
  older.erase(older.find(number), number.size());
  expect(ParseSessionHead(older));
  EXPECT_FALSE(ParseSessionHead(older.substr(0, older.rfind("hello"))));
  EXPECT_FALSE(ParseSessionHead("[]"));
}

// A fork that forgets needs more memory: idle sessions leave memory for it, and with none
// left it goes to the file alone.
TEST_F(SessionForksTest, ForksThatForgetMakeRoomInMemory) {
  constexpr uint64_t kBytes = 100'000;
  auto store = OpenStore({.memory_bytes = kBytes});
  std::vector<std::string> ids;
  {
    SessionStore own = store->Of("t");
    auto state = Append(own, FreshState(own), OneSaid("user", std::string(30'000, 'x')));
    ids.push_back(store->Create("t", std::move(*state))->id);
  }
  while (ids.size() < 8) {
    const auto turn = *store->Queue("t", ids[0], [] {});
    auto fork = ForkOf(turn->store(), *turn->Read()->state, 1);
    ids.push_back(store->Create("t", std::move(*fork))->id);
  }
  for (const std::string& id : ids) {
    {
      const auto turn = TurnOfFork(*store, id);
      const auto entry = turn->Read();
      ASSERT_TRUE(entry) << entry.error().message;
      auto part = Remove(turn->store(), *entry->state, {0, 0, 1});
      ASSERT_TRUE(part);
      const Status done = turn->Replace(std::move(*part));
      ASSERT_TRUE(done) << done.error().message;
    }
    EXPECT_LE(store->counts().bytes, kBytes);
  }
  store.reset();
  store = OpenStore();
  for (const std::string& id : ids) {
    const auto entry = store->Find("t", id);
    ASSERT_TRUE(entry);
    EXPECT_EQ(entry->state->messages[0]->content.size(), 29'999u);
  }
}

}  // namespace
}  // namespace kvasir
