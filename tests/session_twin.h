// The twin of sessions: random conversations that are edited, truncated, forked and forgotten on an
// engine with a tiny pool. Each generate is repeated as a plain request for the session's ids on an
// engine whose cache is off: every row of logits has the same bits (contracts C1 and C2). Answers
// end at stop texts, clients hang up, forks expire, and chats outside of sessions begin alike;
// after each erase the cache's list of what it has is compared with the rule of
// docs/decisions/0018-forget.md. On a disk all records that a start would find are compared with it
// too, and processes are killed while they answer: the next one has the folder as it was, and the
// sessions of its file.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "api/model_view.h"
#include "api/session_forget.h"
#include "api/session_prompt.h"
#include "base/random.h"
#include "disk_records.h"
#include "engine_scenario.h"
#include "forget_ranges.h"
#include "kvasir/session.h"
#include "kvasir/session_file.h"
#include "text/piece_store.h"

namespace kvasir {

class SessionTwin {
 public:
  using RowMap = std::map<uint32_t, std::vector<float>>;  // by position
  struct Counts {
    uint64_t rows = 0, differ = 0, reused_tokens = 0, forgotten_blocks = 0, evicted_blocks = 0;
    uint64_t dropped_messages = 0, prepared_tokens = 0, drafted = 0, accepted = 0;
    uint64_t exact_answers = 0;  // answers whose ids are not the canonical
    // Engines that began empty, and sessions. A random history is the life of one session.
    uint64_t pools = 0, histories = 0;
    uint64_t erased_histories = 0;                // of those: with an erase that was checked
    uint64_t erases = 0, wrong_erases = 0;        // wrong: something stayed, or too much went
    uint64_t parted_texts = 0, behind_texts = 0;  // of those erases: cached texts that had to stay
                                                  // though they begin alike; that had to go
    // The same of records on the disk; compared: erases in both directions, others in one.
    uint64_t disk_compared = 0, disk_wrong = 0, disk_parted = 0, disk_behind = 0;
    std::map<std::string, uint64_t> changes;  // by kind
  };

  explicit SessionTwin(uint64_t seed) : random_(seed), drafts_(~seed) {}

  SessionTwin& OnDisk() {
    on_disk_ = true;
    return *this;
  }

  // Runs random histories until so many erases are checked, and so many histories are begun.
  const Counts& Erase(uint64_t erases, uint64_t histories = 0) {
    while (counts_.erases < erases || counts_.histories < histories) {
      if (testing::Test::HasFailure()) break;
      Round();
      if (counts_.pools % 100 == 0) std::cerr << counts_.erases << " erases so far\n";
    }
    return counts_;
  }

  // Makes random changes and generates until `rows` rows are compared.
  const Counts& Compare(uint64_t rows) {
    while (counts_.rows < rows && !testing::Test::HasFailure()) Round();
    return counts_;
  }

 private:
  static constexpr uint32_t kContext = 384;
  static constexpr const char* kTenant = "t";
  struct Asked {
    std::string id;
    SessionState state;
    GenerateRequest request;
    std::vector<SessionPath::Begin> begins;
    std::unique_ptr<RowMap> rows = std::make_unique<RowMap>();
    std::unique_ptr<Pending> pending;
  };

