// The twin: random conversations on an engine with a tiny pool, each request is repeated on
// an engine whose cache is off and that runs it alone. Contracts C1 and C2: every row of logits has
// the same bits, every choice the same tokens.
#pragma once

#include <cstring>
#include <filesystem>
#include <future>
#include <map>
#include <thread>
#include <utility>

#include "base/fault.h"
#include "base/random.h"
#include "chat/answer_format.h"
#include "engine_scenario.h"
#include "engine_twin_counts.h"
#include "simd/target.h"

namespace kvasir {

class TwinRun {
 public:
  explicit TwinRun(uint64_t seed)
      : random_(seed), drafts_(~seed), adapters_(seed * 3 + 1), shares_(seed * 5 + 1) {}

  // Makes that from now on each round has a disk, and its engine is started again now and then.
  TwinRun& OnDisk() {
    on_disk_ = true;
    least_sequences_ = 3;  // steps of a whole block leave less room for forks of windows
    return *this;
  }

  // Makes that from now on each round has two engines, each on a CPU target of its choice, which
  // share their blocks through a store. `disturb` is called before each batch.
  TwinRun& OnStore(RemoteOptions store, std::function<void(Random&)> disturb) {
    store_ = std::move(store);
    disturb_ = std::move(disturb);
    return *this;
  }
  // Makes that from now on the first engine of a round alone writes to the store, under `writer`,
  // and the other one only reads there, under `reader`.
  void Across(Target writer, Target reader) { across_ = {writer, reader}; }
  // Makes that from now on each round has a draft model: the same one, with a small cache.
  TwinRun& WithDraftModel() {
    has_draft_model_ = true;
    return *this;
  }
  // Runs rounds with random options until `rows` rows are compared.
  const TwinCounts& Compare(uint64_t rows) {
    most_rows_ = rows;
    while (counts_.rows < rows && !testing::Test::HasFailure()) Round();
    return counts_;
  }
  // Does so on a folder whose context is 256, like those of tests/data.
  const TwinCounts& CompareFolder(const std::string& folder, uint64_t rows) {
    most_rows_ = rows;
    while (counts_.rows < rows && !testing::Test::HasFailure()) RoundOn(FolderOptions(folder), 40);
    return counts_;
  }
  // Runs one round for each KV format, in blocks of `block_tokens`.
  const TwinCounts& CompareFormats(const std::string& folder, uint32_t block_tokens) {
    block_tokens_ = block_tokens;
    least_sequences_ = 3;  // three forks share no window
    for (const char* format : kFormats) {
      if (testing::Test::HasFailure()) break;
      format_ = format;
      RoundOn(FolderOptions(folder), 8);
    }
    return counts_;
  }
  // Runs one round on the tiny model, for injected faults.
  const TwinCounts& CompareTiny() {
    RoundOn(TinyOptions(), 40);
    return counts_;
  }

 private:
  using RowMap = std::map<std::pair<uint32_t, uint32_t>, std::vector<float>>;  // choice, position
  struct Asked {
    GenerateRequest request;
    std::unique_ptr<RowMap> rows = std::make_unique<RowMap>();
    std::unique_ptr<Pending> pending;
    size_t conversation;
  };
  struct Conversation {
    std::string tenant;
    std::vector<TokenId> tokens, prompt;  // the whole conversation; the last prompt
  };

  static constexpr const char* kFormats[] = {"f32",           "f16",        "bf16", "fp8_e4m3",
                                             "fp8_e5m2",      "int8",       "int4", "nf4",
                                             "k=int8,v=int4", "k=f16,v=nf4"};

  EngineOptions FolderOptions(const std::string& folder) {
    EngineOptions options = DemoOptions();
    options.model = folder;
    max_tokens_ = 256;
    return options;
  }

  void Round() {
    const bool demo = random_.Below(8) == 0;
    RoundOn(demo ? DemoOptions() : TinyOptions(), demo ? 15 : 40);
  }

