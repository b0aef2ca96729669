// ModelDrafting: a scheduler with a model and a draft model, which it asks always or where that
// pays.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/own_clock.h"
#include "grammar/grammar_text.h"
#include "grammar/token_masks.h"
#include "schedule/draft_model.h"
#include "schedule/request_check.h"
#include "schedule/request_limits_for_test.h"
#include "schedule/scheduler.h"
#include "testing/small_runner_for_test.h"

namespace kvasir {

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

inline FakeRunner::Options TimedOptions(FakeRunner::Options runner, OwnClock* clock, int ms) {
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

inline FakeRunner::Options DraftRunnerOptions(const ModelDrafts& options) {
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
  void TakeForDraftRow(OwnClock* clock, int ms) { draft_runner_.TakeForRow(clock, ms); }
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

inline GenerateRequest DraftedSpec(uint32_t number) {
  GenerateRequest spec;
  spec.prompt = SmallPrompt(20 + 9 * number, static_cast<TokenId>(1 + number));
  spec.max_tokens = 40;
  spec.sampling.temperature = number % 2 == 0 ? 0.0f : 1.0f;
  if (number == 2) spec.sampling.frequency_penalty = 0.7f;
  if (number == 3) spec.n = 2;
  if (number == 4) spec.reuse = Reuse::kNothing;
  return spec;
}

// Returns a request whose answer is known. Each token of the draft model is right with this chance.
inline GenerateRequest ReplayedSpec(uint32_t number, uint32_t tokens, double accept) {
  GenerateRequest spec = DraftedSpec(number);
  spec.max_tokens = tokens;
  for (uint32_t i = 0; i < tokens; ++i)
    spec.replayed.push_back(static_cast<TokenId>(i * i * 7 % 61));
  spec.replayed_accept = accept;
  return spec;
}

}  // namespace kvasir
