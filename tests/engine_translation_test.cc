// Encoder-decoder models in the engine: sources are read once and found whole, and no bit of an
// answer depends on that, on batch mates, forks, cancels, or on what the pool had to evict.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/needs_for_test.h"
#include "base/random.h"
#include "base/rounds_for_test.h"
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

BeamParams BeamsOf(const nlohmann::json& search) {
  static const std::map<std::string, EarlyStopping> kStopping = {{"false", EarlyStopping::kFalse},
                                                                 {"true", EarlyStopping::kTrue},
                                                                 {"never", EarlyStopping::kNever}};
  return {.beams = search["beams"],
          .length_penalty = search["length_penalty"],
          .early_stopping = kStopping.at(search["early_stopping"])};
}

// Models of random sizes: what transformers answers, greedily and with beams, all at once.
TEST(EngineTranslation, RandomModelsSayWhatTransformersSays) {
  const char* other = std::getenv("KVASIR_TRANSLATION_GOLDENS");
  const std::filesystem::path models =
      other ? other : KVASIR_SOURCE_DIR "/tests/data/m2m100-random";
  uint32_t searches = 0, hypotheses = 0;
  float worst = 0;
  for (const auto& folder : std::filesystem::directory_iterator(models)) {
    EngineOptions options = TranslatorOptions();
    options.model = folder.path().string();
    options.kv_format = "f32";
    options.parallel = 16;
    const auto engine = LoadEngine(options);
    const TokenId start = *engine->card().decoder_start;
    std::vector<std::pair<nlohmann::json, std::unique_ptr<Pending>>> all;
    const auto golden = nlohmann::json::parse(std::ifstream(folder.path() / "golden.json"));
    for (const auto& source : golden["sources"]) {
      const uint32_t most = source["max_new_tokens"].get<uint32_t>() - 1;
      GenerateRequest request = Translate(source["ids"], most, source["forced_bos_token_id"]);
      request.prompt[0] = start;
      const nlohmann::json greedy = {{{"tokens", source["greedy"]["ids"]}}};
      all.emplace_back(greedy, std::make_unique<Pending>(*engine, request));
      for (const auto& search : source["beams"]) {
        request.beams = BeamsOf(search);
        request.n = search["n"];
        request.min_tokens = std::max(search["min_tokens"].get<uint32_t>(), 1u) - 1;
        request.sampling.repetition_penalty = search["repetition_penalty"];
        all.emplace_back(search["hypotheses"], std::make_unique<Pending>(*engine, request));
        ++searches;
      }
    }
    for (auto& [expected, pending] : all) {
      const Answer& answer = pending->Wait();
      EXPECT_FALSE(answer.error) << answer.error->message;
      ASSERT_EQ(answer.choices.size(), expected.size());
      for (size_t i = 0; i < expected.size(); ++i, ++hypotheses) {
        const auto tokens = expected[i]["tokens"].get<std::vector<TokenId>>();
        EXPECT_EQ(answer.choices[i].tokens, std::vector<TokenId>(tokens.begin() + 2, tokens.end()))
            << folder.path() << " " << i << " of " << expected.size();
        if (!expected[i].contains("score")) continue;
        worst = std::max(worst, std::abs(answer.choices[i].score.value_or(1e9f) -
                                         expected[i]["score"].get<float>()));
      }
    }
    EXPECT_EQ(engine->Stats().pinned_blocks, 0u);
  }
  std::printf("%u searches, %u answers, scores off by %.1e at most\n", searches, hypotheses,
              static_cast<double>(worst));
  EXPECT_GE(searches, 20u);
  EXPECT_LT(worst, 2e-4f);
}

// Returns the tokens of a vocabulary by id, with the unknown one that the files leave out.
std::vector<std::string> TokensOf(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::vector<std::string> tokens;
  for (std::string line; std::getline(file, line);) tokens.push_back(line);
  tokens.push_back("<unk>");
  return tokens;
}

std::vector<TokenId> IdsOf(const std::vector<std::string>& tokens, const nlohmann::json& texts) {
  std::vector<TokenId> ids;
  for (const std::string text : texts) {
    const auto found = std::ranges::find(tokens, text);
    EXPECT_NE(found, tokens.end()) << text;
    ids.push_back(static_cast<TokenId>(found - tokens.begin()));
  }
  return ids;
}

// Returns the whole answer, its prefix included, asked for token by token: what may not come next
// depends on what came. `banned`: no answer has one of these runs of tokens.
std::vector<TokenId> TokenByToken(Engine& engine, const GenerateRequest& asked,
                                  const std::vector<std::vector<TokenId>>& banned) {
  GenerateRequest request = asked;
  for (bool ended = false; !ended && request.prompt.size() < 20;) {
    request.sampling.logit_bias.clear();
    for (const auto& run : banned) {
      const auto before = std::span(run).first(run.size() - 1);
      if (request.prompt.size() <= before.size()) continue;
      if (std::ranges::equal(std::span(request.prompt).last(before.size()), before)) {
        request.sampling.logit_bias.emplace_back(run.back(), -100.0f);
      }
    }
    const Answer::Choice choice = Ask(engine, request).choices[0];
    request.prompt.push_back(choice.tokens.at(0));
    ended = choice.finish_reason == FinishReason::kStop;
  }
  return {request.prompt.begin() + 1, request.prompt.end() - 1};
}

