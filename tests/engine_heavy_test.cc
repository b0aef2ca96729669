// Sequences that keep the blocks that later tokens weighed most: decisions, logits and ids equal
// those of numpy, and of a naive twin that keeps all KV and hides what was dropped with masks. The
// bits follow from the request alone.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <future>
#include <nlohmann/json.hpp>
#include <set>

#include "base/mapped_file.h"
#include "base/needs_for_test.h"
#include "block/sequence_tables.h"
#include "model/runner.h"
#include "policy/retention_policy.h"
#include "retained_rows.h"
#include "simd/target.h"

namespace kvasir {
namespace {

struct HeavyDecision {
  uint32_t at = 0;
  std::vector<uint32_t> kept, dropped;
  std::map<uint32_t, double> scores;  // of what could go
  std::vector<RetentionPolicy::HeldBlock> held;
};

// docs/retention.md in plain loops: all KV stays, masks hide what was dropped, one row at a time.
class HeavyTwin {
 public:
  struct Numbers {
    uint32_t budget, sinks, recent, exact;
  };

  HeavyTwin(const std::string& model, const Numbers& numbers, uint32_t max_tokens, KvFormats format)
      : numbers_(numbers), capacity_((max_tokens + 63) / 64 * 64) {
    ImportedModel imported = *ImportModel(model);
    RunnerOptions options;
    options.max_positions = capacity_;
    options.kv_format = format;
    const KvLayout layout = Runner::LayoutFor(imported.config, options);
    runner_ = std::move(*Runner::Create(std::move(imported), options, nullptr));
    tables_.emplace(*SequenceTables::Create(layout, capacity_, std::byte{0xff}));
  }

  std::vector<float> Append(TokenId token) {
    const ModelConfig& c = runner_->config();
    if (IsDecision(position_)) {
      last_ = position_;
      if (held_.size() > numbers_.budget) Decide();
    }
    held_.insert(position_);
    std::vector<uint64_t> words(size_t{c.num_kv_heads} * capacity_ / 64);
    for (uint32_t head = 0; head < c.num_kv_heads; ++head) {
      for (const uint32_t t : held_) {
        words[head * capacity_ / 64 + t / 64] |= uint64_t{1} << (t % 64);
      }
    }
    const std::vector<TokenMask> masks(c.num_layers, {words.data(), capacity_ / 64});
    std::vector<float> sums(size_t{c.num_layers} * c.num_kv_heads * capacity_);
    const StepSequence row{.tables = tables_->tables(),
                           .position = position_,
                           .first_row = 0,
                           .num_rows = 1,
                           .masks = masks,
                           .token_sums = sums.data(),
                           .sums_stride = capacity_};
    EXPECT_TRUE(runner_->Step({&row, 1}, {&token, 1}));
    std::map<uint32_t, double>& of_row = weights_.emplace_back();
    for (size_t i = 0; i < sums.size(); ++i) {
      if (sums[i] != 0) of_row[static_cast<uint32_t>(i % capacity_) / 16] += sums[i];
    }
    ++position_;
    std::vector<float> logits(c.vocab_size);
    const float* hidden = runner_->hidden(0).data();
    runner_->Logits({&hidden, 1}, logits.data());
    return logits;
  }

  const std::vector<HeavyDecision>& decisions() const { return decisions_; }
  uint32_t num_held() const { return static_cast<uint32_t>(held_.size()); }

 private:
  bool IsDecision(uint32_t t) const {
    if (t < numbers_.exact) return false;
    return !last_ || (t % 64 == 0 && t >= *last_ + 32);
  }

  void Decide() {
    std::map<uint32_t, double> sums;
    std::map<uint32_t, uint32_t> sizes;
    for (const uint32_t t : held_) ++sizes[t / 16];
    for (uint32_t row = position_ - 32; row < position_; ++row) {
      for (const auto& [block, weight] : weights_[row]) {
        if (sizes.contains(block)) sums[block] += weight;
      }
    }
    HeavyDecision decision{.at = position_};
    std::vector<std::pair<double, uint32_t>> rest;
    uint32_t safe_tokens = 0;
    std::set<uint32_t> kept;
    for (const auto& [block, size] : sizes) {
      decision.held.push_back({block, static_cast<float>(sums[block])});
      const bool is_safe =
          block * 16 < numbers_.sinks || (block + 1) * 16 > position_ - numbers_.recent;
      if (is_safe) {
        safe_tokens += size;
        kept.insert(block);
        continue;
      }
      const auto beside = [&](uint32_t other) { return sums.contains(other) ? sums[other] : 0.0; };
      decision.scores[block] = sums[block] + 0.5 * (beside(block - 1) + beside(block + 1));
      rest.emplace_back(decision.scores[block], block);
    }
    std::sort(rest.rbegin(), rest.rend());
    const uint32_t room = safe_tokens > numbers_.budget ? 0 : (numbers_.budget - safe_tokens) / 16;
    for (size_t i = 0; i < rest.size() && i < room; ++i) kept.insert(rest[i].second);
    for (const auto& [block, size] : sizes) {
      (kept.contains(block) ? decision.kept : decision.dropped).push_back(block);
    }
    std::erase_if(held_, [&](uint32_t t) { return !kept.contains(t / 16); });
    decisions_.push_back(std::move(decision));
  }

