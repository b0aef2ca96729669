#include "schedule/draft_model.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/own_clock.h"
#include "grammar/grammar_text.h"
#include "grammar/token_masks.h"
#include "schedule/request_check.h"
#include "schedule/request_limits_for_test.h"
#include "schedule/scheduler.h"
#include "testing/small_runner_for_test.h"

namespace kvasir {
namespace {

struct ModelDrafts {
  bool has_model = true, has_memory = false;
  uint32_t draft_vocab = kSmallVocab;
  std::vector<uint32_t> draft_windows = {0};  // others than {0}: another model
  uint32_t draft_blocks = 64;
  uint32_t draft_ctx = kSmallContext;
  uint64_t format_steps = 400'000;
  TokenId draft_not_finite = -1;  // FakeRunner::Options::not_finite
  Speculate speculate = Speculate::kAlways;
  OwnClock* clock = nullptr;  // a step takes 20 ms of it, one of the draft model draft_ms
  int draft_ms = 1;
  int draft_row_ms = 0;  // and so much more for each row
};

FakeRunner::Options TimedOptions(FakeRunner::Options runner, OwnClock* clock, int ms) {
  if (clock != nullptr) {
    runner.on_step = [clock, ms] { clock->Advance(std::chrono::milliseconds(ms)); };
  }
  return runner;
}

// A draft model whose steps fail after the first kMostSteps: no Fill of a test steps for ever.
class DraftRunner final : public FakeRunner {
 public:
  static constexpr uint32_t kMostSteps = 2000;

  using FakeRunner::FakeRunner;
  Status Step(std::span<const StepSequence> sequences, std::span<const TokenId> tokens) override {
    if (++num_steps_ > kMostSteps)
      return tl::unexpected(Error{Code::kUnavailable, "too many steps"});
    if (clock_ != nullptr) clock_->Advance(std::chrono::milliseconds(row_ms_ * tokens.size()));
    return FakeRunner::Step(sequences, tokens);
  }
  uint32_t num_steps() const { return num_steps_; }
  void TakeForRow(OwnClock* clock, int row_ms) {
    clock_ = clock;
    row_ms_ = row_ms;
  }

 private:
  uint32_t num_steps_ = 0;
  OwnClock* clock_ = nullptr;
  int row_ms_ = 0;
};

FakeRunner::Options DraftRunnerOptions(const ModelDrafts& options) {
  FakeRunner::Options draft = SmallRunnerOptions();
  draft.vocab_size = options.draft_vocab;
  draft.windows = options.draft_windows;
  draft.max_rows = 128;
  draft.not_finite = options.draft_not_finite;
  return draft;
}

// A scheduler with a model and a draft model, which it always asks unless options say otherwise.
class ModelDrafting {
 public:
  explicit ModelDrafting(const ModelDrafts& options)
      : runner_(TimedOptions(SmallRunnerOptions(), options.clock, 20)),
        draft_runner_(TimedOptions(DraftRunnerOptions(options), options.clock, options.draft_ms)),
        cache_(SmallCache(runner_, options.has_memory)),
        draft_cache_(*KvCache::Create({.layout = draft_runner_.layout(),
                                       .budget_bytes = 1 << 24,
                                       .hidden_size = FakeRunner::kHidden,
                                       .num_cursors = 0,
                                       .max_blocks = options.draft_blocks,
                                       .secret = {},
                                       .step_tokens = 128})),
        scheduler_(runner_, *cache_, OptionsFor(options)) {
    draft_runner_.TakeForRow(options.clock, options.draft_row_ms);
    scheduler_.set_on_stats([this](const EngineStats& stats) { stats_ = stats; });
  }

  void Begin(uint32_t request, GenerateRequest spec) {
    spec.tenant = "anna";
    spec.ignore_eos = true;
    auto checked = CheckRequest(
        std::move(spec),
        [this, request](const Event& event) {
          for (const GeneratedToken& token : event.tokens)
            answers[request + 100 * event.choice].push_back(token.id);
          if (event.last) ended[request] = event;
        },
        LimitsFor(*cache_, kSmallContext, kSmallVocab, 4));
    ASSERT_TRUE(checked);
    if (spec_format_)
      (*checked)->format = {.whole = spec_format_, .closing = nullptr, .masks = &masks_};
    (*checked)->id = RequestId{request};
    (*checked)->seed = 7 + request;
    (*checked)->times.submitted_ns = MonotonicNs();
    scheduler_.Enqueue(std::move(*checked));
  }
  void Step() {
    scheduler_.Step();
    scheduler_.CheckInvariants();
  }
  void Run() {
    while (!scheduler_.idle()) Step();
  }
  Scheduler& scheduler() { return scheduler_; }
  KvCache& draft_cache() { return *draft_cache_; }
  uint32_t draft_steps() const { return draft_runner_.num_steps(); }
  // Gives the requests that come this grammar.
  void set_format(const char* text) {
    spec_format_ = *CompileGrammarText(FormatLanguage::kGbnf, text);
  }
  DraftReceipt DraftsOf(uint32_t request) const { return ended.at(request).receipt.draft; }

