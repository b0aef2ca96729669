// Encoder-decoder models in the engine: sources are read once and found whole, and no bit of an
// answer depends on that, on batch mates, forks, cancels, or on what the pool had to evict.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/random.h"
#include "engine_scenario.h"
#include "model/translation_for_test.h"

namespace kvasir {
namespace {

constexpr TokenId kStart = 2;

EngineOptions TranslatorOptions() {
  EngineOptions options = DemoOptions();
  options.model = TinyTranslator();
  return options;
}

GenerateRequest Translate(std::vector<TokenId> source, uint32_t max_tokens, TokenId target = 5) {
  GenerateRequest request = Greedy({kStart, target}, max_tokens);
  request.source = std::move(source);
  return request;
}

std::vector<TokenId> Source(uint32_t size, uint64_t seed = 1) {
  Random random(seed);
  return RandomTokens(random, size, 71);
}

TEST(EngineTranslation, SaysWhatTheGoldensSay) {
  EngineOptions options = TranslatorOptions();
  options.kv_format = "f32";
  const auto engine = LoadEngine(options);
  EXPECT_EQ(engine->card().decoder_start, kStart);
  const auto golden = nlohmann::json::parse(std::ifstream(TinyTranslator() + "/golden.json"));
  const uint32_t most = golden["max_new_tokens"].get<uint32_t>() - 1;
  for (const char* miss : {"cold", ""}) {
    for (const auto& source : golden["sources"]) {
      const auto expected = source["greedy"]["ids"].get<std::vector<TokenId>>();
      const auto ids = source["ids"].get<std::vector<TokenId>>();
      const Answer answer =
          Ask(*engine, Translate(ids, most, source["forced_bos_token_id"].get<TokenId>()));
      std::vector<TokenId> tokens = {expected[0], expected[1]};
      tokens.insert(tokens.end(), answer.choices[0].tokens.begin(), answer.choices[0].tokens.end());
      EXPECT_EQ(tokens, expected);
      EXPECT_EQ(answer.receipt.source_tokens, ids.size());
      EXPECT_EQ(answer.receipt.source_reused, *miss == '\0' ? ids.size() : 0u);
      EXPECT_EQ(answer.receipt.prompt_tokens, 2u);
      EXPECT_EQ(answer.receipt.miss ? ToString(answer.receipt.miss->reason) : "",
                std::string(miss));
    }
  }
  engine->CheckInvariants();
}

TEST(EngineTranslation, ASourceIsReusedWholeByItsTenantOnly) {
  const auto engine = LoadEngine(TranslatorOptions());
  const std::vector<TokenId> source = Source(50);
  const auto reused = [&](const std::vector<TokenId>& ids, const char* tenant, TokenId target = 5) {
    GenerateRequest request = Translate(ids, 3, target);
    request.tenant = tenant;
    return Ask(*engine, request).receipt.source_reused;
  };
  EXPECT_EQ(reused(source, "alice"), 0u);
  EXPECT_EQ(reused(source, "alice"), 50u);
  EXPECT_EQ(reused(source, "alice", 6), 50u) << "into another language";
  EXPECT_EQ(reused(source, "bob"), 0u);
  EXPECT_EQ(reused({source.begin(), source.end() - 1}, "alice"), 0u) << "encoders look both ways";
  EXPECT_EQ(reused({source.begin() + 1, source.end()}, "alice"), 0u);
  std::vector<TokenId> other = source;
  other.back() = other.back() == 7 ? 8 : 7;
  EXPECT_EQ(reused(other, "alice"), 0u);
  GenerateRequest unshared = Translate(source, 3);
  unshared.tenant = "alice";
  unshared.reuse = Reuse::kNothing;
  const Answer answer = Ask(*engine, unshared);
  EXPECT_EQ(answer.receipt.source_reused, 0u);
  EXPECT_EQ(answer.receipt.miss->reason, MissReason::kDisabled);
  engine->Erase("alice");
  EXPECT_EQ(reused(source, "alice"), 0u);
  EXPECT_EQ(reused(source, "bob"), 50u);
  EXPECT_EQ(engine->Stats().pinned_blocks, 0u);
  engine->CheckInvariants();
}

// Whoever has the same source waits for the one that reads it now.
TEST(EngineTranslation, EqualSourcesAtOnceAreReadOnce) {
  const auto engine = LoadEngine(TranslatorOptions());
  std::vector<std::unique_ptr<Pending>> all;
  for (TokenId target = 5; target < 11; ++target) {
    all.push_back(std::make_unique<Pending>(*engine, Translate(Source(60), 8, target)));
  }
  uint32_t computed = 0;
  for (auto& each : all) computed += each->Wait().receipt.source_reused == 0;
  EXPECT_EQ(computed, 1u);
  EXPECT_EQ(engine->Stats().encoder_passes, 1u);
  EXPECT_EQ(engine->Stats().reused_source_tokens, 5u * 60);
}

TEST(EngineTranslation, RefusesWhatCannotBe) {
  const auto engine = LoadEngine(TranslatorOptions());
  const auto refused = [&](Engine& by, GenerateRequest request) {
    const Pending pending(by, std::move(request));
    if (!pending.refused()) return std::string("accepted");
    EXPECT_EQ(pending.refused()->code, Code::kInvalidArgument);
    return pending.refused()->field.value_or("");
  };
  EXPECT_EQ(refused(*engine, Greedy({kStart, 5}, 3)), "source");
  EXPECT_EQ(refused(*engine, Translate(Source(301), 3)), "source");
  EXPECT_EQ(refused(*engine, Translate(std::vector<TokenId>(1 << 20, 3), 3)), "source");
  EXPECT_EQ(refused(*engine, Translate({3, 71}, 3)), "source");
  EXPECT_EQ(refused(*engine, Translate({-1}, 3)), "source");
  EXPECT_EQ(Ask(*engine, Translate(Source(300), 3)).receipt.source_tokens, 300u);
  const auto plain = LoadEngine(TinyOptions());
  EXPECT_EQ(refused(*plain, Translate({3}, 3)), "source");
  EXPECT_FALSE(plain->card().decoder_start);

  EngineOptions none = TranslatorOptions();
  none.cache_mode = CacheMode::kNone;
  EngineOptions disk = TranslatorOptions();
  disk.disk.emplace().folder = ScratchDir() / "disk";
  for (const auto& [options, field] : {std::pair{none, "cache"}, {disk, "disk"}}) {
    const auto plan = Engine::PlanMemory(options);
    ASSERT_FALSE(plan);
    EXPECT_EQ(plan.error().field, field);
  }
}

TEST(EngineTranslation, ThePlanIsWhatTheAllocatorTakes) {
  EngineOptions options = TranslatorOptions();
  options.step_tokens = 16;
  const auto engine = LoadEngine(options);
  const MemoryPlan& plan = engine->plan();
  ASSERT_EQ(plan.groups.size(), 2u);
  EXPECT_EQ(plan.groups[0].group, "full");
  EXPECT_EQ(plan.groups[1].group, "cross");
  EXPECT_EQ(plan.groups[1].layers, 2u);
  EXPECT_EQ(plan.groups[1].sequence_blocks, 19u);
  EXPECT_EQ(plan.sequence_bytes, 2 * 19 * plan.block_bytes);
  EXPECT_EQ(Ask(*engine, Translate(Source(300), 3)).receipt.source_tokens, 300u)
      << "a step has room for the longest source";
}

// The logits that a request was given, by choice and position.
struct Seen {
  GenerateRequest request;
  std::map<std::pair<uint32_t, uint32_t>, std::vector<float>> rows;
  std::unique_ptr<Pending> pending;
};

class TranslationTwin {
 public:
  explicit TranslationTwin(EngineOptions options) : engine_(LoadEngine(options)) {
    RunnerOptions plain;
    runner_ = MakeRunner(Import(TinyTranslator()), plain);
    layout_.emplace(Runner::LayoutFor(runner_->config(), plain));
    for (uint32_t i = 0; i < 14; ++i) {
      const uint32_t size = i < 10 ? 1 + static_cast<uint32_t>(random_.Below(70)) : 60 * (i - 8);
      sources_.push_back(Source(std::min(size, 300u), i));
    }
  }