  void Round() {
    EngineOptions options = DemoOptions();
    options.model = ModelThatSplitsCharacters();
    options.ctx_size = kContext;
    EngineOptions twin_options = options;
    twin_options.cache_mode = CacheMode::kSequence;
    twin_options.speculate = Speculate::kOff;
    options.speculate = drafts_.Below(2) == 0 ? Speculate::kAuto : Speculate::kAlways;
    options.block_tokens = 16 * (1 + static_cast<uint32_t>(random_.Below(2)));
    options.step_tokens = random_.Below(2) == 0 ? 33 : 512;
    options.parallel = 4;
    options.kv_memory_bytes = 256 << 10;  // then a pool that holds two or three prompts
    for (;; options.kv_memory_bytes = options.kv_memory_bytes * 5 / 4) {
      const Result<MemoryPlan> plan = Engine::PlanMemory(options);
      if (plan && plan->sequences >= 2) break;
      ASSERT_LT(options.kv_memory_bytes, uint64_t{1} << 30);
    }
    ++counts_.pools;
    folder_ = ScratchDir() / "session-twin";
    if (on_disk_) {
      std::filesystem::remove_all(folder_);
      options.disk = DiskOptions{.folder = folder_.string(), .cap_bytes = uint64_t{64} << 20};
    }
    if (twin_ == nullptr) twin_ = LoadEngine(twin_options);
    std::unique_ptr<Engine> engine;
    std::unique_ptr<SessionStore> sessions;
    Start(options, &engine, &sessions);
    PieceStore pieces(1 << 20, 7);
    ids_.clear();
    known_.clear();
    read_.clear();
    for (int batch = 0; batch < 40 && !testing::Test::HasFailure(); ++batch) {
      ModelView view = ViewOf(*engine, nullptr);
      view.pieces = pieces.SpaceOf(kTenant);
      if (random_.Below(10) == 0) pieces.Erase(kTenant);
      if (Batch(*engine, *twin_, view, *sessions)) Kill(options, &engine, &sessions);
      if (random_.Below(8) == 0) engine->CheckInvariants();
    }
    EndPrepared();
    SessionStore& store = *sessions;
    const EngineStats stats = engine->Stats();
    counts_.prepared_tokens += stats.prepared_tokens;
    counts_.evicted_blocks += stats.evicted_blocks;
    EXPECT_EQ(stats.pinned_blocks, 0u);
    EXPECT_EQ(stats.requests_failed, 0u);
    engine->CheckInvariants();
    EXPECT_EQ(store.RemoveAll(kTenant), ids_.size());
    EXPECT_EQ(store.counts().bytes, 0u) << "memory of removed sessions was not given back";
  }

  void Start(const EngineOptions& options, std::unique_ptr<Engine>* engine,
             std::unique_ptr<SessionStore>* sessions) {
    *engine = LoadEngine(options);
    *sessions = std::make_unique<SessionStore>(SessionLimits());
    if (!on_disk_) return;
    auto file = SessionFile::Open(SessionFileOptionsOf(**engine));
    ASSERT_TRUE(file) << file.error().message;
    ASSERT_TRUE((*sessions)->UseFile(std::move(*file)));
  }

  // Kills: the process is gone, and the folder is as it was at one moment.
  void Kill(const EngineOptions& options, std::unique_ptr<Engine>* engine,
            std::unique_ptr<SessionStore>* sessions) {
    EndPrepared();
    ++counts_.changes["kill"];
    const std::filesystem::path left = folder_.string() + "-left";
    std::filesystem::remove_all(left);
    std::filesystem::copy(folder_, left, std::filesystem::copy_options::recursive);
    sessions->reset();
    engine->reset();
    std::filesystem::remove_all(folder_);
    std::filesystem::rename(left, folder_);
    std::filesystem::permissions(folder_, std::filesystem::perms::owner_all);
    Start(options, engine, sessions);
  }

  static void Flush(Engine& engine) {
    std::promise<Result<TierFlushed>> told;
    engine.Flush([&](Result<TierFlushed> flushed) { told.set_value(std::move(flushed)); });
    const Result<TierFlushed> flushed = told.get_future().get();
    EXPECT_TRUE(flushed) << flushed.error().message;
  }
  static std::string DiskState(Engine& engine) {
    const std::optional<TierStats> disk = engine.DiskStats();
    if (!disk) return "";
    return std::string(" (disk ") + ToString(disk->state) + ": " + disk->reason + "; " +
           std::to_string(disk->fault_stalled) + " stalls, " + std::to_string(disk->fault_read) +
           " failed reads, " + std::to_string(disk->fault_write) + " failed writes)";
  }
  DiskRecords::Records Stored() {
    const DiskRecords::Records stored =
        DiskRecords::Read(folder_.string(), (ScratchDir() / "state").string());
    for (const auto& one : stored) known_.insert(one);
    return stored;
  }