  const Numbers numbers_;
  const uint32_t capacity_;
  std::unique_ptr<Runner> runner_;
  std::optional<SequenceTables> tables_;
  uint32_t position_ = 0;
  std::optional<uint32_t> last_;
  std::set<uint32_t> held_;
  std::vector<std::map<uint32_t, double>> weights_;  // [row]: of blocks
  std::vector<HeavyDecision> decisions_;
};

struct HeavyText {
  std::vector<std::vector<float>> rows;
  uint32_t decisions, held;
};

HeavyText TwinText(const std::string& model, const std::vector<TokenId>& tokens,
                   const HeavyTwin::Numbers& numbers, KvFormats format = KvFormat::kF16) {
  HeavyTwin twin(model, numbers, static_cast<uint32_t>(tokens.size()), format);
  HeavyText text{};
  for (const TokenId token : tokens) text.rows.push_back(twin.Append(token));
  text.decisions = static_cast<uint32_t>(twin.decisions().size());
  text.held = twin.num_held();
  return text;
}

// Returns how many rows were compared.
uint64_t CompareNear(const std::vector<std::vector<float>>& want, const LogitRows& rows,
                     double bound, const std::string& what) {
  double most = 0;
  for (const auto& [where, row] : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      most = std::max<double>(most, std::abs(row[i] - want.at(where.second)[i]));
    }
  }
  EXPECT_LT(most, bound) << what;
  return rows.size();
}

const std::filesystem::path kHeavyGoldens = std::filesystem::path(KVASIR_SHARED_DIR) / "goldens";

nlohmann::json HeavyGolden() {
  return nlohmann::json::parse(*ReadTextFile(kHeavyGoldens / "heavy.json", 1 << 24));
}

HeavyTwin::Numbers NumbersOf(const nlohmann::json& golden) {
  return {golden["budget"], golden["sinks"], golden["recent"], golden["exact"]};
}

RetentionChoice HeavyChoice(const HeavyTwin::Numbers& numbers) {
  return {.policy = Retention::kHeavy,
          .budget = numbers.budget,
          .sinks = numbers.sinks,
          .recent = numbers.recent,
          .exact_tokens = numbers.exact};
}

void ExpectLogits(const std::vector<float>& got, const nlohmann::json& want, double bound) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i].get<double>(), bound) << i;
}

// Returns what the engine's policy keeps, by the sums that the twin decided by.
std::vector<uint32_t> KeptByPolicy(const HeavyTwin::Numbers& numbers, HeavyDecision decision) {
  const auto policy = RetentionPolicy::Create(HeavyChoice(numbers),
                                              {.ctx_size = 2048, .prompt_tokens = numbers.exact});
  EXPECT_TRUE(policy->IsDecision(decision.at));
  EXPECT_TRUE(policy->Decide(decision.at, decision.held));
  std::vector<uint32_t> kept;
  for (const RetentionPolicy::HeldBlock& one : decision.held) {
    if (one.stays) kept.push_back(one.block);
  }
  return kept;
}