  void Run(uint32_t waves) {
    for (uint32_t wave = 0; wave < waves; ++wave) {
      std::vector<std::unique_ptr<Seen>> all;
      for (uint64_t n = 1 + random_.Below(8); n > 0; --n) all.push_back(Submit());
      for (auto& seen : all) {
        if (random_.Below(8) == 0) seen->pending->Cancel();
      }
      for (auto& seen : all) Compare(*seen);
      if (random_.Below(12) == 0) engine_->Erase("alice");
      engine_->CheckInvariants();
    }
    EXPECT_EQ(engine_->Stats().pinned_blocks, 0u);
  }

  uint64_t rows = 0, differ = 0, reused = 0, evicted = 0;
  Engine& engine() { return *engine_; }

 private:
  std::unique_ptr<Seen> Submit() {
    auto seen = std::make_unique<Seen>();
    GenerateRequest& r = seen->request;
    r = Translate(sources_[random_.Below(sources_.size())],
                  static_cast<uint32_t>(random_.Below(25)),
                  static_cast<TokenId>(3 + random_.Below(4)));
    for (uint64_t more = random_.Below(4) == 0 ? random_.Below(40) : 0; more > 0; --more) {
      r.prompt.push_back(static_cast<TokenId>(3 + random_.Below(2)));
    }
    r.tenant = random_.Below(2) == 0 ? "alice" : "bob";
    r.n = 1 + static_cast<uint32_t>(random_.Below(3));
    r.ignore_eos = random_.Below(2) == 0;
    r.sampling.temperature = static_cast<float>(random_.Below(2));
    r.sampling.seed = random_.Below(100);
    r.reuse = random_.Below(6) == 0 ? Reuse::kNothing : Reuse::kAll;
    if (random_.Below(3) == 0) r.chunk_tokens = 1 + static_cast<uint32_t>(random_.Below(5));
    Seen* to = seen.get();
    r.on_logits = [to](uint32_t choice, uint32_t position, std::span<const float> row) {
      to->rows[{choice, position}].assign(row.begin(), row.end());
    };
    seen->pending = std::make_unique<Pending>(*engine_, r);
    return seen;
  }