  // Lets some sessions change, then answer at once; meanwhile another one may forget. True: the
  // process is to be killed, and no client has got the answers.
  bool Batch(Engine& engine, Engine& twin, const ModelView& view, SessionStore& store) {
    if (ids_.empty() || (ids_.size() < 5 && random_.Below(3) == 0)) Create(store);
    Chat(engine);
    if (random_.Below(3) == 0) CheckedErase(engine, view, store);
    if (ids_.size() > 3 && random_.Below(8) == 0) Expire(store);
    std::vector<Asked> batch;
    for (const std::string& id : std::vector<std::string>(ids_)) {
      if (batch.size() == 3 || random_.Below(2) == 0) continue;
      Change(engine, view, store, id);
      auto asked = Start(engine, view, store, id);
      if (asked) batch.push_back(std::move(*asked));
    }
    if (!ids_.empty() && random_.Below(4) == 0) {
      const std::string& id = ids_[random_.Below(ids_.size())];
      const bool is_asked = std::ranges::find(batch, id, &Asked::id) != batch.end();
      if (!is_asked) Forget(engine, view, store, id);
    }
    if (on_disk_ && random_.Below(5) == 0) {
      for (Asked& asked : batch) asked.pending->Wait();
      if (random_.Below(3) != 0) Flush(engine);
      return true;
    }
    for (Asked& asked : batch) Finish(twin, view, store, asked);
    if (batch.empty() || random_.Below(2) == 0) return false;
    Prepare(engine, view, store, batch.back().id);
    return false;
  }

  std::string Words(uint64_t count) {
    static constexpr const char* kWords[] = {"river", "stone", "paper", "seven", "Anna",
                                             "lives", "Oslo.", "4711",  "é🙂",   "safe"};
    std::string text;
    for (uint64_t i = 0; i <= count; ++i) {
      text += (i > 0 ? " " : "") + std::string(kWords[random_.Below(std::size(kWords))]);
    }
    return text;
  }
  SessionMessage Said(std::string role) {
    SessionMessage message;
    message.role = std::move(role);
    message.content = Words(random_.Below(random_.Below(3) == 0 ? 40 : 6));
    return message;
  }
  static std::vector<SessionMessage> Messages(std::string role, std::string content) {
    std::vector<SessionMessage> messages(1);
    messages[0].role = std::move(role);
    messages[0].content = std::move(content);
    return messages;
  }

  void Create(SessionStore& store) {
    ++counts_.histories;
    SessionSetup setup;
    setup.max_context = 200 + static_cast<uint32_t>(random_.Below(kContext - 200));
    setup.drops_oldest = random_.Below(3) != 0;
    setup.exact_ids = random_.Below(4) != 0;
    SessionState state;
    state.setup = *store.Keep(std::move(setup));
    if (random_.Below(2) == 0) state = *SetSystem(store, state, Said("system"));
    ids_.push_back(store.Create(kTenant, std::move(state))->id);
  }

  static std::shared_ptr<SessionStore::Turn> TurnOf(SessionStore& store, const std::string& id) {
    return *store.Queue(kTenant, id, [] {});
  }

  void Change(Engine& engine, const ModelView& view, SessionStore& store, const std::string& id) {
    const auto turn = TurnOf(store, id);
    const SessionState state = *turn->Read()->state;
    const size_t size = state.messages.size();
    const uint64_t kind = random_.Below(10);
    if (size < 2 || kind < 4) return;
    const size_t index = random_.Below(size);
    if (kind == 4 || kind == 5) {
      const auto later = kind == 4 ? LaterMessages::kGo : LaterMessages::kStay;
      ++counts_.changes[kind == 4 ? "edit" : "edit and keep"];
      ASSERT_TRUE(turn->Replace(*Edit(store, state, index, Said("user"), later)));
    } else if (kind == 6) {
      ++counts_.changes["truncate"];
      ASSERT_TRUE(turn->Replace(*Truncate(state, random_.Below(size + 1))));
    } else if (kind == 7 && ids_.size() < 6) {
      ++counts_.changes["fork"];
      ++counts_.histories;
      ids_.push_back(store.Create(kTenant, *ForkOf(store, state, 1 + random_.Below(size)))->id);
    } else if (kind == 8) {
      ++counts_.changes["system"];
      ASSERT_TRUE(turn->Replace(*SetSystem(store, state, Said("system"))));
    } else if (kind == 9) {
      turn->End();
      Forget(engine, view, store, id);
    }
  }