TEST(HeavyGoldens, TheTwinAndThePolicyDecideAsNumpyDoes) {
  if (!std::filesystem::exists(kHeavyGoldens / "heavy.json")) KV_NEEDS(kHeavyGoldens.string());
  const nlohmann::json goldens = HeavyGolden();
  for (const nlohmann::json& golden : goldens["cases"]) {
    std::vector<TokenId> tokens = golden["ids"];
    for (const TokenId id : golden["greedy"]["ids"]) tokens.push_back(id);
    HeavyTwin twin((kHeavyGoldens / golden["model"]).string(), NumbersOf(golden),
                   static_cast<uint32_t>(tokens.size()), KvFormat::kF32);
    std::vector<float> last;
    for (const TokenId token : tokens) last = twin.Append(token);
    ExpectLogits(last, golden["logits_after_answer"], 5e-4);
    ASSERT_EQ(twin.decisions().size(), golden["decisions"].size());
    for (size_t i = 0; i < twin.decisions().size(); ++i) {
      const HeavyDecision& decision = twin.decisions()[i];
      const nlohmann::json& want = golden["decisions"][i];
      EXPECT_EQ(decision.at, want["at"]);
      const auto kept = want["kept_blocks"].get<std::vector<uint32_t>>();
      EXPECT_EQ(decision.kept, kept);
      EXPECT_EQ(KeptByPolicy(NumbersOf(golden), decision), kept);
      EXPECT_EQ(decision.dropped, want["dropped_blocks"].get<std::vector<uint32_t>>());
      for (const auto& [block, score] : decision.scores) {
        EXPECT_NEAR(score, want["scores"][std::to_string(block)].get<double>(), 1e-3);
      }
    }
  }
}

TEST(HeavyGoldens, AnEngineAnswersAsNumpyDoes) {
  if (!std::filesystem::exists(kHeavyGoldens / "heavy.json")) KV_NEEDS(kHeavyGoldens.string());
  const nlohmann::json goldens = HeavyGolden();
  for (const nlohmann::json& golden : goldens["cases"]) {
    EngineOptions options = RowOptions((kHeavyGoldens / golden["model"]).string());
    options.kv_format = "f32";
    const auto engine = LoadEngine(options);
    const uint32_t answer = golden["answer"];
    const GenerateRequest request =
        Bounded(golden["ids"], answer + 1, HeavyChoice(NumbersOf(golden)));
    for (const uint32_t chunk : {512u, 7u}) {
      GenerateRequest chunked = request;
      chunked.chunk_tokens = chunk;
      LogitRows rows;
      const Answer got = AskWithRows(*engine, std::move(chunked), rows);
      auto ids = got.choices[0].tokens;
      ids.pop_back();
      EXPECT_EQ(ids, golden["greedy"]["ids"].get<std::vector<TokenId>>());
      const auto prompt = static_cast<uint32_t>(golden["ids"].size());
      ExpectLogits(rows.at({0, prompt - 1}), golden["logits_after_prompt"], 5e-4);
      ExpectLogits(rows.at({0, prompt + answer - 1}), golden["logits_after_answer"], 5e-4);
      const RetentionReceipt& receipt = *got.receipt.retention;
      EXPECT_EQ(receipt.inexact_from, golden["inexact_from"].get<uint32_t>());
      EXPECT_EQ(receipt.decisions, golden["decisions"].size());
    }
  }
}

const std::vector<HeavyTwin::Numbers> kHeavy = {
    {64, 4, 16, 0}, {64, 32, 16, 117}, {96, 0, 24, 70}, {128, 20, 32, 20}, {80, 40, 20, 83},
};

// Reuse, chunks and Cursors change no bit; the twin decides alike and is near.
TEST(Heavy, MissesHitsAndChunksHaveTheSameBits) {
  uint64_t compared = 0;
  for (const HeavyTwin::Numbers& numbers : kHeavy) {
    for (const uint32_t size : {20u, 117u, 200u}) {
      const auto engine = LoadEngine(RowOptions());
      const GenerateRequest request =
          Bounded(RetainedPrompt(size), 250 - size, HeavyChoice(numbers));
      LogitRows want;
      GenerateRequest cold = request;
      cold.reuse = Reuse::kNothing;
      const Answer first = AskWithRows(*engine, cold, want);
      const HeavyText twin = TwinText(kRowModel, TextOf(request, first, 0), numbers);
      const std::string what =
          std::to_string(numbers.budget) + ", prompt of " + std::to_string(size);
      compared += CompareNear(twin.rows, want, 1e-2, what);
      EXPECT_EQ(first.receipt.retention->decisions, twin.decisions) << what;
      EXPECT_EQ(first.receipt.retention->kept, twin.held) << what;
      for (const uint32_t chunk : {1u, 7u, 64u}) {
        cold.chunk_tokens = chunk;
        LogitRows rows;
        AskWithRows(*engine, cold, rows);
        compared += ExpectSameRows(want, rows, what);
      }
      for (const char* time : {"first", "second"}) {
        LogitRows rows;
        const Answer answer = AskWithRows(*engine, request, rows);
        compared += ExpectSameRows(want, rows, what);
        if (time == std::string_view("first")) continue;
        const uint32_t from = *first.receipt.retention->inexact_from;
        EXPECT_EQ(answer.receipt.cached_tokens(), std::min(size, from - 32));
      }
    }
  }
  EXPECT_GT(compared, 12000u);
}