// What CTranslate2's own tests expect of a trained model: with the beginning of the answer given,
// with tokens and runs of them that may not come, and with another token as the end.
TEST(EngineTranslation, TheTrainedModelSaysWhatIsPublishedOfIt) {
  const std::filesystem::path shared =
      std::filesystem::path(KVASIR_SHARED_DIR) / "data/aren-transliteration";
  KV_NEEDS(shared);
  const auto golden = nlohmann::json::parse(std::ifstream(shared / "golden.json"));
  uint32_t answers = 0, searches = 0;
  for (const auto& [name, variant] : golden["variants"].items()) {
    EngineOptions options = TranslatorOptions();
    options.model = (shared / name).string();
    options.kv_format = "f32";
    const auto engine = LoadEngine(options);
    const auto sources = TokensOf(shared / name / "source_vocabulary.txt"),
               targets = TokensOf(shared / name / "target_vocabulary.txt");
    for (const auto& published : golden["published_expected"]) {
      SCOPED_TRACE(name + " " + published.dump());
      GenerateRequest request = Greedy({*engine->card().decoder_start}, 1);
      request.source = IdsOf(sources, published["src"]);
      const auto expected = IdsOf(targets, published["out"]);
      const auto prefix = IdsOf(targets, published.value("prefix", nlohmann::json::array()));
      request.prompt.insert(request.prompt.end(), prefix.begin(), prefix.end());
      if (published.contains("end_token")) {
        request.stop_ids = IdsOf(targets, {published["end_token"]});
      }
      std::vector<std::vector<TokenId>> banned;
      for (const auto& run : published.value("suppress", nlohmann::json::array())) {
        banned.push_back(IdsOf(targets, run));
      }
      EXPECT_EQ(TokenByToken(*engine, request, banned), expected);
      ++answers;
      if (!prefix.empty() || !banned.empty() || !request.stop_ids.empty()) continue;
      request.max_tokens = 20;
      request.beams = BeamParams{.beams = 4};
      auto tokens = Ask(*engine, request).choices[0].tokens;
      tokens.pop_back();  // the end
      EXPECT_EQ(tokens, expected);
      ++searches;
    }
  }
  EXPECT_EQ(answers, 3 * 7u);
  EXPECT_EQ(searches, 3 * 2u);
}

// What transformers pads to one batch is here one without padding.
TEST(EngineTranslation, ABatchSaysWhatTransformersSaysOfItPadded) {
  const std::string folder = std::string(KVASIR_SHARED_DIR) + "/goldens/m2m100";
  KV_NEEDS(folder);
  EngineOptions options = TranslatorOptions();
  options.model = folder;
  options.kv_format = "f32";
  const auto engine = LoadEngine(options);
  const auto golden = nlohmann::json::parse(std::ifstream(folder + "/golden.json"));
  const auto& batch = golden["batch"];
  std::vector<std::unique_ptr<Pending>> all;
  for (size_t i = 0; i < batch["ids"].size(); ++i) {
    std::vector<TokenId> source;
    for (size_t at = 0; at < batch["ids"][i].size(); ++at) {
      if (batch["attention_mask"][i][at] == 1) source.push_back(batch["ids"][i][at]);
    }
    all.push_back(std::make_unique<Pending>(
        *engine, Translate(source, golden["max_new_tokens"].get<uint32_t>() - 1,
                           golden["sources"][i]["forced_bos_token_id"].get<TokenId>())));
  }
  ASSERT_EQ(all.size(), 4u);
  for (size_t i = 0; i < all.size(); ++i) {
    const auto expected = batch["greedy"][i].get<std::vector<TokenId>>();
    std::vector<TokenId> tokens(expected.begin(), expected.begin() + 2);
    const auto& answer = all[i]->Wait().choices[0].tokens;
    tokens.insert(tokens.end(), answer.begin(), answer.end());
    EXPECT_EQ(tokens, expected) << i;
  }
  // The same with 5 beams, and all hypotheses of each source alone for the ways to stop.
  for (const char* stopping : {"false", "true", "never"}) {
    std::vector<std::unique_ptr<Pending>> searches;
    for (const auto& source : golden["sources"]) {
      GenerateRequest request =
          Translate(source["ids"], golden["max_new_tokens"].get<uint32_t>() - 1,
                    source["forced_bos_token_id"]);
      request.beams = BeamsOf({{"beams", 5}, {"length_penalty", 1}, {"early_stopping", stopping}});
      request.n = 5;
      searches.push_back(std::make_unique<Pending>(*engine, request));
    }
    for (size_t i = 0; i < searches.size(); ++i) {
      const auto& expected =
          golden["sources"][i]["beam"][std::string("early_stopping_") + stopping];
      const Answer& answer = searches[i]->Wait();
      const auto check = [&](size_t place, const nlohmann::json& hypothesis) {
        const auto ids = hypothesis["ids"].get<std::vector<TokenId>>();
        EXPECT_EQ(answer.choices[place].tokens, std::vector<TokenId>(ids.begin() + 2, ids.end()))
            << stopping << " " << i << " " << place;
        EXPECT_NEAR(answer.choices[place].score.value_or(0), hypothesis["score"].get<float>(), 1e-4)
            << stopping << " " << i << " " << place;
      };
      for (size_t place = 0; place < expected.size(); ++place) check(place, expected[place]);
      if (stopping == std::string("false")) check(0, batch["beam"][i]);
    }
  }
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

// Requests with the same source wait for the one that reads it now.
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
  for (const uint64_t kv_memory : {uint64_t{368} << 10, uint64_t{4} << 20}) {
    EngineOptions options = TranslatorOptions();
    options.kv_memory_bytes = kv_memory;
    options.parallel = 6;
    options.threads = 2;
    TranslationTwin twin(options);
    twin.Run(Rounds(150, 15));
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
    if (kv_memory < 1 << 20) {
      EXPECT_GT(stats.evicted_blocks, 0u);
    }
  }
}

}  // namespace
}  // namespace kvasir