  void Forget(Engine& engine, const ModelView& view, SessionStore& store, const std::string& id) {
    const auto turn = TurnOf(store, id);
    const SessionState state = *turn->Read()->state;
    if (state.messages.empty()) return;
    EndPrepared();
    SessionPart part{.index = random_.Below(state.messages.size())};
    const std::string& content = state.messages[part.index]->content;
    if (random_.Below(2) == 0 && ByteOfCodePoint(content, 2)) {
      part.begin = static_cast<uint32_t>(random_.Below(2));
      part.end = part.begin + 1;
    }
    ++counts_.changes[part.end ? "forget a part" : "forget"];
    const ForgetScope scope{view, kTenant, store.OthersOf(kTenant, id)};
    AskedForget asked{.messages = {part.index, part.index + 1}, .part = {}};
    if (part.end) {
      asked.part = {*ByteOfCodePoint(content, part.begin), *ByteOfCodePoint(content, *part.end)};
    }
    NoteForgotten(id, ForgottenTexts(state, asked, scope).Take());
    auto forgetting = ForgetPart(store, state, part, scope);
    ASSERT_TRUE(forgetting) << forgetting.error().message;
    ASSERT_TRUE(turn->Replace(std::move(forgetting->state)));
    for (ForgetRequest& request : forgetting->requests) {
      std::promise<Erasure> told;
      engine.Forget(std::move(request), [&](const Erasure& one) { told.set_value(one); });
      const Erasure erased = told.get_future().get();
      EXPECT_FALSE(erased.error) << erased.error->message << DiskState(engine);
      counts_.forgotten_blocks += erased.blocks;
    }
  }

  using Texts = std::vector<std::vector<TokenId>>;
  // Returns what is resident, up to the end of each branch.
  static Texts ResidentIn(Engine& engine) {
    std::promise<PrefixList> told;
    engine.ListPrefixes(kTenant, [&](PrefixList list) { told.set_value(std::move(list)); });
    const PrefixList list = told.get_future().get();
    EXPECT_FALSE(list.has_more);
    Texts texts;
    std::vector<bool> goes_on(list.runs.size());
    for (const PrefixRun& run : list.runs) {
      std::vector<TokenId> text;
      if (run.parent) {
        text = texts[*run.parent];
        text.resize(run.begin);
        if (run.begin == texts[*run.parent].size()) goes_on[*run.parent] = true;
      }
      text.insert(text.end(), run.tokens.begin(), run.tokens.end());
      texts.push_back(std::move(text));
    }
    Texts leaves;
    for (size_t i = 0; i < texts.size(); ++i) {
      if (!goes_on[i]) leaves.push_back(std::move(texts[i]));
    }
    return leaves;
  }
  static size_t Common(std::span<const TokenId> a, std::span<const TokenId> b) {
    return static_cast<size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
  }
  static bool IsIn(const Texts& texts, const std::vector<TokenId>& text) {
    return std::ranges::any_of(
        texts, [&](const auto& other) { return Common(text, other) == text.size(); });
  }