  void RoundOn(EngineOptions options, uint32_t num_batches) {
    const uint32_t step_tokens[] = {6, 33, 512};
    options.kv_format = format_.value_or(kFormats[random_.Below(std::size(kFormats))]);
    if (random_.Below(4) == 0) options.kv_skip_layers = {0};
    options.ctx_size = max_tokens_;
    EngineOptions twin_options = options;
    twin_options.cache_mode = CacheMode::kSequence;
    twin_options.speculate = Speculate::kOff;
    // The other rounds draft what their conversations and predictions say.
    options.speculate = drafts_.Below(4) == 0 ? Speculate::kOff : Speculate::kAlways;
    options.draft_max = 1 + static_cast<uint32_t>(drafts_.Below(kMaxDraft));
    if (has_draft_model_) {
      options.draft_model = options.model;
      options.draft_shape = options.shape;
      options.draft_kv_memory_bytes = (1 + drafts_.Below(3)) << 20;
      options.speculate = drafts_.Below(4) == 0 ? Speculate::kAuto : Speculate::kAlways;
    }
    SetAdapters(options);
    twin_options.adapters = options.adapters;
    options.target = NameOf(across_ ? across_->first : NextTarget(random_));
    options.threads = 1 + static_cast<uint32_t>(random_.Below(2));
    options.block_tokens =
        block_tokens_.value_or(16 * (1 + static_cast<uint32_t>(random_.Below(3))));
    options.step_tokens = step_tokens[random_.Below(3)];
    options.parallel = 6;
    FitMemory(options);
    if (on_disk_) {
      const auto folder = ScratchDir() / "twin-disk";
      std::filesystem::remove_all(folder);
      options.disk = DiskOptions{.folder = folder.string(), .cap_bytes = uint64_t{8} << 20};
    }
    options.remote = store_;
    auto engine = LoadEngine(options);
    const auto twin = LoadEngine(twin_options);
    const EngineOptions others = OthersOf(options);
    auto other = store_ ? LoadEngine(others) : nullptr;
    const auto load_adapters = [&] {
      for (Engine* each : {engine.get(), twin.get(), other.get()}) {
        if (each != nullptr) LoadAdapters(*each);
      }
    };
    load_adapters();
    conversations_.clear();
    for (uint32_t batch = 0; batch < num_batches && !testing::Test::HasFailure(); ++batch) {
      if (!on_disk_ && !store_ && batch >= 12 && counts_.rows >= most_rows_) break;
      const bool is_new = other && shares_.Below(3) == 0;
      if (is_new) Replace(other, others, *engine);
      if (disturb_) disturb_(shares_);
      RunBatch(is_new || (other && shares_.Below(4) == 0) ? *other : *engine, *twin);
      if (other && shares_.Below(3) == 0) Share(*engine);
      if (other && shares_.Below(20) == 0) (across_ ? *engine : *other).Erase("tenant-1");
      // An index that skips its comparisons has no invariants to check.
      if (random_.Below(8) == 0 && !FaultsActive()) engine->CheckInvariants();
      if (random_.Below(20) == 0) engine->Erase("tenant-0");
      if (!adapter_seeds_.empty() && adapters_.Below(8) == 0) {
        adapter_seeds_[adapters_.Below(adapter_seeds_.size())] = 1 + adapters_.Below(4);
        load_adapters();
      }
      if (on_disk_ && random_.Below(3) == 0) Flush(*engine);
      if (!on_disk_ || random_.Below(8) != 0) continue;
      Count(*engine);
      engine.reset();
      engine = LoadEngine(options);
      LoadAdapters(*engine);
      ++counts_.restarts;
    }
    CheckEnd(*engine);
    if (other) CheckEnd(*other);
  }

  static Target NextTarget(Random& random) {
    const std::vector<Target> targets = SupportedTargets();
    return targets[random.Below(targets.size())];
  }