// With KV in f32 tiles in another order differ by less than anything that is rounded later.
TEST(Heavy, TheTwinIsWithin1e5) {
  EngineOptions options = RowOptions();
  options.kv_format = "f32";
  const auto engine = LoadEngine(options);
  for (const HeavyTwin::Numbers& numbers : kHeavy) {
    const GenerateRequest request = Bounded(RetainedPrompt(117), 130, HeavyChoice(numbers));
    LogitRows rows;
    const Answer answer = AskWithRows(*engine, request, rows);
    const HeavyText twin = TwinText(kRowModel, TextOf(request, answer, 0), numbers, KvFormat::kF32);
    CompareNear(twin.rows, rows, 1e-5, std::to_string(numbers.budget));
    EXPECT_EQ(answer.receipt.retention->decisions, twin.decisions);
    EXPECT_EQ(answer.receipt.retention->dropped + twin.held, twin.rows.size());
  }
}

TEST(Heavy, DraftsChangeNoBit) {
  for (const HeavyTwin::Numbers& numbers : {kHeavy[0], kHeavy[1], kHeavy[3]}) {
    EngineOptions options = RowOptions();
    options.speculate = Speculate::kOff;
    const GenerateRequest request = Bounded(RetainedPrompt(60), 500, HeavyChoice(numbers));
    LogitRows plain, drafted;
    const auto off = LoadEngine(options);
    const Answer want = AskWithRows(*off, request, plain);
    options.speculate = Speculate::kAlways;
    const auto always = LoadEngine(options);
    GenerateRequest predicted = request;
    predicted.prediction = want.choices[0].tokens;
    for (size_t i = 5; i < predicted.prediction.size(); i += 7) predicted.prediction[i] ^= 1;
    const Answer got = AskWithRows(*always, predicted, drafted);
    EXPECT_EQ(got.choices[0].tokens, want.choices[0].tokens);
    EXPECT_GT(got.receipt.draft.all_accepted(), 20u);
    EXPECT_EQ(plain.size(), drafted.size());
    ExpectSameRows(drafted, plain, "drafted");
  }
}

// Requests that matter more come while the first one drops blocks, and take its place.
TEST(Heavy, ChoicesMatesAndPreemptionsChangeNoBit) {
  uint64_t preemptions = 0;
  for (const HeavyTwin::Numbers& numbers : {kHeavy[0], kHeavy[1], kHeavy[3]}) {
    EngineOptions options = RowOptionsWithBlocks(50);
    options.parallel = 3;
    options.step_tokens = 48;
    std::vector<GenerateRequest> requests;
    for (uint32_t i = 0; i < 3; ++i) {
      requests.push_back(Bounded(RetainedPrompt(90 + 5 * i, i / 2), 150, HeavyChoice(numbers)));
      requests.back().sampling.temperature = 1;
      requests.back().sampling.seed = i;
      requests.back().n = i == 1 ? 3 : 1;
      requests.back().priority = i == 0 ? 1 : 0;
    }
    std::vector<LogitRows> alone(requests.size()), together(requests.size());
    for (size_t i = 0; i < requests.size(); ++i) {
      AskWithRows(*LoadEngine(RowOptions()), requests[i], alone[i]);
    }
    const auto engine = LoadEngine(options);
    std::vector<std::unique_ptr<Pending>> pending;
    std::promise<void> dropped;
    for (size_t i = 0; i < requests.size(); ++i) {
      GenerateRequest request = requests[i];
      LogitRows& rows = together[i];
      request.on_logits = [&, i](uint32_t of, uint32_t position, std::span<const float> row) {
        const bool is_new =
            rows.emplace(std::pair(of, position), std::vector(row.begin(), row.end())).second;
        if (i == 0 && position == 200 && is_new) dropped.set_value();
      };
      pending.push_back(std::make_unique<Pending>(*engine, std::move(request)));
      if (i == 0) dropped.get_future().wait();
    }
    for (size_t i = 0; i < requests.size(); ++i) {
      const Answer answer = pending[i]->Wait();
      ASSERT_FALSE(answer.error) << answer.error->message;
      preemptions += answer.receipt.preemptions;
      EXPECT_GT(together[i].size(), 200u);
      ExpectSameRows(alone[i], together[i], "request " + std::to_string(i));
    }
    engine->CheckInvariants();
    EXPECT_EQ(engine->Stats().pinned_blocks, 0u);
  }
  EXPECT_GT(preemptions, 0u);
}