  // Forgets a part of a session or all of it while nothing runs.
  void CheckedErase(Engine& engine, const ModelView& view, SessionStore& store) {
    EndPrepared();
    const std::string id = ids_[random_.Below(ids_.size())];
    const auto turn = TurnOf(store, id);
    const SessionState state = *turn->Read()->state;
    const ForgetScope scope{view, kTenant, store.OthersOf(kTenant, id)};
    std::vector<ForgetRequest> requests, rule;
    bool notes_right = true;
    if (state.messages.empty() || random_.Below(2) == 0) {
      ++counts_.changes["delete"];
      requests = ForgetAll(state, scope);
      rule = ForgottenTexts(state, scope).Take();  // and HasRead
      ASSERT_TRUE(turn->Remove());
      std::erase(ids_, id);
    } else {
      const SomeForget some = ForgetSome(random_, store, state, Said("user"), scope);
      ++counts_.changes[some.kind];
      ASSERT_TRUE(turn->Replace(some.forgetting.state));
      requests = some.forgetting.requests;
      rule = ForgottenTexts(state, some.asked, scope).Take();
      notes_right = AreCut(rule, state, some);
      NoteForgotten(id, rule);
    }
    const Texts before = ResidentIn(engine);
    DiskRecords::Records stored;
    if (on_disk_ && random_.Below(3) != 0) {  // else much is still on its way
      Flush(engine);
      stored = Stored();
      // Where a record was evicted its header stays until the slot is taken or zeroed.
      const bool all_known = stored.size() == engine.DiskStats()->blocks;
      if (!all_known) stored.clear();
      counts_.disk_compared += all_known;
    }
    for (const ForgetRequest& request : requests) {
      std::promise<Erasure> told;
      engine.Forget(request, [&](const Erasure& one) { told.set_value(one); });
      const Erasure erased = told.get_future().get();
      EXPECT_FALSE(erased.error) << erased.error->message << DiskState(engine);
      counts_.forgotten_blocks += erased.blocks;
    }
    const Texts after = ResidentIn(engine);
    ++counts_.erases;
    counts_.erased_histories += erased_.insert(id).second;
    const bool is_deleted = std::ranges::find(ids_, id) == ids_.end();
    bool is_right = notes_right && (!is_deleted || !HasRead(id, rule, after));
    if (on_disk_) CheckStored(engine, is_deleted ? id : "", rule, stored);
    is_right &= HasNone(rule, after);
    for (const auto& text : before) {
      bool begins_alike = false, parts = true;
      for (const ForgetRequest& request : rule) {
        const size_t common = Common(text, request.ids);
        if (common > request.last) ++counts_.behind_texts;
        begins_alike |= common > request.first;
        // Where it ends in the text itself, nothing comes after it.
        parts &= common <= request.last && common < text.size();
      }
      if (!parts) continue;
      counts_.parted_texts += begins_alike;
      is_right &= IsIn(after, text);
    }
    counts_.wrong_erases += !is_right;
  }

  // Tells whether no text has all of a forgotten text or ends in it, unless a live session has it.
  static bool HasNone(std::span<const ForgetRequest> forgotten, const Texts& texts) {
    return std::ranges::none_of(forgotten, [&](const ForgetRequest& one) {
      return std::ranges::any_of(texts, [&](const auto& text) {
        const size_t common = Common(text, one.ids);
        const bool ends_there = common > one.first && common == text.size();
        return (common > one.last || ends_there) && !IsIn(one.kept, text);
      });
    });
  }

  // Tells whether a text has all that the session's prompts begin with, up to the end of the first
  // message that somebody said, or ends in one of them, and no live session has that text. The twin
  // has noted the prompts itself.
  bool HasRead(const std::string& id, std::span<const ForgetRequest> requests, const Texts& texts) {
    const auto is_kept = [&](const std::vector<TokenId>& text) {
      for (const ForgetRequest& request : requests) {
        if (IsIn(request.kept, text)) return true;
      }
      return std::ranges::any_of(ids_, [&](const std::string& other) {
        return std::ranges::any_of(
            read_[other], [&](const Read& read) { return Common(text, read.ids) == text.size(); });
      });
    };
    for (const Read& read : read_[id]) {
      for (const auto& text : texts) {
        const size_t common = Common(text, read.ids);
        if ((common >= read.end || common == text.size()) && !is_kept(text)) return true;
      }
    }
    return false;
  }
  void NoteForgotten(const std::string& id, std::span<const ForgetRequest> requests) {
    for (Read& read : read_[id]) {  // what is before the texts stays
      size_t left = read.ids.size();
      for (const ForgetRequest& one : requests) {
        if (Common(read.ids, one.ids) > one.last) left = std::min<size_t>(left, one.first);
      }
      if (left < read.end) read.end = SIZE_MAX;  // its first message is not whole
      read.ids.resize(left);
    }
  }