  // Returns what the engine that shares a store with the one of `options` is started with.
  EngineOptions OthersOf(EngineOptions options) {
    options.target = NameOf(across_ ? across_->second : NextTarget(shares_));
    if (across_) options.remote->mode = RemoteMode::kRead;
    return options;
  }

  // Puts a new machine in the place of the other one, when all that both have is in the store.
  // It does not know yet how fast it computes, so that it waits for the store however busy it is.
  void Replace(std::unique_ptr<Engine>& other, const EngineOptions& others, Engine& engine) {
    Share(engine);
    Share(*other);
    CheckEnd(*other);
    other.reset();
    other = LoadEngine(others);
    LoadAdapters(*other);
    ++counts_.restarts;
  }

  // Finds a budget whose pool holds a few requests: index and cursors take a part of it.
  void FitMemory(EngineOptions& options) {
    options.kv_memory_bytes = 64 << 10;
    const uint64_t sequences = least_sequences_ + random_.Below(4);
    for (;; options.kv_memory_bytes = options.kv_memory_bytes * 5 / 4) {
      const Result<MemoryPlan> plan = Engine::PlanMemory(options);
      if (plan && plan->sequences >= sequences) break;
      ASSERT_LT(options.kv_memory_bytes, uint64_t{1} << 30);
    }
  }

  void CheckEnd(Engine& engine) {
    Count(engine);
    const EngineStats stats = engine.Stats();
    EXPECT_EQ(stats.pinned_blocks, 0u);
    EXPECT_EQ(stats.live_tokens, 0u);
    if (FaultsActive()) return;
    EXPECT_EQ(stats.requests_failed, 0u);
    engine.CheckInvariants();
  }

  void Count(Engine& engine) {
    counts_.Add(engine);
    if (across_ && engine.target() != NameOf(across_->first)) {  // only that one writes
      counts_.crossed_tokens += engine.Stats().reused_remote;
    }
    if (!on_disk_) return;
    const TierStats disk = *engine.DiskStats();
    EXPECT_EQ(disk.state, TierStats::State::kOn) << disk.reason;
    EXPECT_EQ(disk.fault_damaged, 0u);
    EXPECT_LE(disk.used_bytes, disk.cap_bytes);
  }

  // Gives half of the rounds two adapters, which other ones replace under the same names.
  void SetAdapters(EngineOptions& options) {
    adapter_seeds_.clear();
    if (adapters_.Below(2) == 0) return;
    options.adapters.loads_later = true;
    options.adapters.max_loaded = 2;
    adapter_seeds_ = {1, 2};
  }

  void LoadAdapters(Engine& engine) const {
    for (size_t id = 0; id < adapter_seeds_.size(); ++id) {
      const auto card = engine.LoadAdapter({.path = "",
                                            .name = "adapter-" + std::to_string(id),
                                            .scale = 0,
                                            .seed = adapter_seeds_[id]},
                                           Engine::AdapterNames::kMayReplace);
      ASSERT_TRUE(card) << card.error().text();
      ASSERT_EQ(card->id, id);
    }
  }

  // Chooses none, one or both, at scales that come again.
  void ChooseAdapters(GenerateRequest& request) {
    if (adapter_seeds_.empty()) return;
    const double scales[] = {0, 0, 1, -0.5};
    request.adapters.emplace();
    for (size_t id = 0; id < adapter_seeds_.size(); ++id) {
      request.adapters->push_back({id, scales[adapters_.Below(std::size(scales))]});
      counts_.adapted += request.adapters->back().scale != 0;
    }
  }

  static void Flush(Engine& engine) {
    std::promise<Result<TierFlushed>> told;
    engine.Flush([&](Result<TierFlushed> flushed) { told.set_value(std::move(flushed)); });
    const Result<TierFlushed> flushed = told.get_future().get();
    EXPECT_TRUE(flushed) << flushed.error().message;
  }

