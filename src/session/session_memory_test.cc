// Which sessions of a store with a file are in memory.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "session/session_folder_for_test.h"

namespace kvasir {
namespace {

using SessionMemoryTest = SessionFolderTest;

// Each part of a session that is kept takes memory, not only one that is read from the file.
TEST_F(SessionMemoryTest, IdleSessionsLeaveMemoryForNewAndGrowingOnes) {
  constexpr uint64_t kBytes = 96 << 10;
  const auto all = OpenStore({.memory_bytes = kBytes});
  SessionStore store = all->Of("t");
  const std::string text(15'000, 'x');
  std::vector<std::string> ids;
  for (int i = 0; i < 10; ++i) {
    const auto state = Append(store, FreshState(store), OneSaid("user", text));
    ASSERT_TRUE(state) << i << ": " << state.error().message;
    const auto made = store.Create("t", *state);
    ASSERT_TRUE(made) << i << ": " << made.error().message;
    ids.push_back(made->id);
  }
  const auto turn = *store.Queue("t", ids[0], [] {});
  SessionStore& own = turn->store();
  const auto changes = [&](auto change) {
    const auto entry = turn->Read();
    for (size_t i = 1; i < ids.size(); ++i) ASSERT_TRUE(store.Find("t", ids[i]));
    ASSERT_GT(store.counts().bytes, kBytes - 20'000) << "it is full";
    const Result<SessionState> changed = change(*entry->state);
    ASSERT_TRUE(changed) << changed.error().message;
    ASSERT_TRUE(turn->Replace(*changed));
  };
  const std::string more(15'000, 'y');
  changes([&](const auto& state) { return Append(own, state, OneSaid("assistant", more)); });
  changes([&](const auto& state) {
    return Edit(own, state, 0, Said("user", "b" + more), LaterMessages::kStay);
  });
  changes([&](const auto& state) { return SetSystem(own, state, Said("system", more)); });
  changes([&](SessionState state) -> Result<SessionState> {
    state.messages.resize(1);
    KV_ASSIGN(state.paths, AddPath(own, state.paths, std::vector<TokenId>(8'000, 1), {}, {}));
    return state;
  });
  EXPECT_TRUE(store.Find("t", ids[0])->state->messages.front()->content == more);
  EXPECT_LE(store.counts().bytes, kBytes);
  // What no file has stays.
  std::vector<std::string> kept;
  for (;;) {
    SessionSetup in_memory;
    in_memory.on_disk = false;
    const auto state =
        Append(store, FreshState(store, std::move(in_memory)), OneSaid("user", text));
    if (!state) {
      EXPECT_EQ(state.error().code, Code::kExhausted);
      break;
    }
    kept.push_back(store.Create("t", *state)->id);
  }
  EXPECT_GE(kept.size(), 2u);
  for (const std::string& id : kept) EXPECT_TRUE(store.FindLoaded("t", id));
}

// Else a call that is refused costs others the time to read their sessions again.
TEST_F(SessionMemoryTest, IdleSessionsStayWhereTheyCannotMakeRoom) {
  const auto all = OpenStore({.memory_bytes = 96 << 10});
  SessionStore store = all->Of("t");
  const auto said = [](size_t messages, size_t bytes) {
    std::vector<SessionMessage> texts;
    for (size_t i = 0; i < messages; ++i) texts.push_back(Said("user", std::string(bytes, 'x')));
    return texts;
  };
  const auto made = [&](size_t messages, size_t bytes) {
    return store.Create("t", *Append(store, FreshState(store), said(messages, bytes)))->id;
  };
  const std::vector<std::string> idle = {made(1, 8'000), made(1, 8'000), made(1, 8'000)};
  const std::string used = made(5, 9'000);
  const auto turn = *store.Queue("t", used, [] {});
  const auto is_refused = [&](size_t messages, size_t bytes) {
    const auto more = Append(turn->store(), *turn->Read()->state, said(messages, bytes));
    if (more) return false;
    EXPECT_EQ(more.error().code, Code::kExhausted);
    return true;
  };
  EXPECT_TRUE(is_refused(1, 200'000)) << "more than the memory";
  EXPECT_TRUE(is_refused(1, 52'000)) << "with what is in use";
  EXPECT_TRUE(is_refused(50, 1'000)) << "all of a call";
  for (const std::string& id : idle) EXPECT_TRUE(store.FindLoaded("t", id));
  EXPECT_FALSE(is_refused(1, 30'000));
  EXPECT_FALSE(store.FindLoaded("t", idle[0])) << "it was used longest ago";
}

TEST_F(SessionMemoryTest, AFullHalfOfResponsesUnloadsThemAlone) {
  const auto all = OpenStore({.max_responses = 10, .memory_bytes = 96 << 10});
  SessionStore store = all->Of("t");
  SessionStore responses = all->Responses();
  const std::string text(12'000, 'x');
  std::vector<std::string> sessions;
  for (int i = 0; i < 3; ++i) {
    const auto state = Append(store, FreshState(store), OneSaid("user", text));
    sessions.push_back(store.Create("t", *state)->id);
  }
  for (int i = 0; i < 6; ++i) {
    const Status stored = responses.Store("t", "resp_" + std::to_string(i), 0, [&](auto& own) {
      return Append(own, FreshState(own), OneSaid("user", text));
    });
    ASSERT_TRUE(stored) << i << ": " << stored.error().message;
  }
  for (const std::string& id : sessions) EXPECT_TRUE(store.FindLoaded("t", id));
  EXPECT_FALSE(responses.FindLoaded("t", "resp_0"));
  EXPECT_TRUE(responses.FindLoaded("t", "resp_5"));
  EXPECT_EQ(all->counts().responses, 6u);
}

}  // namespace
}  // namespace kvasir