  // Checks that no record begins with a forgotten text, unless a live session has it; one that
  // parts from it is found as before, with all that it needs.
  void CheckStored(Engine& engine, const std::string& deleted,
                   std::span<const ForgetRequest> requests, const DiskRecords::Records& before) {
    Flush(engine);  // nothing forgotten was on its way
    const DiskRecords::Records after = Stored();
    bool is_right = true;
    std::set<BlockKey> goes_on;
    for (const auto& [key, record] : after) {
      if (record.before) goes_on.insert(*record.before);
    }
    Texts texts;
    for (const auto& [key, record] : after) {
      const auto text = DiskRecords::TextOf(known_, key);
      if (!text) continue;  // what it was computed after was never on the disk
      if (!goes_on.contains(key)) texts.push_back(*text);
    }
    is_right &= HasNone(requests, texts);
    if (!deleted.empty()) is_right &= !HasRead(deleted, requests, texts);
    for (const auto& [key, record] : before) {
      const auto text = DiskRecords::TextOf(before, key);
      if (!text) continue;  // no start would find it
      bool begins_alike = false, parts = true;
      for (const ForgetRequest& request : requests) {
        const size_t common = Common(*text, request.ids);
        if (common > request.last) ++counts_.disk_behind;
        begins_alike |= common > request.first;
        parts &= common <= request.last && common < text->size();
      }
      if (!parts) continue;
      counts_.disk_parted += begins_alike;
      is_right &= DiskRecords::TextOf(after, key) == text;
    }
    counts_.disk_wrong += !is_right;
  }

  // Ends the session; what it has read is not erased.
  void Expire(SessionStore& store) {
    EndPrepared();
    const size_t i = random_.Below(ids_.size());
    ++counts_.changes["expire"];
    ASSERT_TRUE(TurnOf(store, ids_[i])->Remove());
    ids_.erase(ids_.begin() + static_cast<ptrdiff_t>(i));
  }

  // Sends a request of the same tenant outside of sessions, which begins as something cached does.
  void Chat(Engine& engine) {
    const Texts texts = ResidentIn(engine);
    if (texts.empty()) return;
    std::vector<TokenId> ids = texts[random_.Below(texts.size())];
    ids.resize(std::min<size_t>(1 + random_.Below(ids.size()), kContext / 2));
    for (uint64_t i = random_.Below(40); i > 0; --i) {
      ids.push_back(5 + static_cast<TokenId>(random_.Below(100)));
    }
    GenerateRequest request = Greedy(std::move(ids), 1);
    request.tenant = kTenant;
    Ask(engine, std::move(request));
  }

  // Absent: the context is full.
  std::optional<Asked> Start(Engine& engine, const ModelView& view, SessionStore& store,
                             const std::string& id) {
    std::vector<SessionMessage> messages;
    messages.push_back(Said("user"));
    Asked asked{.id = id,
                .state = *Append(store, *TurnOf(store, id)->Read()->state, std::move(messages))};
    auto prompt = PromptOf(asked.state, view);
    if (!prompt) {
      EXPECT_EQ(prompt.error().code, Code::kExhausted) << prompt.error().message;
      ++counts_.changes["context full"];
      const auto turn = TurnOf(store, id);
      EXPECT_TRUE(turn->Replace(*Truncate(asked.state, 0)));
      return std::nullopt;
    }
    if (prompt->dropped > asked.state.dropped) ++counts_.changes["drop turns"];
    counts_.dropped_messages += prompt->dropped - asked.state.dropped;
    asked.state.dropped = prompt->dropped;
    asked.begins = BeginsOf(asked.state, prompt->chat);
    const auto size = static_cast<uint32_t>(prompt->chat.ids.size());
    asked.request = Greedy(std::move(prompt->chat.ids), 0);
    asked.request.max_tokens = std::min(1 + static_cast<uint32_t>(random_.Below(24)),
                                        asked.state.setup->max_context - size);
    asked.request.message_ends = std::move(prompt->chat.message_ends);
    asked.request.tenant = kTenant;
    asked.request.sampling.temperature = static_cast<float>(random_.Below(3)) * 0.9f;
    asked.request.sampling.seed = random_.Bits();
    if (random_.Below(3) == 0) asked.request.stop = {random_.Below(2) == 0 ? "e" : " a", "."};
    EXPECT_TRUE(NotePrompt(*TurnOf(store, id), asked.request, asked.begins, &asked.state));
    const size_t said = (asked.state.has_system() ? 1 : 0) + asked.state.dropped;
    read_[id].push_back({asked.request.prompt, asked.request.message_ends[said]});
    GenerateRequest request = asked.request;
    request.on_logits = Recorder(*asked.rows);
    asked.pending = std::make_unique<Pending>(engine, std::move(request));
    return asked;
  }