  // Waits until what the engine has computed is in the store, or the store fails.
  static void Share(Engine& engine) {
    std::promise<void> told;
    engine.Flush([&](const Result<TierFlushed>&) { told.set_value(); });
    told.get_future().get();
  }

  void RunBatch(Engine& engine, Engine& twin) {
    std::vector<Asked> batch(1 + random_.Below(5));
    for (Asked& asked : batch) {
      asked.request = NextRequest(engine.card().vocab_size, &asked.conversation);
      // An erase that another engine did may end a request that waits for its format.
      if (!store_ && engine.tokenizer() != nullptr && random_.Below(2) == 0) {
        asked.request.format = NextFormat();
        ++counts_.formats;
      } else if (engine.tokenizer() != nullptr && drafts_.Below(2) == 0) {
        asked.request.stop = {std::string(1, static_cast<char>('a' + drafts_.Below(26))), "the "};
      }
      ChooseAdapters(asked.request);
      if (drafts_.Below(4) == 0) AddPrediction(twin, asked.request);
      AddMarks(asked.request);
      GenerateRequest request = asked.request;
      request.on_logits = Recorder(*asked.rows);
      asked.pending = std::make_unique<Pending>(engine, std::move(request));
      if (random_.Below(10) == 0) {
        if (random_.Below(2) == 0) std::this_thread::yield();
        asked.pending->Cancel();
      }
    }
    for (Asked& asked : batch) {
      const Answer& answer = asked.pending->Wait();
      counts_.Add(answer);
      EXPECT_EQ(answer.receipt.cached_tokens() + answer.receipt.computed,
                asked.request.prompt.size());
      CompareWithTwin(twin, asked, answer);
      Conversation& conversation = conversations_[asked.conversation];
      conversation.tokens = asked.request.prompt;
      const auto& tokens = answer.choices[random_.Below(asked.request.n)].tokens;
      conversation.tokens.insert(conversation.tokens.end(), tokens.begin(), tokens.end());
    }
  }

  static void Shorten(std::vector<TokenId>& tokens, size_t size) {
    while (tokens.size() > size) tokens.pop_back();
  }

  // Makes a request: append to, rewind, fork, repeat or begin a conversation.
  GenerateRequest NextRequest(uint32_t vocab_size, size_t* conversation) {
    if (conversations_.empty() || (conversations_.size() < 6 && random_.Below(4) == 0)) {
      conversations_.push_back({"tenant-" + std::to_string(random_.Below(3)), {}});
    }
    *conversation = random_.Below(conversations_.size());
    Conversation& chosen = conversations_[*conversation];
    const uint64_t op = random_.Below(10);
    if (op == 0) chosen.tokens = conversations_[random_.Below(conversations_.size())].tokens;
    const bool again = op == 2 && !chosen.prompt.empty();  // the same prompt: its Cursor answers
    if (again) chosen.tokens = chosen.prompt;
    if (op == 1) Shorten(chosen.tokens, random_.Below(chosen.tokens.size() + 1));
    if (chosen.tokens.size() > max_tokens_ * 3 / 4) Shorten(chosen.tokens, 1 + random_.Below(60));
    if (!again && (op > 2 || chosen.tokens.empty())) {
      // Few different tokens, so that conversations share beginnings by chance and diverge inside
      // blocks.
      const uint64_t added = 1 + random_.Below(random_.Below(3) == 0 ? 120 : 12);
      for (uint64_t i = 0; i < added; ++i) {
        chosen.tokens.push_back(
            static_cast<TokenId>((random_.Below(random_.Below(3) + 1) * 37 + 1) % vocab_size));
      }
    }
    Shorten(chosen.tokens, max_tokens_ - 1);
    chosen.prompt = chosen.tokens;
    GenerateRequest request;
    request.tenant = chosen.tenant;
    request.prompt = chosen.tokens;
    request.message_ends = MessageEnds(request.prompt.size());
    request.max_tokens = static_cast<uint32_t>(random_.Below(24));
    request.n = random_.Below(4) == 0 && request.prompt.size() < max_tokens_ / 2 ? 3 : 1;
    const uint64_t chunk = random_.Below(2) * (1 + random_.Below(40));
    if (chunk > 0) request.chunk_tokens = static_cast<uint32_t>(chunk);
    request.reuse = random_.Below(4) != 0 || again ? Reuse::kAll : Reuse::kBlocks;
    if (random_.Below(12) == 0) request.reuse = Reuse::kNothing;
    request.ignore_eos = random_.Below(2) == 0;
    request.sampling.temperature = static_cast<float>(random_.Below(3)) * 0.7f;
    request.sampling.top_k = static_cast<uint32_t>(random_.Below(2) * 5);
    request.sampling.repetition_penalty = random_.Below(2) == 0 ? 1.0f : 1.1f;
    request.sampling.seed = random_.Bits();
    ChangeMore(vocab_size, request);
    return request;
  }

