#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <random>
#include <set>
#include <string>
#include <thread>

#include "base/own_clock.h"
#include "base/rounds_for_test.h"
#include "kvasir/session.h"

namespace kvasir {
namespace {

SessionMessage Message(std::string role, std::string content) {
  SessionMessage message;
  message.role = std::move(role);
  message.content = std::move(content);
  return message;
}

std::vector<SessionMessage> One(std::string role, std::string content) {
  std::vector<SessionMessage> messages;
  messages.push_back(Message(std::move(role), std::move(content)));
  return messages;
}

SessionState Empty(SessionStore& store) {
  SessionState state;
  state.setup = *store.Keep(SessionSetup());
  return state;
}

std::string NewSession(SessionStore& store, const std::string& tenant = "t") {
  return store.Create(tenant, Empty(store))->id;
}

std::shared_ptr<SessionStore::Turn> TurnOf(SessionStore& store, const std::string& id) {
  return *store.Queue("t", id, [] {});
}

std::vector<std::string> Texts(const SessionState& state) {
  std::vector<std::string> texts;
  for (const auto& message : state.messages) texts.push_back(message->content);
  return texts;
}

TEST(SessionStore, IdsAreRandomAndForeignOnesLookAbsent) {
  SessionStore store{SessionLimits()};
  std::set<std::string> ids;
  for (int i = 0; i < 100; ++i) ids.insert(NewSession(store));
  EXPECT_EQ(ids.size(), 100u);
  const std::string id = *ids.begin();
  EXPECT_EQ(id.size(), 5u + 32u);
  const auto foreign = store.Find("other", id), absent = store.Find("t", "sess_0");
  ASSERT_FALSE(foreign);
  ASSERT_FALSE(absent);
  EXPECT_EQ(foreign.error().text(), absent.error().text());
  EXPECT_EQ(foreign.error().code, Code::kNotFound);
  EXPECT_EQ(store.Queue("other", id, [] {}).error().code, Code::kNotFound);
}

TEST(SessionStore, TurnsComeInOrderAndTheNinthIsRefused) {
  SessionStore store{SessionLimits()};
  const std::string id = NewSession(store);
  auto first = TurnOf(store, id);
  EXPECT_TRUE(first->has_come());
  std::vector<int> came;
  std::vector<std::shared_ptr<SessionStore::Turn>> waiting;
  for (int i = 0; i < 8; ++i) {
    waiting.push_back(*store.Queue("t", id, [&came, i] { came.push_back(i); }));
    EXPECT_FALSE(waiting.back()->has_come());
  }
  EXPECT_EQ(store.Queue("t", id, [] {}).error().code, Code::kExhausted);
  waiting[1].reset();  // gives up
  first.reset();
  EXPECT_EQ(came, std::vector<int>{0});
  for (auto& turn : waiting) turn.reset();
  EXPECT_EQ(came, (std::vector<int>{0, 2, 3, 4, 5, 6, 7}));
  EXPECT_TRUE(TurnOf(store, id)->has_come());
}

TEST(SessionStore, AStoreForNoSessionsSaysSo) {
  SessionStore store({.max_sessions = 0});
  const auto made = store.Create("t", Empty(store));
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, Code::kExhausted);
  EXPECT_EQ(made.error().message, "this server keeps no sessions (--sessions 0)");
}

TEST(SessionStore, AFullStoreRefusesAndDropsNothing) {
  SessionStore store({.max_sessions = 2});
  NewSession(store);
  const std::string id = NewSession(store);
  EXPECT_EQ(store.Create("t", Empty(store)).error().code, Code::kExhausted);
  EXPECT_EQ(store.counts().sessions, 2u);
  ASSERT_TRUE(TurnOf(store, id)->Remove());
  EXPECT_TRUE(store.Create("t", Empty(store)));
}

TEST(SessionStore, MemoryIsBoundedAndComesBack) {
  SessionStore store({.memory_bytes = 100'000});
  const std::string id = NewSession(store);
  const uint64_t before = store.counts().bytes;
  {
    const auto turn = TurnOf(store, id);
    SessionState state = *turn->Read()->state;
    int appended = 0;
    for (;; ++appended) {
      auto more = Append(store, state, One("user", std::string(9000, 'x')));
      if (!more) {
        EXPECT_EQ(more.error().code, Code::kExhausted);
        break;
      }
      ASSERT_TRUE(turn->Replace(*more));
      state = std::move(*more);
    }
    EXPECT_GE(appended, 9);
    EXPECT_LE(store.counts().bytes, 100'000u);
    // A full store can be made smaller.
    auto part = Remove(store, state, {0, 0, 8999});
    ASSERT_TRUE(part) << part.error().text();
    ASSERT_TRUE(turn->Replace(*part));
    ASSERT_TRUE(turn->Replace(*Truncate(*part, 0)));
  }
  EXPECT_EQ(store.counts().bytes, before);
  ASSERT_TRUE(TurnOf(store, id)->Remove());
  EXPECT_EQ(store.counts().bytes, 0u);
}

TEST(SessionStore, AnIdleSessionTakesLittle) {
  SessionStore store{SessionLimits()};
  const std::string id = NewSession(store);
  std::vector<SessionMessage> messages;
  uint64_t text_bytes = 0;
  for (int i = 0; i < 20; ++i) {
    messages.push_back(Message(i % 2 ? "assistant" : "user", std::string(400, 'x')));
    text_bytes += 400;
  }
  const auto turn = TurnOf(store, id);
  ASSERT_TRUE(turn->Replace(*Append(store, *turn->Read()->state, std::move(messages))));
  EXPECT_LT(store.counts().bytes - text_bytes, 8u << 10);
}

TEST(SessionStore, SessionsExpireUnlessTheyAreUsed) {
  OwnClock clock;
  SessionStore store({.ttl_ns = 1'000});
  const std::string idle = NewSession(store), used = NewSession(store), busy = NewSession(store);
  const auto turn = TurnOf(store, busy);
  clock.Advance(std::chrono::nanoseconds(600));
  EXPECT_TRUE(store.Find("t", used));
  clock.Advance(std::chrono::nanoseconds(600));
  store.Sweep();
  EXPECT_FALSE(store.Find("t", idle));
  EXPECT_TRUE(store.Find("t", used));
  EXPECT_TRUE(store.Find("t", busy));
  EXPECT_EQ(store.counts().expired, 1u);
}

TEST(SessionStore, AClockThatGoesBackEndsNoSession) {
  OwnClock clock;
  SessionStore store({.ttl_ns = 1'000});
  const std::string id = NewSession(store);
  clock.Advance(std::chrono::nanoseconds(-50));
  store.Sweep();
  EXPECT_TRUE(store.Find("t", id));
  EXPECT_EQ(store.counts().expired, 0u);
}

TEST(SessionStore, ARemovedSessionIsGoneForThoseWhoWait) {
  SessionStore store{SessionLimits()};
  const std::string id = NewSession(store);
  auto first = TurnOf(store, id);
  const auto second = TurnOf(store, id);
  EXPECT_EQ(store.RemoveAll("t"), 1u);
  EXPECT_EQ(first->Replace(SessionState()).error().code, Code::kNotFound);
  first.reset();
  ASSERT_TRUE(second->has_come());
  EXPECT_EQ(second->Read().error().code, Code::kNotFound);
  EXPECT_EQ(second->Remove().error().code, Code::kNotFound);
}

TEST(SessionStore, AForkSharesItsMessages) {
  SessionStore store{SessionLimits()};
  const std::string id = NewSession(store);
  const auto turn = TurnOf(store, id);
  ASSERT_TRUE(
      turn->Replace(*Append(store, *turn->Read()->state, One("user", std::string(5000, 'x')))));
  const uint64_t before = store.counts().bytes;
  ASSERT_TRUE(store.Create("t", *turn->Read()->state));
  EXPECT_LT(store.counts().bytes - before, 2000u);
}

TEST(SessionStore, ListsTheNewestFirst) {
  SessionStore store{SessionLimits()};
  std::vector<std::string> ids;
  for (int i = 0; i < 5; ++i) ids.push_back(NewSession(store));
  NewSession(store, "other");
  const auto page = *store.List("t", std::nullopt, 2);
  EXPECT_EQ(page.entries[0].id, ids[4]);
  EXPECT_EQ(page.entries[1].id, ids[3]);
  EXPECT_TRUE(page.has_more);
  const auto rest = *store.List("t", ids[3], 3);
  EXPECT_EQ(rest.entries[2].id, ids[0]);
  EXPECT_FALSE(rest.has_more);
  EXPECT_FALSE(store.List("t", "sess_x", 3));
}

SessionState EmptyOf(const SessionStore& store, const std::string& tenant) {
  SessionStore own = store.Of(tenant);
  return Empty(own);
}

TEST(SessionShares, OneKeyLeavesTheOthersTheirPlaces) {
  SessionStore store({.max_sessions = 100});
  store.SetTenants({{"a", {}}, {"b", {}}});
  const auto make_all = [&](const std::string& tenant) {
    for (int made = 0;; ++made) {
      const auto entry = store.Create(tenant, EmptyOf(store, tenant));
      if (entry) continue;
      EXPECT_EQ(entry.error().code, Code::kExhausted);
      EXPECT_EQ(entry.error().message,
                "you have " + std::to_string(made) +
                    " sessions, and 25 are kept for you, with no room for more now (--sessions); "
                    "delete one first");
      return made;
    }
  };
  EXPECT_EQ(make_all("a"), 50);
  EXPECT_EQ(make_all("b"), 50);
  ASSERT_TRUE(store.RemoveAll("b"));
  EXPECT_EQ(make_all("b"), 50);
}

TEST(SessionShares, OneKeyLeavesTheOthersTheirMemory) {
  SessionStore store({.memory_bytes = 1'000'000});
  store.SetTenants({{"a", {}}, {"b", {}}});
  std::vector<std::string> ids;
  const auto fill = [&](const std::string& tenant) {
    const std::string id = store.Create(tenant, EmptyOf(store, tenant))->id;
    const auto turn = *store.Queue(tenant, id, [] {});
    for (uint64_t bytes = 0;; bytes += 9000) {
      auto more = Append(turn->store(), *turn->Read()->state, One("user", std::string(9000, 'x')));
      const Status replaced = more ? turn->Replace(*more) : tl::unexpected(more.error());
      if (replaced) continue;
      EXPECT_EQ(replaced.error().code, Code::kExhausted);
      EXPECT_NE(replaced.error().message.find("250000 are kept for you"), std::string::npos)
          << replaced.error().message;
      return bytes;
    }
  };
  for (const char* tenant : {"a", "b"}) {
    const uint64_t bytes = fill(tenant);
    EXPECT_GT(bytes, 450'000u);
    EXPECT_LT(bytes, 500'000u);
  }
  EXPECT_LE(store.counts().bytes, 1'000'000u);
  // A session that is edited with no room left goes on.
  const auto page = store.List("a", std::nullopt, 1);
  const auto turn = *store.Queue("a", page->entries[0].id, [] {});
  const auto part = Remove(turn->store(), *turn->Read()->state, {0, 0, 8999});
  ASSERT_TRUE(part);
  EXPECT_TRUE(turn->Replace(*part));
}

// Random histories: sessions are made, grow, shrink and go; keys come and go too.
TEST(SessionShares, RandomHistoriesKeepWhatIsKept) {
  constexpr uint64_t kPlaces = 40, kBytes = 400'000;
  const std::vector<std::string> tenants = {"a", "b", "c"};
  const std::map<std::string, double> weights = {{"a", 1}, {"b", 2}, {"c", 5}};
  for (uint64_t seed = 0; seed < 20; ++seed) {
    std::mt19937_64 random(seed);
    SessionStore store({.max_sessions = kPlaces, .memory_bytes = kBytes});
    TenantTable table;
    for (const auto& [name, weight] : weights) table[name].weight = weight;
    store.SetTenants(table);
    std::map<std::string, std::vector<std::string>> ids;
    std::map<std::string, uint64_t> refused;
    // What a tenant has is measured from outside: by what goes when it is removed.
    const auto bytes_of = [&](const std::string& tenant) {
      uint64_t bytes = 0;
      for (const std::string& id : ids[tenant]) {
        const auto state = store.Find(tenant, id)->state;
        bytes += state->HeldBytes() + state->setup->HeldBytes() + 800;
        for (const auto& message : state->messages) bytes += message->HeldBytes();
      }
      return bytes;
    };
    for (int step = 0; step < 600; ++step) {
      const std::string& tenant = tenants[random() % tenants.size()];
      auto& own = ids[tenant];
      const double part = weights.at(tenant) / 8;
      const auto kept_places = static_cast<uint64_t>(kPlaces * part / 2);
      const auto kept_bytes = static_cast<uint64_t>(kBytes * part / 2);
      const uint64_t kind = random() % 10;
      if (kind < 4) {
        const bool must = own.size() < kept_places && bytes_of(tenant) + 2000 < kept_bytes;
        const auto setup = store.Of(tenant).Keep(SessionSetup());
        ASSERT_TRUE(setup || !must);
        if (!setup) continue;
        SessionState state;
        state.setup = *setup;
        const auto made = store.Create(tenant, std::move(state));
        ASSERT_TRUE(made || !must) << made.error().message;
        if (made) own.push_back(made->id);
      } else if (own.empty()) {
        continue;
      } else if (kind < 9) {
        const auto turn = *store.Queue(tenant, own[random() % own.size()], [] {});
        const SessionState old = *turn->Read()->state;
        const size_t size = random() % 12'000;
        // A change has the old and the new list of messages at once.
        const bool must = bytes_of(tenant) + size + 2 * old.HeldBytes() + 2000 < kept_bytes;
        if (kind == 8) {
          ASSERT_TRUE(turn->Replace(*Truncate(old, old.messages.size() / 2)));
          continue;
        }
        const auto more = Append(turn->store(), old, One("user", std::string(size, 'x')));
        ASSERT_TRUE(more || !must) << more.error().message;
        if (more) {
          const Status replaced = turn->Replace(*more);
          ASSERT_TRUE(replaced || !must) << replaced.error().message;
        }
        if (!more) ++refused[tenant];
      } else {
        ASSERT_TRUE((*store.Queue(tenant, own.back(), [] {}))->Remove());
        own.pop_back();
      }
      uint64_t beyond = 0;
      for (const auto& [name, theirs] : ids) {
        const auto kept = static_cast<uint64_t>(kPlaces * weights.at(name) / 16);
        const uint64_t more = theirs.size() - std::min<uint64_t>(theirs.size(), kept);
        ASSERT_LE(more, 11u) << name;  // 2 + 5 + 12 are kept, and half of the other 21
        beyond += more;
      }
      ASSERT_LE(beyond, 21u);
      ASSERT_LE(store.counts().sessions, kPlaces);
      ASSERT_LE(store.counts().bytes, kBytes);
    }
    EXPECT_GT(refused["a"], 0u);
    for (const std::string& tenant : tenants) ASSERT_TRUE(store.RemoveAll(tenant));
    EXPECT_EQ(store.counts().bytes, 0u);
    EXPECT_EQ(store.counts().sessions, 0u);
  }
}

TEST(SessionShares, OtherKeysDivideWhatIsFree) {
  SessionStore store({.max_sessions = 8});
  store.SetTenants({{"a", {}}});
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(store.Create("a", EmptyOf(store, "a")));
  store.SetTenants({{"a", {}}, {"b", {}}});
  EXPECT_FALSE(store.Create("b", EmptyOf(store, "b")));  // until one of the 8 goes
  const auto page = store.List("a", std::nullopt, 8);
  ASSERT_TRUE((*store.Queue("a", page->entries[0].id, [] {}))->Remove());
  EXPECT_FALSE(store.Create("a", EmptyOf(store, "a")));
  EXPECT_TRUE(store.Create("b", EmptyOf(store, "b")));
  store.SetTenants({{"b", {}}});
  EXPECT_EQ(store.counts().sessions, 8u);
  EXPECT_TRUE(store.Find("a", page->entries[1].id));
}

TEST(SessionEdit, SegmentsFollowTheirText) {
  SessionStore store{SessionLimits()};
  SessionMessage message = Message("user", "0123456789");
  SessionMessage::More more;
  more.segments = {{"a", 0, 3}, {"b", 4, 8}, {"c", 8, 10}};
  message.SetMore(std::move(more));
  std::vector<SessionMessage> messages;
  messages.push_back(std::move(message));
  const auto state = *Append(store, Empty(store), std::move(messages));
  EXPECT_EQ(Append(store, state, One("user", "x"))->messages.size(), 2u);
  const auto cut = *Remove(store, state, {0, 2, 6});
  EXPECT_EQ(cut.messages[0]->content, "016789");
  const auto& left = cut.messages[0]->more().segments;
  ASSERT_EQ(left.size(), 3u);
  EXPECT_EQ(left[0].end, 2u);
  EXPECT_EQ(std::make_pair(left[1].begin, left[1].end), std::make_pair(2u, 4u));
  EXPECT_EQ(std::make_pair(left[2].begin, left[2].end), std::make_pair(4u, 6u));
  const auto found = *FindSegment(cut, "b");
  const auto without = *Remove(store, cut, found);
  EXPECT_EQ(without.messages[0]->content, "0189");
  EXPECT_EQ(FindSegment(without, "b").error().code, Code::kNotFound);
}

TEST(SessionEdit, NothingOfWhatWasTakenOutFollowsTheRest) {
  SessionStore store{SessionLimits()};
  const std::string id = NewSession(store);
  const auto turn = TurnOf(store, id);
  const std::string secret = "the code of the safe is 4711";
  const auto state = Append(store, *turn->Read()->state, One("user", "Oh, " + secret + "!"));
  const auto left = Remove(store, *state, {0, 4, 4 + static_cast<uint32_t>(secret.size())});
  ASSERT_TRUE(left);
  const std::string& text = left->messages[0]->content;
  EXPECT_EQ(text, "Oh, !");
  const std::string_view all(text.data(), text.capacity());
  for (size_t i = 0; i + 4 <= secret.size(); ++i) {
    EXPECT_EQ(all.find(secret.substr(i, 4)), all.npos) << secret.substr(i, 4);
  }
}

TEST(SessionEdit, CodePointsAreNotBytes) {
  EXPECT_EQ(ByteOfCodePoint("a\xC3\xA9z", 2), 3u);
  EXPECT_EQ(ByteOfCodePoint("a\xC3\xA9z", 3), 4u);
  EXPECT_EQ(ByteOfCodePoint("a\xC3\xA9z", 4), std::nullopt);
}

// What a session should be: texts, and the ids of everything that it has read.
struct Twin {
  std::vector<std::string> roles, texts;
  std::vector<std::vector<TokenId>> generated;  // of each message
  std::vector<std::vector<TokenId>> read;       // prompts with their answers, forgotten parts cut
  std::vector<TokenId> last;                    // the last one of them, whole
  std::vector<SessionPath::Begin> begins;       // of it
  bool has_system() const { return !roles.empty() && roles[0] == "system"; }
};

class SessionModelTest : public testing::Test {
 protected:
  // Renders a prompt as a template would: ids of a message are its letters, and a 1000 between.
  static std::vector<TokenId> Render(const SessionState& state,
                                     std::vector<SessionPath::Begin>* begins) {
    std::vector<TokenId> ids;
    for (const auto& message : state.messages) {
      begins->push_back({message->number, message->version, static_cast<uint32_t>(ids.size())});
      if (message->ids.empty()) {
        for (const char c : message->content) ids.push_back(c);
      } else {
        ids.insert(ids.end(), message->ids.begin(), message->ids.end());
      }
      ids.push_back(1000);
    }
    return ids;
  }

  void Check(const SessionState& state, const Twin& twin) {
    ASSERT_EQ(Texts(state), twin.texts);
    for (size_t i = 0; i < twin.texts.size(); ++i) {
      ASSERT_EQ(state.messages[i]->role, twin.roles[i]);
      ASSERT_EQ(state.messages[i]->ids, twin.generated[i]);
    }
    // Where messages begin is known of what was read last, as long as all of it is there.
    bool is_there = false, knows = false;
    for (size_t p = 0; p < state.paths.size(); ++p) {
      if (IdsOf(state.paths, p) != twin.last) continue;
      is_there = true;
      const auto known = BeginsOf(state.paths, p);
      knows |=
          std::all_of(twin.begins.begin(), twin.begins.end(), [&](const SessionPath::Begin& begin) {
            return std::any_of(known.begin(), known.end(), [&](const auto& one) {
              return one.number == begin.number && one.at == begin.at;
            });
          });
    }
    ASSERT_EQ(is_there, knows);
    // Each prompt that was read, as far as it is not forgotten, begins some path.
    for (const std::vector<TokenId>& read : twin.read) {
      bool found = read.empty();
      for (size_t p = 0; p < state.paths.size() && !found; ++p) {
        const std::vector<TokenId> ids = IdsOf(state.paths, p);
        found = ids.size() >= read.size() && std::equal(read.begin(), read.end(), ids.begin());
      }
      ASSERT_TRUE(found);
    }
  }
};

TEST_F(SessionModelTest, RandomOperationsKeepTextAndIds) {
  constexpr int kOperations = Rounds(100'000, 5'000);
  std::mt19937 random(19);
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  const auto text = [&] {
    std::string made;
    for (size_t left = 1 + below(6); left > 0; --left) made += static_cast<char>('a' + below(26));
    return made;
  };
  SessionStore store({.max_sessions = 32, .memory_bytes = 4 << 20});
  std::map<std::string, Twin> twins;
  for (int step = 0; step < kOperations; ++step) {
    SCOPED_TRACE(step);
    if (twins.empty() || (twins.size() < 32 && below(50) == 0)) {
      twins[NewSession(store)] = {};
      continue;
    }
    auto it = twins.begin();
    std::advance(it, static_cast<ptrdiff_t>(below(twins.size())));
    Twin& twin = it->second;
    const auto turn = TurnOf(store, it->first);
    const SessionState state = *turn->Read()->state;
    const size_t count = twin.texts.size();
    SessionState changed = state;
    const size_t kind = count > 24 ? 5 : below(10);
    if (kind == 0 || count == 0) {  // append
      const std::string said = text();
      changed = *Append(store, state, One("user", said));
      twin.roles.push_back("user");
      twin.texts.push_back(said);
      twin.generated.emplace_back();
    } else if (kind == 1) {  // edit
      const size_t at = below(count);
      const auto later = below(2) ? LaterMessages::kStay : LaterMessages::kGo;
      const std::string said = text();
      changed = *Edit(store, state, at, Message("ignored", said), later);
      twin.texts[at] = said;
      twin.generated[at].clear();
      if (later == LaterMessages::kGo) {
        twin.roles.resize(at + 1);
        twin.texts.resize(at + 1);
        twin.generated.resize(at + 1);
      }
    } else if (kind == 2) {  // system
      const std::string said = text();
      changed = *SetSystem(store, state, Message("system", said));
      if (twin.has_system()) {
        twin.texts[0] = said;
      } else {
        twin.roles.insert(twin.roles.begin(), "system");
        twin.texts.insert(twin.texts.begin(), said);
        twin.generated.insert(twin.generated.begin(), std::vector<TokenId>());
      }
    } else if (kind <= 4) {  // generate
      std::vector<SessionPath::Begin> begins;
      std::vector<TokenId> ids = Render(state, &begins);
      const std::string said = text();
      SessionMessage answer = Message("assistant", said);
      answer.generated = true;
      for (size_t i = 0; i < said.size(); ++i) answer.ids.push_back(2000 + said[i]);
      answer.ids_bytes = said.size();
      begins.push_back({answer.number, answer.version, static_cast<uint32_t>(ids.size())});
      twin.roles.push_back("assistant");
      twin.texts.push_back(said);
      twin.generated.push_back(answer.ids);
      ids.insert(ids.end(), answer.ids.begin(), answer.ids.end());
      twin.read.push_back(ids);
      twin.last = ids;
      twin.begins = begins;
      std::vector<SessionMessage> messages;
      messages.push_back(std::move(answer));
      changed = *Append(store, state, std::move(messages));
      const size_t num_ids = ids.size();
      changed.paths = *AddPath(store, state.paths, std::move(ids), std::move(begins), {});
      // Whatever was read before.
      ASSERT_EQ(ContainedTokens(changed).back(), num_ids);
    } else if (kind == 5) {  // truncate
      const size_t left = below(count + 1);
      changed = *Truncate(state, left);
      twin.roles.resize(left);
      twin.texts.resize(left);
      twin.generated.resize(left);
    } else if (kind == 6) {  // fork
      if (twins.size() < 32) {
        const auto fork = store.Create("t", *Truncate(state, count));
        ASSERT_TRUE(fork);
        twins[fork->id] = twin;
        continue;
      }
    } else if (kind == 7 && below(4) == 0) {  // delete
      ASSERT_TRUE(turn->Remove());
      twins.erase(it);
      continue;
    } else if (kind == 8 && !twin.texts[count - 1].empty()) {  // forget a part of the last one
      const std::string& last = twin.texts[count - 1];
      const auto begin = static_cast<uint32_t>(below(last.size()));
      const auto end = static_cast<uint32_t>(begin + 1 + below(last.size() - begin));
      changed = *Remove(store, state, {count - 1, begin, end});
      twin.texts[count - 1] = last.substr(0, begin) + last.substr(end);
      twin.generated[count - 1].clear();
    } else {  // forget a message, wherever it was read
      const size_t at = below(count);
      std::vector<ForgottenPath> forgotten;
      for (size_t p = 0; p < state.paths.size(); ++p) {
        for (const auto& [number, version, begin, is_system] : BeginsOf(state.paths, p)) {
          if (number != state.messages[at]->number) continue;
          const std::vector<TokenId> ids = IdsOf(state.paths, p);
          const auto has_it = [&, first = begin](const std::vector<TokenId>& read) {
            return read.size() > first && ids.size() > first &&
                   std::equal(ids.begin(), ids.begin() + first + 1, read.begin());
          };
          for (size_t other = 0; other < state.paths.size(); ++other) {
            if (has_it(IdsOf(state.paths, other))) forgotten.push_back({other, begin});
          }
          for (std::vector<TokenId>& read : twin.read) {
            if (has_it(read)) read.resize(begin);
          }
        }
      }
      changed = *Remove(store, state, {at, 0, std::nullopt});
      changed.paths =
          *WithoutForgotten(store, state.paths, forgotten, SessionStore::Room::kMayExceed);
      const auto place = static_cast<ptrdiff_t>(at);
      twin.roles.erase(twin.roles.begin() + place);
      twin.texts.erase(twin.texts.begin() + place);
      twin.generated.erase(twin.generated.begin() + place);
      for (size_t p = 0; p < changed.paths.size(); ++p) {  // nothing of it is left
        for (const auto& begin : BeginsOf(changed.paths, p)) {
          ASSERT_NE(begin.number, state.messages[at]->number);
        }
      }
    }
    const Status replaced = turn->Replace(changed);
    ASSERT_TRUE(replaced) << replaced.error().text();
    if (twin.read.size() > 40) {  // begins anew
      ASSERT_TRUE(turn->Remove());
      twins.erase(it);
      continue;
    }
    Check(*turn->Read()->state, twin);
    if (HasFatalFailure()) return;
  }
  store.RemoveAll("t");
  EXPECT_EQ(store.counts().bytes, 0u);
}

TEST(SessionStore, ManyThreadsTakeTurns) {
  SessionStore store{SessionLimits()};
  const std::string id = NewSession(store);
  std::vector<std::thread> threads;
  std::atomic<int> appended{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        const auto turn = store.Queue("t", id, [] {});
        if (!turn) continue;
        while (!(*turn)->has_come()) std::this_thread::yield();
        const SessionState state = *(*turn)->Read()->state;
        if ((*turn)->Replace(*Append(store, state, One("user", "x")))) ++appended;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(static_cast<int>(store.Find("t", id)->state->messages.size()), appended.load());
}

}  // namespace
}  // namespace kvasir