  void Finish(Engine& twin, const ModelView& view, SessionStore& store, Asked& asked) {
    const Answer& answer = asked.pending->Wait();
    counts_.reused_tokens += answer.receipt.cached_tokens();
    counts_.drafted += answer.receipt.draft.all_drafted();
    counts_.accepted += answer.receipt.draft.all_accepted();
    RowMap expected;
    GenerateRequest request;  // what /v1/completions would ask
    request.prompt = asked.request.prompt;
    request.max_tokens = asked.request.max_tokens;
    request.sampling = asked.request.sampling;
    request.stop = asked.request.stop;
    request.on_logits = Recorder(expected);
    const Answer truth = Ask(twin, std::move(request));
    EXPECT_EQ(answer.choices[0].tokens, truth.choices[0].tokens);
    EXPECT_EQ(answer.choices[0].text, truth.choices[0].text);
    if (answer.choices[0].stop_match) ++counts_.changes["stop text"];
    EXPECT_GE(asked.rows->size(), answer.choices[0].tokens.size());
    for (const auto& [position, row] : *asked.rows) {
      ++counts_.rows;
      const auto it = expected.find(position);
      const bool same = it != expected.end() &&
                        std::memcmp(it->second.data(), row.data(), row.size() * sizeof(float)) == 0;
      if (!same) ++counts_.differ;
    }
    Keep(view, store, asked, answer.choices[0]);
  }

  // Keeps the answer as the server does.
  void Keep(const ModelView& view, SessionStore& store, Asked& asked,
            const Answer::Choice& choice) {
    SessionMessage said;
    said.role = "assistant";
    said.content = choice.text;
    said.generated = true;
    const AnswerIds known = IdsOfAnswer(choice.tokens, choice.text, *view.tokenizer);
    said.ids.assign(choice.tokens.begin(),
                    choice.tokens.begin() + static_cast<ptrdiff_t>(known.count));
    said.ids_bytes = known.bytes;
    said.ids_read_back = known.reads_back == ReadsBack::kAnywhere;
    EncodeOptions options;
    options.add_special = false;
    if (const auto canonical = view.tokenizer->Encode(choice.text, options)) {
      counts_.exact_answers += *canonical != said.ids && asked.state.setup->exact_ids;
    }
    if (random_.Below(6) == 0) {  // the client hung up: the session knows its prompt alone
      ++counts_.changes["hang up"];
      const auto turn = TurnOf(store, asked.id);
      ASSERT_TRUE(turn->Replace(*turn->Read()->state));
      return;
    }
    std::vector<SessionPath::Begin> begins = asked.begins;
    const auto& ends = asked.request.message_ends;
    begins.push_back({said.number, said.version, ends.empty() ? 0 : ends.back()});
    std::vector<TokenId> ids = asked.request.prompt;
    ids.insert(ids.end(), choice.tokens.begin(), choice.tokens.end());
    std::vector<SessionMessage> messages;
    messages.push_back(std::move(said));
    auto changed = Append(store, asked.state, std::move(messages));
    ASSERT_TRUE(changed);
    auto paths = AddPath(store, changed->paths, ids, begins, SpaceOf(asked.request));
    ASSERT_TRUE(paths);
    changed->paths = std::move(*paths);
    ASSERT_TRUE(TurnOf(store, asked.id)->Replace(std::move(*changed)));
  }