  // Adds a prediction: what the twin answers, a part of it, or with some other tokens.
  void AddPrediction(Engine& twin, GenerateRequest& request) {
    request.prediction = Ask(twin, request).choices[0].tokens;
    const uint64_t begin = drafts_.Below(4);
    if (begin < request.prediction.size()) {
      request.prediction.erase(request.prediction.begin(),
                               request.prediction.begin() + static_cast<ptrdiff_t>(begin));
    }
    const uint64_t wrong = drafts_.Below(4);  // none, one of 6, one of 3, all
    for (TokenId& id : request.prediction) {
      const bool is_wrong = wrong == 3 || (wrong > 0 && drafts_.Below(9 - 3 * wrong) == 0);
      if (is_wrong) id = id == 0 ? 1 : id - 1;
    }
  }

  // Marks up to three beginnings of a third of the prompts, for a second or long.
  void AddMarks(GenerateRequest& request) {
    for (uint64_t marks = marks_.Below(3) == 0 ? 1 + marks_.Below(3) : 0; marks > 0; --marks) {
      request.keeps.push_back({static_cast<uint32_t>(marks_.Below(request.prompt.size() + 1)),
                               marks_.Below(2) == 0 ? 1u : 3600u});
    }
  }

  // Changes settings that drafts must not change.
  void ChangeMore(uint32_t vocab_size, GenerateRequest& request) {
    if (drafts_.Below(4) == 0) request.draft_max = static_cast<uint32_t>(drafts_.Below(40));
    if (request.draft_max > kMaxDraft) request.draft_max.reset();
    if (drafts_.Below(4) == 0) request.sampling.frequency_penalty = 0.3f;
    if (drafts_.Below(4) == 0) request.logprobs = static_cast<uint32_t>(drafts_.Below(3));
    if (drafts_.Below(6) == 0) {
      request.stop_ids = {static_cast<TokenId>(drafts_.Below(vocab_size))};
    }
    if (drafts_.Below(8) == 0) request.no_repeat_ngram_size = 3;
  }

  // Draws a format of answers: a text of some language, or calls, which may be free or must be.
  AnswerFormat NextFormat() {
    AnswerFormat format;
    switch (random_.Below(4)) {
      case 0:
        format.text = {
            FormatLanguage::kJsonSchema,
            R"({"type":"object","properties":{"a":{"type":"string"},"b":{"enum":[1,2]}}})",
            "json_schema"};
        break;
      case 1:
        format.text = {FormatLanguage::kRegularExpression, "([a-z ]{2,9}[.,] ?)+", "regex"};
        break;
      default:
        format.calls = &FindCallFormat(random_.Below(2) == 0 ? "<tool_call>" : "");
        format.tools = {
            {.name = "weather", .parameters = R"({"properties":{"city":{"type":"string"}}})"},
            {.name = "clock", .parameters = ""}};
        format.must_call = random_.Below(2) == 0;
        format.parallel_calls = random_.Below(2) == 0;
    }
    if (random_.Below(3) == 0) {
      format.think = FindThinkMarks("</think>");
      format.begins_inside_thought = random_.Below(2) == 0;
      if (random_.Below(2) == 0) {
        format.max_thought_tokens = static_cast<uint32_t>(random_.Below(9));
      }
    }
    return format;
  }