  void Compare(Seen& seen) {
    const Answer& answer = seen.pending->Wait();
    EXPECT_FALSE(answer.error) << answer.error->message;
    EXPECT_EQ(answer.receipt.source_tokens % seen.request.source.size(), 0u);
    reused += answer.receipt.source_reused;
    evicted += answer.receipt.miss && answer.receipt.miss->reason == MissReason::kEvicted;
    for (uint32_t choice = 0; choice < seen.request.n; ++choice) {
      Translation t{seen.request.source, seen.request.prompt};
      const auto& tokens = answer.choices[choice].tokens;
      t.ids.insert(t.ids.end(), tokens.begin(), tokens.end());
      const Rows expected = TranslateAll(*runner_, *layout_, {t}, 512)[0];
      for (uint32_t position = 0; position < t.ids.size(); ++position) {
        const auto row = seen.rows.find({choice, position});
        if (row == seen.rows.end()) continue;
        ++rows;
        differ += Differences({expected[position]}, {row->second});
      }
    }
  }

  Random random_{2121};
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Runner> runner_;
  std::optional<KvLayout> layout_;
  std::vector<std::vector<TokenId>> sources_;
};

TEST(EngineTranslation, NoAnswerIsChangedByTheCacheOrByBatchMates) {
  for (const uint64_t kv_memory : {uint64_t{360} << 10, uint64_t{4} << 20}) {
    EngineOptions options = TranslatorOptions();
    options.kv_memory_bytes = kv_memory;
    options.parallel = 6;
    options.threads = 2;
    TranslationTwin twin(options);
#ifdef KVASIR_SANITIZED
    twin.Run(15);
#else
    twin.Run(150);
#endif
    const EngineStats stats = twin.engine().Stats();
    std::printf(
        "%llu blocks: rows %llu differ %llu, %llu source tokens reused, %llu evicted "
        "sources missed, %llu blocks evicted, %llu preemptions\n",
        static_cast<unsigned long long>(twin.engine().plan().num_blocks),
        static_cast<unsigned long long>(twin.rows), static_cast<unsigned long long>(twin.differ),
        static_cast<unsigned long long>(twin.reused), static_cast<unsigned long long>(twin.evicted),
        static_cast<unsigned long long>(stats.evicted_blocks),
        static_cast<unsigned long long>(stats.preemptions[0]));
    EXPECT_GT(twin.rows, 500u);
    EXPECT_EQ(twin.differ, 0u);
    EXPECT_GT(twin.reused, 0u);
    if (kv_memory < 1 << 20) EXPECT_GT(stats.evicted_blocks, 0u);
  }
}

}  // namespace
}  // namespace kvasir