  // Computes the history as the next turn will show it, as the server does.
  void Prepare(Engine& engine, const ModelView& view, SessionStore& store, const std::string& id) {
    const auto turn = TurnOf(store, id);
    const SessionState state = *turn->Read()->state;
    if (state.messages.empty()) return;
    auto next = Append(store, state, Messages("user", "next"));
    ASSERT_TRUE(next);
    const auto prompt = PromptOf(*next, view);
    if (!prompt) return;  // the context is full
    GenerateRequest request;
    const auto& ends = prompt->chat.message_ends;
    request.message_ends.assign(ends.begin(), ends.end() - 1);
    request.prompt.assign(prompt->chat.ids.begin(),
                          prompt->chat.ids.begin() + request.message_ends.back());
    if (request.prompt.empty()) return;
    request.tenant = kTenant;
    request.max_tokens = 0;
    request.chunk_tokens = 16;
    request.only_when_idle = true;
    ++counts_.changes["prepare"];
    prepared_.push_back(std::make_unique<Pending>(engine, std::move(request)));
    if (random_.Below(2) == 0) prepared_.back()->Wait();  // else the next turn interrupts it
  }

  void EndPrepared() {
    for (const auto& pending : prepared_) pending->Cancel();
    for (const auto& pending : prepared_) pending->Wait();
    prepared_.clear();
  }

  static std::function<void(uint32_t, uint32_t, std::span<const float>)> Recorder(RowMap& rows) {
    return [&rows](uint32_t, uint32_t position, std::span<const float> logits) {
      EXPECT_TRUE(rows.emplace(position, std::vector(logits.begin(), logits.end())).second);
    };
  }

  Random random_, drafts_;
  bool on_disk_ = false;
  std::unique_ptr<Engine> twin_;
  std::filesystem::path folder_;
  struct Read {
    std::vector<TokenId> ids;
    size_t end = 0;  // of the first message that somebody said
  };
  std::map<std::string, std::vector<Read>> read_;  // by session
  DiskRecords::Records known_;                     // all that was seen on the disk in this round
  std::vector<std::string> ids_;                   // of the sessions
  std::set<std::string> erased_;                   // ids of those that had a checked erase
  std::vector<std::unique_ptr<Pending>> prepared_;
  Counts counts_;
};

inline void PrintSessionTwin(const SessionTwin::Counts& counts) {
  const auto number = [](uint64_t value) { return static_cast<unsigned long long>(value); };
  std::printf("rows %llu differ %llu (reused tokens %llu, forgotten blocks %llu, evicted %llu, ",
              number(counts.rows), number(counts.differ), number(counts.reused_tokens),
              number(counts.forgotten_blocks), number(counts.evicted_blocks));
  std::printf("dropped messages %llu, prepared tokens %llu, answers with other ids %llu",
              number(counts.dropped_messages), number(counts.prepared_tokens),
              number(counts.exact_answers));
  std::printf(", drafted %llu, accepted %llu, histories %llu in %llu pools, with an erase %llu",
              number(counts.drafted), number(counts.accepted), number(counts.histories),
              number(counts.pools), number(counts.erased_histories));
  std::printf(", erases %llu, wrong %llu: texts that stayed %llu, that went %llu",
              number(counts.erases), number(counts.wrong_erases), number(counts.parted_texts),
              number(counts.behind_texts));
  std::printf(", on the disk: compared %llu, wrong %llu: records that stayed %llu, that went %llu",
              number(counts.disk_compared), number(counts.disk_wrong), number(counts.disk_parted),
              number(counts.disk_behind));
  for (const auto& [kind, count] : counts.changes) {
    std::printf(", %s %llu", kind.c_str(), number(count));
  }
  std::printf(")\n");
}

}  // namespace kvasir