// Each format is computed by one target in one thread, and by another target in three.
TEST(Heavy, KvFormatsTargetsAndThreadsChangeNoBit) {
  const HeavyTwin::Numbers numbers = {64, 4, 16, 30};
  const std::vector<Target> targets = SupportedTargets();
  size_t turn = 0;
  for (const char* name : {"tiny-gemma2", "tiny-yarn", "tiny-smollm3", "tiny-mistral"}) {
    const std::string model = std::string(KVASIR_SOURCE_DIR "/tests/data/") + name;
    for (const char* format : kAllKvFormats) {
      EngineOptions options = RowOptions(model);
      options.kv_format = format;
      options.target = NameOf(targets[turn++ % targets.size()]);
      const GenerateRequest request = Bounded(RetainedPrompt(200), 80, HeavyChoice(numbers));
      LogitRows first;
      const auto engine = LoadEngine(options);
      const Answer answer = AskWithRows(*engine, request, first);
      EXPECT_EQ(answer.choices[0].tokens.size(), 80u);  // past the trained 256 positions
      options.threads = 3;
      options.target = NameOf(targets[turn % targets.size()]);
      const auto other = LoadEngine(options);
      for (Engine* one : {engine.get(), other.get()}) {
        LogitRows again;
        GenerateRequest chunked = request;
        chunked.chunk_tokens = 9;
        AskWithRows(*one, chunked, again);
        ExpectSameRows(first, again, std::string(name) + " " + format);
      }
      const bool drops = name != std::string_view("tiny-mistral");  // windows alone: exact
      EXPECT_EQ(answer.receipt.retention->inexact_from.has_value(), drops);
      EXPECT_EQ(answer.receipt.retention->decisions > 0, drops);
    }
  }
}

// The blocks of a long answer are bounded, and nothing is kept of the sums.
TEST(Heavy, TheMemoryOfALongAnswerIsBounded) {
  const auto engine = LoadEngine(RowOptions());
  GenerateRequest request =
      Bounded(RetainedPrompt(150), 1000, {.policy = Retention::kHeavy, .budget = 64});
  uint64_t most = 0;
  request.on_logits = [&](uint32_t, uint32_t position, std::span<const float>) {
    if (position > 160) most = std::max(most, engine->Stats().pinned_blocks);
  };
  const Answer answer = Ask(*engine, std::move(request));
  EXPECT_EQ(answer.choices[0].tokens.size(), 1000u);
  EXPECT_LE(most, (64u + 96u) / 16u);
  EXPECT_GE(most, 6u);
  EXPECT_EQ(answer.receipt.retention->decisions, 1u + (1149 - 150 - 32) / 64);
  EXPECT_EQ(engine->Stats().retention_inexact, 1149u - 150u);
  EXPECT_EQ(engine->Stats().retention_dropped[static_cast<size_t>(Retention::kHeavy)],
            answer.receipt.retention->dropped);
}

TEST(Heavy, RefusesByName) {
  const auto refused = [](const EngineOptions& options, RetentionChoice choice) {
    const auto engine = LoadEngine(options);
    const Pending pending(*engine, Bounded(RetainedPrompt(20), 9, choice));
    return pending.refused() ? pending.refused()->text() : "";
  };
  const auto heavy = [](uint32_t budget) {
    return RetentionChoice{.policy = Retention::kHeavy, .budget = budget};
  };
  EXPECT_EQ(
      refused(RowOptions(), heavy(48)),
      "cache.retention.budget: 48 is not a multiple of 16 from 64 to the context of 256: heavy "
      "keeps whole blocks of 16 tokens");
  EXPECT_EQ(
      refused(RowOptions(), heavy(100)),
      "cache.retention.budget: 100 is not a multiple of 16 from 64 to the context of 256: heavy "
      "keeps whole blocks of 16 tokens");
  RetentionChoice recent = heavy(128);
  recent.recent = 33;
  EXPECT_EQ(refused(RowOptions(), recent),
            "cache.retention.recent: 33 is not in [16, 32], up to a quarter of the budget");
  EngineOptions large = RowOptions();
  large.block_tokens = 32;
  EXPECT_NE(refused(large, heavy(64)).find("--block-tokens 16"), std::string::npos);
  large.retention = heavy(64);
  EXPECT_EQ(Engine::Load(large).error().field, "retention");
}

}  // namespace
}  // namespace kvasir
