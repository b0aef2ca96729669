// Bounded contexts in an engine: the bits follow from the request alone, and equal those of a naive
// twin that keeps all KV and hides what a policy drops.
#include <algorithm>

#include "block/sequence_tables.h"
#include "model/runner.h"
#include "policy/retention_policy.h"
#include "retained_rows.h"
#include "simd/target.h"

namespace kvasir {
namespace {

// Returns all rows of a text, computed one row at a time over tables that keep all.
std::vector<std::vector<float>> Twin(const std::string& model, const std::vector<TokenId>& tokens,
                                     const RetentionChoice& choice, uint32_t prompt_tokens,
                                     KvFormats format = KvFormat::kF16) {
  ImportedModel imported = *ImportModel(model);
  RunnerOptions options;
  options.max_positions = static_cast<uint32_t>(tokens.size());
  options.kv_format = format;
  const KvLayout layout = Runner::LayoutFor(imported.config, options);
  const uint32_t context = imported.config.max_positions;
  auto runner = std::move(*Runner::Create(std::move(imported), options, nullptr));
  const auto policy =
      *RetentionPolicy::Create(choice, {.ctx_size = context, .prompt_tokens = prompt_tokens});
  const SequenceTables all =
      *SequenceTables::Create(layout, static_cast<uint32_t>(tokens.size()), std::byte{0xff});
  std::vector<std::vector<float>> rows;
  for (uint32_t p = 0; p < tokens.size(); ++p) {
    StepSequence row{all.tables(), p, 0, 1};
    const StepRun sinks{all.tables(), 0, policy.sinks(), policy.sink_query_position()};
    if (policy.IsInexact(p)) {
      row.begin = policy.FirstSeen(p);
      if (policy.sinks() > 0) row.runs = {&sinks, 1};
    }
    EXPECT_TRUE(runner->Step({&row, 1}, {&tokens[p], 1}));
    std::vector<float>& logits = rows.emplace_back(runner->config().vocab_size);
    const float* hidden = runner->hidden(0).data();
    runner->Logits({&hidden, 1}, logits.data());
  }
  return rows;
}

const std::vector<RetentionChoice> kChoices = {
    {.policy = Retention::kWindow, .budget = 40},
    {.policy = Retention::kWindow, .budget = 64, .exact_tokens = 0},
    {.policy = Retention::kSinksWindow, .budget = 32, .sinks = 4, .exact_tokens = 0},
    {.policy = Retention::kSinksWindow, .budget = 16, .sinks = 8, .exact_tokens = 0},
    {.policy = Retention::kSinksWindow, .budget = 100, .sinks = 20},
    {.policy = Retention::kSinksWindow, .budget = 70, .sinks = 0, .exact_tokens = 90},
};

TEST(Retention, MissesHitsAndChunksHaveTheBitsOfTheTwin) {
  uint64_t compared = 0;
  for (const RetentionChoice& choice : kChoices) {
    for (const uint32_t size : {20u, 117u}) {
      const GenerateRequest request = Bounded(RetainedPrompt(size), 120, choice);
      const auto engine = LoadEngine(RowOptions());
      std::vector<std::vector<float>> want;
      for (const uint32_t chunk : {512u, 7u}) {
        GenerateRequest cold = request;
        cold.reuse = Reuse::kNothing;
        cold.chunk_tokens = chunk;
        LogitRows rows;
        const Answer answer = AskWithRows(*engine, std::move(cold), rows);
        if (want.empty()) want = Twin(kRowModel, TextOf(request, answer, 0), choice, size);
        compared += Compare(want, rows, 0, "chunks of " + std::to_string(chunk));
        EXPECT_EQ(rows.size(), size + 119);
      }
      for (const char* time : {"first", "second"}) {
        LogitRows rows;
        const Answer answer = AskWithRows(*engine, request, rows);
        compared += Compare(want, rows, 0, time);
        if (time == std::string_view("first")) continue;
        const uint32_t exact = std::max(choice.exact_tokens.value_or(size), *choice.budget);
        EXPECT_EQ(answer.receipt.cached_tokens(), std::min(size, exact));
      }
    }
  }
  EXPECT_GT(compared, 6000u);
}

// What others have committed of the same tokens is exact, and not what the request would compute.
TEST(Retention, NothingIsFoundBehindTheFirstInexactToken) {
  const RetentionChoice choice{
      .policy = Retention::kSinksWindow, .budget = 48, .sinks = 4, .exact_tokens = 20};
  const GenerateRequest request = Bounded(RetainedPrompt(150), 60, choice);
  const auto engine = LoadEngine(RowOptions());
  LogitRows rows;
  const Answer first = AskWithRows(*engine, request, rows);
  const auto want = Twin(kRowModel, TextOf(request, first, 0), choice, 150);
  Compare(want, rows, 0, "first");
  // The whole text as an exact prompt: computed after the first 48 tokens, and kept.
  GenerateRequest exact = Bounded(TextOf(request, first, 0), 1, {});
  LogitRows exact_rows;
  const Answer all = AskWithRows(*engine, exact, exact_rows);
  EXPECT_EQ(all.receipt.cached_tokens(), 48u);
  EXPECT_FALSE(SameBits(want.back(), exact_rows.at({0, 208})));
  const auto alone = LoadEngine(RowOptions());
  LogitRows alone_rows;
  AskWithRows(*alone, exact, alone_rows);
  EXPECT_TRUE(SameBits(alone_rows.at({0, 208}), exact_rows.at({0, 208})));
  LogitRows again;
  const Answer second = AskWithRows(*engine, request, again);
  EXPECT_EQ(second.receipt.cached_tokens(), 48u);
  Compare(want, again, 0, "again");
  ASSERT_TRUE(second.receipt.retention);
  EXPECT_EQ(second.receipt.retention->inexact_from, 48u);
  EXPECT_EQ(second.receipt.retention->kept, 48u);
  EXPECT_EQ(second.receipt.retention->dropped, 209u - 48u);
}

TEST(Retention, ChoicesAndMatesChangeNoBit) {
  for (const RetentionChoice& choice : {kChoices[0], kChoices[3], kChoices[5]}) {
    const EngineOptions options = RowOptionsWithBlocks(60);
    const auto engine = LoadEngine(options);
    std::vector<GenerateRequest> requests;
    for (uint32_t i = 0; i < 3; ++i) {
      requests.push_back(Bounded(RetainedPrompt(90 + 5 * i, i / 2), 150, choice));
      requests.back().sampling.temperature = 1;
      requests.back().sampling.seed = i;
      requests.back().n = i == 1 ? 3 : 1;
    }
    std::vector<LogitRows> rows(requests.size());
    std::vector<std::unique_ptr<Pending>> pending;
    for (size_t i = 0; i < requests.size(); ++i) {
      GenerateRequest request = requests[i];
      request.on_logits = RecordInto(rows[i]);
      pending.push_back(std::make_unique<Pending>(*engine, std::move(request)));
    }
    for (size_t i = 0; i < requests.size(); ++i) {
      const Answer answer = pending[i]->Wait();
      ASSERT_FALSE(answer.error) << answer.error->message;
      for (uint32_t of = 0; of < requests[i].n; ++of) {
        RetentionChoice resolved = choice;
        const auto want = Twin(kRowModel, TextOf(requests[i], answer, of), resolved,
                               static_cast<uint32_t>(requests[i].prompt.size()));
        EXPECT_GT(Compare(want, rows[i], of, "request " + std::to_string(i)), 100u);
      }
    }
    engine->CheckInvariants();
    EXPECT_EQ(engine->Stats().pinned_blocks, 0u);
  }
}

TEST(Retention, DraftsChangeNoBit) {
  for (const RetentionChoice& choice : {kChoices[1], kChoices[2], kChoices[4]}) {
    EngineOptions options = RowOptions();
    options.speculate = Speculate::kOff;
    const GenerateRequest request = Bounded(RetainedPrompt(60), 200, choice);
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

// Each format is computed by the targets in turn, and read again by another one.
TEST(Retention, KvFormatsTargetsAndWindowsOfModelsChangeNoBit) {
  const RetentionChoice choice{
      .policy = Retention::kSinksWindow, .budget = 40, .sinks = 4, .exact_tokens = 30};
  const std::vector<Target> targets = SupportedTargets();
  size_t turn = 0;
  for (const char* name : {"tiny-gemma2", "tiny-yarn", "tiny-smollm3", "tiny-mistral"}) {
    const std::string model = std::string(KVASIR_SOURCE_DIR "/tests/data/") + name;
    const bool has_all = name == std::string_view("tiny-smollm3");  // to save time
    for (const char* format : kAllKvFormats) {
      const bool is_one_of_two =
          format == std::string_view("f16") || format == std::string_view("int4");
      if (!has_all && !is_one_of_two) continue;
      EngineOptions options = RowOptions(model);
      options.kv_format = format;
      options.target = NameOf(targets[turn++ % targets.size()]);
      const GenerateRequest request = Bounded(RetainedPrompt(210), 60, choice);
      LogitRows first, second;
      const Answer answer = AskWithRows(*LoadEngine(options), request, first);
      EXPECT_EQ(answer.choices[0].tokens.size(), 60u);  // past the trained 256 positions
      options.target = NameOf(targets[turn % targets.size()]);
      AskWithRows(*LoadEngine(options), request, second);
      ExpectSameRows(first, second, std::string(name) + " " + format);
      if (name == std::string_view("tiny-mistral")) {  // windows alone: exact
        EXPECT_FALSE(answer.receipt.retention->inexact_from);
        continue;
      }
      EXPECT_EQ(answer.receipt.retention->inexact_from, 40u);
      const auto want =
          Twin(model, TextOf(request, answer, 0), choice, 210, *ParseKvFormats(format));
      Compare(want, first, 0, std::string(name) + " " + format);
    }
  }
}

// The blocks of a long answer are bounded, whatever its length.
TEST(Retention, TheMemoryOfALongAnswerIsBounded) {
  const RetentionChoice choice{
      .policy = Retention::kSinksWindow, .budget = 64, .sinks = 4, .exact_tokens = {}};
  const auto engine = LoadEngine(RowOptions());
  GenerateRequest request = Bounded(RetainedPrompt(150), 1000, choice);
  uint64_t most = 0;
  request.on_logits = [&](uint32_t, uint32_t position, std::span<const float>) {
    if (position > 160) most = std::max(most, engine->Stats().pinned_blocks);
  };
  const Answer answer = Ask(*engine, std::move(request));
  EXPECT_EQ(answer.choices[0].tokens.size(), 1000u);
  EXPECT_EQ(answer.choices[0].finish_reason, FinishReason::kLength);
  EXPECT_LE(most, (64u + 96u) / 16u);
  EXPECT_GE(most, 4u);
  EXPECT_EQ(engine->Stats().retention_inexact, 1149u - 150u);
  EXPECT_EQ(engine->Stats().retention_dropped[static_cast<size_t>(Retention::kSinksWindow)],
            1149u - 64u);
}

TEST(Retention, ThePlanNamesLlamaServersKeep) {
  const auto planned = [](const char* text) {
    EngineOptions options = DemoOptions();
    options.retention = *ParseRetentionChoice(text);
    return Engine::PlanMemory(options)->retention;
  };
  EXPECT_EQ(planned("sinks+window:budget=1024,keep=0"), "sinks+window:budget=1024,keep=0");
  EXPECT_EQ(planned("sinks+window:budget=1024,keep=8"), "sinks+window:budget=1024,keep=8");
  EXPECT_EQ(planned("sinks+window:budget=1024,keep=-1"), "sinks+window:budget=1024,keep=-1");
  EXPECT_EQ(planned("sinks+window:budget=1024"), "sinks+window:budget=1024,sinks=4");
}

TEST(Retention, RefusesByName) {
  const auto refused = [](const EngineOptions& options, const GenerateRequest& request) {
    const auto engine = LoadEngine(options);
    const Pending pending(*engine, request);
    return pending.refused() ? pending.refused()->text() : "";
  };
  const RetentionChoice window{.policy = Retention::kWindow, .budget = 64};
  const auto ask = [&](RetentionChoice choice) { return Bounded(RetainedPrompt(20), 9, choice); };
  EXPECT_EQ(refused(RowOptions(), ask({.policy = Retention::kWindow, .budget = 257})),
            "cache.retention.budget: 257 is not in [16, 256], up to the context");
  EXPECT_NE(refused(RowOptions(KVASIR_SOURCE_DIR "/tests/data/tiny-longrope"), ask(window))
                .find("cache.retention: models with RoPE longrope"),
            std::string::npos);
  EngineOptions none = RowOptions();
  none.cache_mode = CacheMode::kNone;
  EXPECT_NE(refused(none, ask(window)).find("--cache none"), std::string::npos);
  none.retention = window;
  EXPECT_EQ(Engine::Load(none).error().field, "retention");
  GenerateRequest sourced = ask(window);
  sourced.source = {5, 6, 2};
  EXPECT_NE(refused(RowOptions(KVASIR_SOURCE_DIR "/tests/data/m2m100-tiny"), sourced)
                .find("cache.retention: models with an encoder"),
            std::string::npos);
  EngineOptions gpt2 = RowOptions(KVASIR_SOURCE_DIR "/tests/data/tiny-gpt2");
  const auto engine = LoadEngine(gpt2);
  const Answer answer = Ask(*engine, Bounded(RetainedPrompt(20), 1000, window));
  EXPECT_EQ(answer.choices[0].tokens.size(), engine->card().max_positions - 20);
  // Beyond the pool: the largest budget that fits is named, and fits.
  const EngineOptions small = RowOptionsWithBlocks(16);
  const std::string text = refused(
      small, Bounded(RetainedPrompt(20), 900, {.policy = Retention::kWindow, .budget = 250}));
  EXPECT_NE(text.find("the largest budget that fits is "), std::string::npos) << text;
  const auto fits = static_cast<uint32_t>(std::stoul(text.substr(text.rfind(' '))));
  EXPECT_EQ(refused(small, Bounded(RetainedPrompt(20), 900,
                                   {.policy = Retention::kWindow, .budget = fits})),
            "");
  EXPECT_NE(refused(small, Bounded(RetainedPrompt(20), 900,
                                   {.policy = Retention::kWindow, .budget = fits + 1})),
            "");
}

// The ids beyond the context are memory of the request.
TEST(Retention, AnswersThatTheMemoryOfRequestsDoesNotHoldAreRefused) {
  const auto engine = LoadEngine(RowOptions());
  GenerateRequest request =
      Bounded(RetainedPrompt(20), 1'000'000, {.policy = Retention::kWindow, .budget = 64});
  Pending taken(*engine, request);
  EXPECT_FALSE(taken.refused());
  taken.Cancel();
  taken.Wait();
  request.n = 2;
  const Pending refused(*engine, request);
  ASSERT_TRUE(refused.refused());
  EXPECT_EQ(refused.refused()->code, Code::kExhausted);
  EXPECT_NE(refused.refused()->text().find("bytes of requests do not fit"), std::string::npos);
}

}  // namespace
}  // namespace kvasir