  // Returns where layers with windows can resume: up to three places, ascending.
  std::vector<uint32_t> MessageEnds(size_t num_tokens) {
    std::vector<uint32_t> ends;
    uint64_t end = 0;
    for (uint64_t i = random_.Below(4); i > 0 && end < num_tokens; --i) {
      end += 1 + random_.Below(num_tokens - end);
      ends.push_back(static_cast<uint32_t>(end));
    }
    return ends;
  }

  static std::function<void(uint32_t, uint32_t, std::span<const float>)> Recorder(RowMap& rows) {
    return [&rows](uint32_t choice, uint32_t position, std::span<const float> logits) {
      const bool first = rows.emplace(std::pair(choice, position),
                                      std::vector<float>(logits.begin(), logits.end()))
                             .second;
      EXPECT_TRUE(first) << "choice " << choice << " position " << position << " told twice";
    };
  }

  void CompareWithTwin(Engine& twin, const Asked& asked, const Answer& answer) {
    RowMap expected;
    GenerateRequest request = asked.request;
    request.chunk_tokens.reset();
    request.on_logits = Recorder(expected);
    // A small pool clips max_tokens; the twin's is large.
    for (const Answer::Choice& choice : answer.choices) {
      if (choice.finish_reason != FinishReason::kLength) continue;
      request.max_tokens = static_cast<uint32_t>(choice.tokens.size());
    }
    const Answer truth = Ask(twin, std::move(request));
    for (const auto& [key, row] : *asked.rows) {
      ++counts_.rows;
      const auto it = expected.find(key);
      if (it == expected.end() ||
          std::memcmp(it->second.data(), row.data(), row.size() * sizeof(float)) != 0) {
        ++counts_.differ;
      }
    }
    if (FaultsActive()) return;
    for (uint32_t choice = 0; choice < asked.request.n; ++choice) {
      const auto& got = answer.choices[choice];
      const auto& want = truth.choices[choice].tokens;
      for (size_t i = 0; i < std::min(got.pieces.size(), want.size()); ++i) {
        EXPECT_EQ(got.pieces[i].logprob, truth.choices[choice].pieces[i].logprob);
      }
      ASSERT_LE(got.tokens.size(), want.size());
      EXPECT_TRUE(std::equal(got.tokens.begin(), got.tokens.end(), want.begin()));
      if (got.finish_reason == FinishReason::kCancelled) continue;
      EXPECT_EQ(got.tokens.size(), want.size());
      EXPECT_EQ(got.finish_reason, truth.choices[choice].finish_reason);
    }
  }

  static bool FaultsActive() { return !FaultActive(Fault::kNone); }

  uint32_t max_tokens_ = 384;        // of a sequence
  uint64_t most_rows_ = UINT64_MAX;  // compared: then a round ends
  bool on_disk_ = false;
  bool has_draft_model_ = false;
  std::optional<RemoteOptions> store_;
  std::function<void(Random&)> disturb_;
  std::optional<std::pair<Target, Target>> across_;  // of the engine that writes, of the other one
  std::optional<std::string> format_;                // absent: a random one for each round
  uint64_t least_sequences_ = 1;                     // of the whole context, that the pool holds
  std::optional<uint32_t> block_tokens_;             // likewise
  Random random_, drafts_, adapters_, shares_, marks_{shares_.Bits()};
  std::vector<uint64_t> adapter_seeds_;  // of the round's adapters; empty: it has none
  std::vector<Conversation> conversations_;
  TwinCounts counts_;
};

}  // namespace kvasir