  std::map<uint32_t, std::vector<TokenId>> answers;
  std::map<uint32_t, Event> ended;

 private:
  SchedulerOptions OptionsFor(const ModelDrafts& options) {
    SchedulerOptions scheduler{.parallel = 4,
                               .max_rows = kSmallRows,
                               .logit_rows = kSmallRows,
                               .end_tokens = {},
                               .format_steps = options.format_steps,
                               .speculate = options.speculate,
                               .draft_max = 6};
    if (options.has_model) {
      scheduler.draft_model = {.runner = &draft_runner_,
                               .cache = draft_cache_.get(),
                               .ctx_size = options.draft_ctx,
                               .max_rows = 128};
    }
    return scheduler;
  }

  std::shared_ptr<const Grammar> spec_format_;
  TokenMasks masks_{std::make_shared<const TokenTrie>(std::vector<std::string>(kSmallVocab, "ab"),
                                                      std::vector<TokenId>()),
                    1 << 20};
  FakeRunner runner_;
  DraftRunner draft_runner_;
  const std::unique_ptr<KvCache> cache_, draft_cache_;
  Scheduler scheduler_;
  EngineStats stats_;
};

GenerateRequest DraftedSpec(uint32_t number) {
  GenerateRequest spec;
  spec.prompt = SmallPrompt(20 + 9 * number, static_cast<TokenId>(1 + number));
  spec.max_tokens = 40;
  spec.sampling.temperature = number % 2 == 0 ? 0.0f : 1.0f;
  if (number == 2) spec.sampling.frequency_penalty = 0.7f;
  if (number == 3) spec.n = 2;
  if (number == 4) spec.reuse = Reuse::kNothing;
  return spec;
}

std::map<uint32_t, std::vector<TokenId>> AnswersOf(ModelDrafting& drafting) {
  for (uint32_t i = 0; i < 5; ++i) drafting.Begin(i, DraftedSpec(i));
  drafting.Run();
  return drafting.answers;
}

TEST(DraftModel, ChangesNoAnswerWhateverItIsLike) {
  ModelDrafting plain({.has_model = false});
  const auto expected = AnswersOf(plain);
  constexpr auto kModel = static_cast<size_t>(DraftSource::kModel);
  // The same model; another one; fewer and more words; little room; a short context.
  const ModelDrafts kinds[] = {{},
                               {.draft_windows = {16}},
                               {.draft_vocab = 40},
                               {.draft_vocab = 90},
                               {.draft_blocks = 3},
                               {.draft_ctx = 40}};
  std::vector<uint32_t> accepted, drafted;
  for (const ModelDrafts& kind : kinds) {
    ModelDrafting drafting(kind);
    EXPECT_EQ(AnswersOf(drafting), expected) << &kind - kinds;
    DraftReceipt sum;
    for (uint32_t i = 0; i < 5; ++i) sum.Add(drafting.DraftsOf(i));
    drafted.push_back(sum.drafted[kModel]);
    accepted.push_back(sum.accepted[kModel]);
    EXPECT_EQ(drafting.draft_cache().usage().pinned_blocks, 0u);
  }
  // All of one's own draws are right, at any temperature and with penalties.
  EXPECT_EQ(accepted[0], drafted[0]);
  EXPECT_GT(accepted[0], 120u);
  EXPECT_GT(drafted[1], 100u);
  EXPECT_LT(accepted[1], drafted[1] / 4);
  EXPECT_LT(drafted[4], drafted[0]);
  EXPECT_GT(drafted[5], 0u);
  EXPECT_LT(drafted[5], drafted[0]);
}

// One row with a draft may take a part of the budget, and no row more than that for itself.
TEST(DraftModel, WalksFormatsWithinTheBudgetOfTheStep) {
  std::map<uint32_t, std::vector<TokenId>> expected;
  std::vector<uint32_t> drafted;
  // Plenty; 12 steps for each draft, which are two or three tokens; none.
  for (const uint64_t format_steps : {400'000, 4 * 2 * 12, 0}) {
    ModelDrafting drafting({.format_steps = format_steps});
    drafting.set_format("root ::= [a-z]+");
    for (uint32_t i = 0; i < 4; ++i) {
      GenerateRequest spec = DraftedSpec(0);
      spec.prompt[0] = static_cast<TokenId>(i);
      spec.sampling.temperature = i % 2 == 0 ? 0.0f : 1.0f;
      drafting.Begin(i, std::move(spec));
    }
    drafting.Run();
    if (expected.empty()) expected = drafting.answers;
    EXPECT_EQ(drafting.answers, expected) << format_steps;
    DraftReceipt sum;
    for (uint32_t i = 0; i < 4; ++i) sum.Add(drafting.DraftsOf(i));
    drafted.push_back(sum.drafted[static_cast<size_t>(DraftSource::kModel)]);
  }
  EXPECT_GT(drafted[0], 100u);
  EXPECT_LT(drafted[1], drafted[0]);
  EXPECT_EQ(drafted[2], 0u) << "a draft walks without a budget";
}

// Steps may leave out a sequence that was drafted for: here choices that come back after another
// request took their place, and wait for those that have more to compute again.
TEST(DraftModel, DraftsAgainForASequenceThatStepsLeftOut) {
  std::map<uint32_t, std::vector<TokenId>> expected;
  for (const bool has_model : {false, true}) {
    ModelDrafting drafting({.has_model = has_model, .draft_windows = {16}});
    GenerateRequest spec = DraftedSpec(1);
    spec.n = 4;
    spec.priority = 5;
    spec.chunk_tokens = 1;
    drafting.Begin(0, std::move(spec));
    while (drafting.answers[0].size() < 16) drafting.Step();
    drafting.Begin(1, DraftedSpec(0));
    drafting.Run();
    EXPECT_EQ(drafting.ended.at(0).receipt.preemptions, 1u);
    if (!has_model) expected = drafting.answers;
    EXPECT_EQ(drafting.answers, expected);
  }
}

// A token makes all rows of its sequence useless, whether the prompt or the answer has it.
TEST(DraftModel, StopsReadingWhereRowsAreNotFinite) {
  ModelDrafting plain({.has_model = false});
  const auto expected = AnswersOf(plain);
  uint32_t drafted = 0;
  for (TokenId token = 0; token < static_cast<TokenId>(kSmallVocab); token += 5) {
    ModelDrafting drafting({.draft_not_finite = token});
    EXPECT_EQ(AnswersOf(drafting), expected) << token;
    EXPECT_LT(drafting.draft_steps(), DraftRunner::kMostSteps) << token;
    EXPECT_EQ(drafting.draft_cache().usage().pinned_blocks, 0u);
    for (uint32_t i = 0; i < 5; ++i) drafted += drafting.DraftsOf(i).all_drafted();
  }
  EXPECT_GT(drafted, 0u) << "other sequences are drafted for";
}

TEST(DraftModel, KeepsWhatItReadForTheNextTurnOfItsOwnerAlone) {
  ModelDrafting drafting({});
  drafting.Begin(0, DraftedSpec(0));
  drafting.Run();
  EXPECT_GT(drafting.draft_cache().usage().cached_tokens, 50u);
  GenerateRequest next = DraftedSpec(0);
  next.prompt.insert(next.prompt.end(), drafting.answers[0].begin(), drafting.answers[0].end());
  const uint64_t committed = drafting.draft_cache().counters().committed_blocks;
  drafting.Begin(1, next);
  drafting.Run();
  EXPECT_LE(drafting.draft_cache().counters().committed_blocks - committed, 4u);
}

TEST(DraftModel, IsErasedAndForgottenWithTheCache) {
  for (const bool whole : {true, false}) {
    for (const bool runs : {false, true}) {
      ModelDrafting drafting({});
      const GenerateRequest spec = DraftedSpec(0);
      drafting.Begin(0, spec);
      if (runs) {
        while (drafting.answers[0].size() < 10) drafting.Step();
      } else {
        drafting.Run();
      }
      ASSERT_GT(drafting.draft_cache().usage().cached_tokens, 0u);
      bool done = false;
      const auto sink = [&](const Erasure&) {
        done = true;
        EXPECT_EQ(drafting.draft_cache().usage().cached_tokens, 0u);
      };
      if (whole) {
        drafting.scheduler().Erase("anna", sink);
      } else {
        drafting.scheduler().Forget({.owner = "anna", .ids = spec.prompt, .first = 0, .last = 19},
                                    std::make_shared<const KeptPrompts>(), sink);
      }
      EXPECT_EQ(drafting.draft_cache().usage().cached_tokens, 0u);
      drafting.Run();
      EXPECT_TRUE(done);
      EXPECT_EQ(drafting.draft_cache().usage().cached_tokens, 0u) << "nothing is published later";
      EXPECT_EQ(drafting.answers[0].size(), 40u);
    }
  }
}

// A sequence that shares nothing would be read again from its beginning.
TEST(DraftModel, KeepsWhatItReadWhereAnotherOwnerIsErased) {
  std::vector<uint32_t> steps;
  for (const bool erases : {false, true}) {
    ModelDrafting drafting({});
    const GenerateRequest spec = DraftedSpec(4);
    drafting.Begin(0, spec);
    while (drafting.answers[0].size() < 10) drafting.Step();
    if (erases) {
      Scheduler& scheduler = drafting.scheduler();
      scheduler.Erase("bob", [](const Erasure&) {});
      scheduler.EraseHere(KvCache::OwnerOf("bob"), [](const Erasure&) {});
      scheduler.Forget({.owner = "bob", .ids = spec.prompt, .first = 0, .last = 19},
                       std::make_shared<const KeptPrompts>(), [](const Erasure&) {});
    }
    drafting.Run();
    steps.push_back(drafting.draft_steps());
  }
  EXPECT_EQ(steps[0], steps[1]);
}

// Two tokens of six that were there before say little of the next one, and cost nothing to look up.
TEST(DraftModel, DraftsWhereMemoryIsOftenWrong) {
  OwnClock clock;
  for (const double accept : {0.9, 0.05}) {
    ModelDrafting drafting({.has_memory = true,
                            .draft_windows = {16},
                            .speculate = Speculate::kAuto,
                            .clock = &clock});
    GenerateRequest spec = DraftedSpec(0);
    spec.max_tokens = 300;
    Random random(3);
    for (int i = 0; i < 300; ++i) spec.replayed.push_back(static_cast<TokenId>(random.Below(6)));
    spec.replayed_accept = accept;
    drafting.Begin(0, spec);
    drafting.Run();
    EXPECT_EQ(drafting.answers[0], spec.replayed);
    const auto& drafted = drafting.DraftsOf(0).drafted;
    const uint32_t memory = drafted[static_cast<size_t>(DraftSource::kMemory)];
    const uint32_t model = drafted[static_cast<size_t>(DraftSource::kModel)];
    if (accept > 0.5) {
      EXPECT_GT(model, 200u);
      EXPECT_LT(memory, model / 5);
    } else {
      EXPECT_LT(model, 150u) << "it stops";
    }
  }
}

// An answer of which the draft model has no token right costs few of its steps, and the next one;
// later it is tried again.
TEST(DraftModel, ReadsLittleWhereItIsAlwaysWrong) {
  OwnClock clock;
  ModelDrafting drafting(
      {.draft_windows = {16}, .speculate = Speculate::kAuto, .clock = &clock, .draft_ms = 5});
  GenerateRequest spec = DraftedSpec(0);
  spec.max_tokens = 400;
  for (TokenId i = 0; i < 400; ++i) spec.replayed.push_back(i * i * 7 % 61);
  std::vector<uint32_t> steps;
  for (uint32_t request = 0; request < 7; ++request) {
    const uint32_t before = drafting.draft_steps();
    spec.replayed_accept = request < 2 ? 0.0 : 1.0;
    drafting.Begin(request, spec);
    drafting.Run();
    EXPECT_EQ(drafting.answers[request], spec.replayed);
    steps.push_back(drafting.draft_steps() - before);
  }
  EXPECT_GT(steps[0], 0u);
  EXPECT_LT(steps[0], 25u);
  EXPECT_LT(steps[1], 20u);
  EXPECT_GT(steps.back(), 200u);
}

// What reading a prompt took says little of a step of one row.
TEST(DraftModel, DraftsAfterAPromptThatTookLong) {
  OwnClock clock;
  ModelDrafting drafting(
      {.draft_windows = {16}, .speculate = Speculate::kAuto, .clock = &clock, .draft_row_ms = 1});
  GenerateRequest spec = DraftedSpec(8);
  spec.max_tokens = 300;
  for (TokenId i = 0; i < 300; ++i) spec.replayed.push_back(i * i * 7 % 61);
  spec.replayed_accept = 0.9;
  drafting.Begin(0, spec);
  drafting.Run();
  EXPECT_GT(drafting.DraftsOf(0).accepted[static_cast<size_t>(DraftSource::kModel)], 150u);
}

TEST(DraftModel, ReplaysWithAShareThatIsRight) {
  ModelDrafting drafting({.draft_windows = {16}});
  GenerateRequest spec = DraftedSpec(0);
  spec.max_tokens = 300;
  for (TokenId i = 0; i < 300; ++i) spec.replayed.push_back(i * i * 7 % 61);
  spec.replayed_accept = 0.7;
  drafting.Begin(0, spec);
  drafting.Run();
  EXPECT_EQ(drafting.answers[0], spec.replayed);
  const DraftReceipt drafts = drafting.DraftsOf(0);
  // 2.5 tokens of a draft of 6 are right where each is with 0.7.
  EXPECT_NEAR(drafts.all_accepted() / double(drafts.steps), 2.06, 0.4);
}

}  // namespace
}  // namespace kvasir
