#include "kvasir/session_file.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sqlite3.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <thread>

#include "base/own_clock.h"
#include "base/secret.h"
#include "session/session_folder_for_test.h"

namespace kvasir {
namespace {

namespace fs = std::filesystem;

class SessionFileTest : public SessionFolderTest {
 protected:
  static std::string Make(SessionStore& store, const std::string& text,
                          const std::string& tenant = "t") {
    const SessionState state = *Append(store, FreshState(store), OneSaid("user", text));
    return store.Create(tenant, state)->id;
  }
  // Adds an answer with ids, and what was read for it.
  static Status Answer(SessionStore& store, const std::string& id, const std::string& text,
                       const std::vector<TokenId>& ids) {
    const auto turn = *store.Queue("t", id, [] {});
    const auto entry = turn->Read();
    if (!entry) return tl::unexpected(entry.error());
    SessionMessage answer = Said("assistant", text);
    answer.generated = true;
    answer.ids = ids;
    answer.ids_bytes = text.size();
    const auto& first = *entry->state->messages.front();
    std::vector<SessionPath::Begin> begins = {{first.number, first.version, 0},
                                              {answer.number, answer.version, 1}};
    std::vector<SessionMessage> messages;
    messages.push_back(std::move(answer));
    auto state = Append(store, *entry->state, std::move(messages));
    auto paths = AddPath(store, state->paths, ids, std::move(begins), {});
    state->paths = *paths;
    return turn->Replace(std::move(*state));
  }
  static std::string Shown(SessionStore& store, const std::string& id) {
    const auto entry = store.Find("t", id);
    if (!entry) return "error " + entry.error().message;
    std::string text;
    for (const auto& message : entry->state->messages) text += message->content + "|";
    return text;
  }
  std::string FolderBytes() const {
    std::string all;
    for (const auto& entry : fs::recursive_directory_iterator(options_.folder)) {
      const bool is_spare = entry.path().filename().string().ends_with("spare");  // zeros
      if (!entry.is_regular_file() || is_spare) continue;
      std::ifstream file(entry.path(), std::ios::binary);
      all.append(std::istreambuf_iterator<char>(file), {});
    }
    return all;
  }
  void Sql(const std::string& sql) {
    sqlite3* database = nullptr;
    ASSERT_EQ(sqlite3_open((options_.folder + "/sessions.db").c_str(), &database), SQLITE_OK);
    ASSERT_EQ(sqlite3_exec(database, sql.c_str(), nullptr, nullptr, nullptr), SQLITE_OK);
    sqlite3_close(database);
  }
};

TEST_F(SessionFileTest, SessionsAreThereForTheNextProcess) {
  std::string id;
  int64_t created_s = 0;
  {
    const auto store = OpenStore();
    SessionSetup setup;
    setup.model = "m";
    setup.sampling = R"({"temperature":0})";
    setup.metadata = R"({"a":1.50})";
    setup.max_context = 77;
    SessionState state = FreshState(*store, std::move(setup));
    SessionMessage said = Said("user", "Wer ist Åse?");
    SessionMessage::More more;
    more.segments = {{"name", 8, 11}};
    said.SetMore(std::move(more));
    std::vector<SessionMessage> messages;
    messages.push_back(std::move(said));
    state = *Append(*store, state, std::move(messages));
    state.tokens = 12;
    const auto entry = store->Create("t", std::move(state));
    ASSERT_TRUE(entry) << entry.error().message;
    EXPECT_TRUE(entry->on_disk);
    id = entry->id;
    created_s = entry->created_s;
    ASSERT_TRUE(Answer(*store, id, "A cat.", {5, 6, 7}));
    ASSERT_TRUE(Answer(*store, id, "Two.", {5, 6, 8, 9}));
  }
  const auto store = OpenStore();
  const auto page = store->List("t", std::nullopt, 10);
  ASSERT_EQ(page->entries.size(), 1u);
  EXPECT_EQ(page->entries[0].id, id);
  EXPECT_EQ(page->entries[0].num_messages, 3u);
  EXPECT_EQ(page->entries[0].state->setup->max_context, 77u);
  EXPECT_FALSE(store->FindLoaded("t", id));
  EXPECT_EQ(store->Find("other", id).error().code, Code::kNotFound);
  const auto entry = store->Find("t", id);
  ASSERT_TRUE(entry) << entry.error().message;
  EXPECT_TRUE(store->FindLoaded("t", id));
  EXPECT_EQ(entry->created_s, created_s);
  const SessionState& state = *entry->state;
  EXPECT_FALSE(state.identity_changed);
  EXPECT_EQ(state.setup->model, "m");
  EXPECT_EQ(state.setup->sampling, R"({"temperature":0})");
  EXPECT_EQ(state.setup->metadata, R"({"a":1.50})");
  EXPECT_EQ(Shown(*store, id), "Wer ist Åse?|A cat.|Two.|");
  EXPECT_EQ(state.messages[0]->more().segments[0].end, 11u);
  EXPECT_EQ(state.messages[1]->ids, (std::vector<TokenId>{5, 6, 7}));
  EXPECT_EQ(state.messages[1]->ids_bytes, 6u);
  ASSERT_EQ(state.paths.size(), 2u);
  EXPECT_EQ(IdsOf(state.paths, 0), (std::vector<TokenId>{5, 6, 7}));
  EXPECT_EQ(IdsOf(state.paths, 1), (std::vector<TokenId>{5, 6, 8, 9}));
  // Where messages begin is known by their numbers, which are new.
  EXPECT_EQ(state.paths[0]->begins[1].number, state.messages[1]->number);
  EXPECT_TRUE(NotContained(state).empty());
}

TEST_F(SessionFileTest, OpensAsTextUnderAnotherModel) {
  std::string id;
  {
    const auto store = OpenStore();
    id = Make(*store, "hello");
    ASSERT_TRUE(Answer(*store, id, "A cat.", {5, 6, 7}));
  }
  options_.identity.kv_format = "int8";  // the same ids, other KV
  {
    const auto store = OpenStore();
    const auto entry = store->Find("t", id);
    EXPECT_TRUE(entry->state->identity_changed);
    EXPECT_EQ(entry->state->messages[1]->ids.size(), 3u);
  }
  options_.identity.content = "model-2";
  options_.vocab_size = 3;
  {
    const auto store = OpenStore();
    const auto entry = store->Find("t", id);
    ASSERT_TRUE(entry);
    EXPECT_TRUE(entry->state->identity_changed);
    EXPECT_EQ(entry->state->messages[1]->ids.size(), 0u);
    EXPECT_TRUE(entry->state->messages[1]->generated);
    EXPECT_TRUE(entry->state->paths.empty());
    EXPECT_EQ(Shown(*store, id), "hello|A cat.|");
  }
  options_.identity.content = "model-1";  // ids that this model's vocabulary lacks are damage
  options_.identity.kv_format = "f16";
  const auto store = OpenStore();
  EXPECT_EQ(store->Find("t", id).error().code, Code::kCorruption);
}

TEST_F(SessionFileTest, SomeSessionsStayInMemory) {
  std::string id;
  {
    const auto store = OpenStore();
    SessionSetup setup;
    setup.on_disk = false;
    const auto entry = store->Create("t", FreshState(*store, std::move(setup)));
    EXPECT_FALSE(entry->on_disk);
    id = entry->id;
    ASSERT_TRUE((*store->Queue("t", id, [] {}))->Replace(*entry->state));
  }
  EXPECT_EQ(OpenStore()->Find("t", id).error().code, Code::kNotFound);
}

TEST_F(SessionFileTest, ForgottenTextLeavesTheFile) {
  const auto store = OpenStore();
  const std::string id = Make(*store, "first");
  const auto turn = *store->Queue("t", id, [] {});
  const auto size = [&] { return fs::file_size(options_.folder + "/sessions.db-wal"); };
  const auto append = [&](const std::string& text) {
    ASSERT_TRUE(turn->Replace(*Append(*store, *turn->Read()->state, OneSaid("user", text))));
  };
  append(std::string(50'000, 'x'));
  EXPECT_GT(size(), 0u);  // appended: the log still has earlier states
  ASSERT_TRUE(turn->Replace(*Remove(*store, *turn->Read()->state, {.index = 1})));
  EXPECT_EQ(size(), 0u);
  EXPECT_LT(FolderBytes().size(), 50'000u);
  append("second");
  ASSERT_TRUE(turn->Replace(
      *Edit(*store, *turn->Read()->state, 0, Said("user", "1st"), LaterMessages::kStay)));
  EXPECT_EQ(size(), 0u);
  EXPECT_EQ(Shown(*store, id), "1st|second|");
  ASSERT_TRUE(turn->Remove());
  EXPECT_EQ(size(), 0u);
  EXPECT_EQ(FolderBytes().find(id), std::string::npos);
}

TEST_F(SessionFileTest, RemovesAllOfATenant) {
  std::string mine, other;
  {
    const auto store = OpenStore();
    mine = Make(*store, "mine");
    other = Make(*store, "other", "o");
  }
  {
    const auto store = OpenStore();  // neither is in memory
    const auto turn = *store->Queue("t", mine, [] {});
    const SessionState state = *turn->Read()->state;
    EXPECT_EQ(store->RemoveAll("t").value(), 1u);
    EXPECT_EQ(turn->Replace(state).error().code, Code::kNotFound);
  }
  const auto store = OpenStore();
  EXPECT_EQ(store->Find("t", mine).error().code, Code::kNotFound);
  EXPECT_TRUE(store->Find("o", other));
}

// A session's first row may come after the erase of all: then it goes again.
TEST_F(SessionFileTest, RemovesAllBesideAFirstRow) {
  for (int round = 0; round < 100; ++round) {
    SessionStore store{SessionLimits()};
    const std::string id = Make(store, "Hello.");  // without a file, so that it has no row
    const auto file = OpenFile();
    ASSERT_TRUE(store.UseFile(file));
    const auto turn = *store.Queue("t", id, [] {});
    SessionState state = *turn->Read()->state;
    std::thread eraser([&] { EXPECT_TRUE(store.RemoveAll("t")); });
    std::this_thread::sleep_for(std::chrono::microseconds(50 * round));
    const Status replaced = turn->Replace(std::move(state));
    eraser.join();
    EXPECT_FALSE(store.Find("t", id)) << "it was there before the erase";
    EXPECT_EQ(file->List()->size(), 0u) << round << (replaced ? ": written" : ": refused");
  }
}

// An erase of all that fails takes sessions out of memory, while their changes are being written.
TEST_F(SessionFileTest, AChangeOutlivesAnEraseThatFails) {
  const std::string id = Make(*OpenStore(), "first");
  SessionFileOptions erased = options_;  // the same rows in a file of which nothing can be erased
  erased.folder = parent_ / "erased";
  fs::copy(options_.folder, erased.folder, fs::copy_options::recursive);
  std::swap(options_, erased);
  Sql("CREATE TRIGGER stays BEFORE INSERT ON erased BEGIN SELECT RAISE(ABORT, 'stays'); END");
  std::swap(options_, erased);
  auto stuck = SessionFile::Open(erased);
  ASSERT_TRUE(stuck) << stuck.error().message;
  std::unique_ptr<SessionStore> store;
  std::optional<Result<size_t>> removed;
  options_.on_need = [&](uint64_t) {  // called while a row is written
    if (!store || removed) return;
    ASSERT_TRUE(store->UseFile(std::move(*stuck)));
    removed = store->RemoveAll("t");
  };
  store = OpenStore();
  ASSERT_EQ(Shown(*store, id), "first|");
  {
    const auto turn = *store->Queue("t", id, [] {});
    SessionState longer = *Append(*store, *turn->Read()->state, OneSaid("user", "second"));
    EXPECT_TRUE(turn->Replace(std::move(longer)));
  }
  ASSERT_TRUE(removed);
  EXPECT_EQ(removed->error().code, Code::kUnavailable);
  ASSERT_TRUE(store->FindLoaded("t", id));
  EXPECT_EQ(Shown(*store, id), "first|second|");
}

TEST_F(SessionFileTest, LeavesMemoryBeforeTheDisk) {
  const auto store = OpenStore({.ttl_ns = 1});
  const std::string id = Make(*store, "hello");
  store->Sweep();
  EXPECT_FALSE(store->FindLoaded("t", id));
  EXPECT_EQ(Shown(*store, id), "hello|");
}

TEST_F(SessionFileTest, LeavesTheDiskWhenItsTimeIsOver) {
  std::string old, fresh;
  {
    const auto store = OpenStore();
    old = Make(*store, "old");
    fresh = Make(*store, "new");
  }
  Sql("UPDATE sessions SET used = used - 7 * 86400 - 60 WHERE id = '" + old + "'");
  const auto store = OpenStore();
  EXPECT_EQ(store->Find("t", old).error().code, Code::kNotFound);
  EXPECT_EQ(Shown(*store, fresh), "new|");
  EXPECT_TRUE(store->SweepFile());
  EXPECT_EQ(store->counts().sessions, 1u);
}

TEST_F(SessionFileTest, ADamagedRowCostsItsSession) {
  std::string bad, good;
  {
    const auto store = OpenStore();
    bad = Make(*store, "bad");
    good = Make(*store, "good");
  }
  Sql("UPDATE sessions SET sealed = zeroblob(100) WHERE id = '" + bad + "'");
  const auto check = CheckSessionFile(options_);
  ASSERT_TRUE(check && *check);
  EXPECT_EQ((*check)->sessions, 1u);
  ASSERT_EQ((*check)->damaged.size(), 1u);
  EXPECT_NE((*check)->damaged[0].find(bad), std::string::npos);
  const auto store = OpenStore();
  EXPECT_EQ(store->Find("t", bad).error().code, Code::kCorruption);
  const auto page = *store->List("t", std::nullopt, 10);
  EXPECT_EQ(page.entries.size(), 1u);
  EXPECT_EQ(page.damaged, 1u);
  EXPECT_EQ(store->List("other", std::nullopt, 10)->damaged, 0u);
  EXPECT_EQ(Shown(*store, good), "good|");
  EXPECT_TRUE((*store->Queue("t", bad, [] {}))->Remove());
}

TEST_F(SessionFileTest, AFullFileChangesNothing) {
  options_.cap_bytes = uint64_t{16} << 20;
  const auto store = OpenStore();
  const std::string id = Make(*store, "hello");
  const auto turn = *store->Queue("t", id, [] {});
  const auto grown =
      Append(*store, *turn->Read()->state, OneSaid("user", std::string(3'000'000, 'x')));
  const Status replaced = turn->Replace(*grown);
  ASSERT_FALSE(replaced);
  EXPECT_EQ(replaced.error().code, Code::kExhausted);
  EXPECT_EQ(Shown(*store, id), "hello|");
  const auto made = store->Create("t", *grown);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, Code::kExhausted);
  EXPECT_EQ(store->counts().sessions, 1u);
}

// Each sweep tries to write it, and this does not count as a use.
TEST_F(SessionFileTest, ASessionThatDoesNotFitIntoTheFileExpires) {
  OwnClock clock;
  options_.cap_bytes = uint64_t{16} << 20;
  SessionStore store({.ttl_ns = 1'000});
  const std::string id = Make(store, std::string(3'000'000, 'x'));
  ASSERT_TRUE(store.UseFile(OpenFile()));
  clock.Advance(std::chrono::nanoseconds(600));
  EXPECT_EQ(store.SweepFile().error().code, Code::kExhausted);
  EXPECT_EQ(store.counts().sessions, 1u);
  clock.Advance(std::chrono::nanoseconds(600));
  EXPECT_TRUE(store.SweepFile());
  EXPECT_EQ(store.counts().sessions, 0u);
}

TEST_F(SessionFileTest, OneKeyLeavesTheOthersTheirPartOfTheFile) {
  options_.cap_bytes = uint64_t{64} << 20;  // the file may have 4 MiB
  const auto fill = [](SessionStore& store, const std::string& tenant) {
    SessionStore own = store.Of(tenant);
    for (int made = 0;; ++made) {
      SessionState state =
          *Append(own, FreshState(own), OneSaid("user", std::string(100'000, 'x')));
      const auto entry = store.Create(tenant, std::move(state));
      if (entry) continue;
      EXPECT_EQ(entry.error().code, Code::kExhausted);
      EXPECT_NE(entry.error().message.find("1038336 are kept for you"), std::string::npos)
          << entry.error().message;
      return made;
    }
  };
  {
    auto store = std::make_unique<SessionStore>(SessionLimits());
    store->SetTenants({{"t", {}}, {"u", {}}});
    ASSERT_TRUE(store->UseFile(OpenFile()));
    const int first = fill(*store, "t");
    EXPECT_GT(first, 17);  // of 41
    EXPECT_LT(first, 21);
  }
  const auto store = OpenStore();  // it is as it was after a start
  store->SetTenants({{"t", {}}, {"u", {}}});
  EXPECT_EQ(fill(*store, "t"), 0);
  EXPECT_GT(fill(*store, "u"), 17);
  // What is made smaller is not refused.
  const std::string id = store->List("t", std::nullopt, 1)->entries[0].id;
  const auto turn = *store->Queue("t", id, [] {});
  EXPECT_TRUE(turn->Replace(*Truncate(*turn->Read()->state, 0)));
}

TEST_F(SessionFileTest, RefusesRecordsThatMakeNoSense) {
  SessionStore store{SessionLimits()};
  const SessionState state = *Append(store, FreshState(store), OneSaid("user", "hello"));
  const SessionRecord record{.id = "sess_1", .tenant = "t", .created_s = 5, .state = state};
  std::string whole = ToJson(record);
  ASSERT_TRUE(ParseSessionRecord(store, whole));
  EXPECT_EQ(ParseSessionRecord(store, whole)->created_s, 5);
  const std::vector<std::pair<std::string, std::string>> changes = {
      {"\"kvasir_session\":1", "\"kvasir_session\":0"},
      {"\"role\":\"user\"", "\"role\":\"root\""},
      {"\"dropped\":0", "\"dropped\":7"},
      {"\"dropped\":0", "\"dropped\":-1"},
      {"\"fields\":\"\"", "\"fields\":\"[]\""},
      {"\"content\":\"hello\"", "\"content\":\"hello\",\"ids\":[-1]"},
      {"\"content\":\"hello\"", "\"content\":\"hello\",\"ids_bytes\":6"},
      {"\"content\":\"hello\"",
       "\"content\":\"hello\",\"segments\":[{\"name\":\"a\",\"begin\":0,\"end\":9}]"},
      {"\"paths\":[]", "\"paths\":[{\"parent\":0,\"shared\":1,\"ids\":[1]}]"},
      {"\"paths\":[]", "\"paths\":[{\"ids\":[1],\"begins\":[[0,0,2]]}]"},
      {"\"paths\":[]", "\"paths\":[{\"ids\":[1],\"begins\":[[0,0]]}]"},
      {"\"paths\":[]", "\"paths\":[5]"},
      {"\"paths\":[]", "\"paths\":{}"},
      {"{", ""}};
  for (const auto& [from, to] : changes) {
    std::string changed = whole;
    ASSERT_NE(changed.find(from), std::string::npos) << from;
    changed.replace(changed.find(from), from.size(), to);
    const auto parsed = ParseSessionRecord(store, changed);
    ASSERT_FALSE(parsed) << to;
    EXPECT_EQ(parsed.error().code, Code::kInvalidArgument) << to;
  }
  whole.replace(whole.find("\"kvasir_session\":1"), 18, "\"kvasir_session\":2");
  EXPECT_EQ(ParseSessionRecord(store, whole).error().code, Code::kUnsupported) << "a newer version";
}

// Calls of a process that is killed at any instant: each that returned is there, and of the one
// that did not all or nothing.
TEST_F(SessionFileTest, SurvivesKills) {
  std::mt19937 random(7);
  std::map<std::string, std::string> known;  // by id: what was said
  for (int round = 0; round < 30; ++round) {
    int pipes[2];
    ASSERT_EQ(pipe(pipes), 0);
    const auto seed = static_cast<uint32_t>(random());
    const pid_t child = fork();
    if (child == 0) {
      std::mt19937 chance(seed);
      const auto store = OpenStore();
      std::vector<std::string> ids;
      for (const auto& [id, text] : known) ids.push_back(id);
      const auto tell = [&](const std::string& line) {
        if (write(pipes[1], line.data(), line.size()) != ssize_t(line.size())) _exit(4);
      };
      for (int i = 0;; ++i) {
        if (ids.size() < 3) {
          ids.push_back(Make(*store, "s"));
          tell("made " + ids.back() + "\n");
          continue;
        }
        const size_t at = chance() % ids.size();
        const auto turn = *store->Queue("t", ids[at], [] {});
        const SessionState state = *turn->Read()->state;
        const std::string said(chance() % 3000, static_cast<char>('a' + i % 26));
        tell("begin " + ids[at] + " " + said + "\n");
        if (chance() % 8 == 0) {
          if (!turn->Remove()) _exit(5);
          tell("gone\n");
          ids.erase(ids.begin() + static_cast<ptrdiff_t>(at));
          continue;
        }
        auto next = chance() % 3 == 0
                        ? Edit(*store, state, 0, Said("user", said), LaterMessages::kGo)
                        : Append(*store, state, OneSaid("user", said));
        if (!turn->Replace(std::move(*next))) _exit(6);
        tell("end " + Shown(*store, ids[at]) + "\n");
      }
    }
    close(pipes[1]);
    const auto delay_us = 30'000 + random() % 150'000;
    usleep(static_cast<useconds_t>(delay_us));
    kill(child, SIGKILL);
    std::string told;
    char buffer[4096];
    for (ssize_t n; (n = read(pipes[0], buffer, sizeof(buffer))) > 0;) told.append(buffer, n);
    close(pipes[0]);
    int status = 0;
    waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status)) << WEXITSTATUS(status);
    std::string open_id, open_said;
    for (size_t begin = 0, end; (end = told.find('\n', begin)) != told.npos; begin = end + 1) {
      const std::string line = told.substr(begin, end - begin);
      if (line.starts_with("made ")) known[line.substr(5)] = "s|";
      if (line.starts_with("begin ")) open_id = line.substr(6, 37), open_said = line.substr(44);
      if (line == "gone") known.erase(open_id);
      if (line.starts_with("end ")) known[open_id] = line.substr(4);
      if (!line.starts_with("begin ")) open_id.clear();
    }
    const auto store = OpenStore();
    std::map<std::string, std::string> found;
    const auto page = store->List("t", std::nullopt, 100);
    for (const auto& entry : page->entries) found[entry.id] = Shown(*store, entry.id);
    for (const auto& [id, text] : known) {
      const bool is_there = found.contains(id);
      if (id == open_id) {  // removed, edited, appended to, or as it was
        const bool is_whole = !is_there || found[id] == text || found[id] == open_said + "|" ||
                              found[id] == text + open_said + "|";
        EXPECT_TRUE(is_whole) << id;
      } else {
        ASSERT_TRUE(is_there) << id << " in round " << round;
        EXPECT_EQ(found[id], text) << id;
      }
    }
    EXPECT_LE(found.size(), known.size() + 1);  // one was being made
    known = std::move(found);
  }
}

}  // namespace
}  // namespace kvasir
