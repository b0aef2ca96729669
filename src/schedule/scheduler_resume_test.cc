// Requests that lose their blocks and get them back at once, or lose them again before they go on.
#include <gtest/gtest.h>

#include <string_view>
#include <vector>

#include "base/clock.h"
#include "schedule/request_check.h"
#include "schedule/request_limits_for_test.h"
#include "schedule/scheduler.h"
#include "testing/small_runner_for_test.h"

namespace kvasir {
namespace {

constexpr uint32_t kResumeLongAfter = 60, kResumeContext = kResumeLongAfter + 4;
constexpr uint32_t kMostSteps = 2000;  // of a test: far more than it needs

// A scheduler for a model with RoPE longrope. All drafts are right.
class ResumingScheduler {
 public:
  ResumingScheduler()
      : runner_(RunnerOptions()),
        cache_(SmallCache(runner_)),
        scheduler_(runner_, *cache_,
                   {.parallel = 2,
                    .max_rows = kSmallRows,
                    .logit_rows = kSmallRows,
                    .long_rope = LongRope{kResumeLongAfter, Identity{9}},
                    .end_tokens = {},
                    .speculate = Speculate::kAlways,
                    .draft_max = kDraft,
                    .drafts = [this](const Request&, const Sequence& sequence, Draft& draft) {
                      std::vector<TokenId> tokens = sequence.tokens;
                      for (draft.num_tokens = 0; draft.num_tokens < kDraft; ++draft.num_tokens) {
                        tokens.push_back(runner_.NextToken(tokens));
                        draft.tokens[draft.num_tokens] = tokens.back();
                      }
                    }}) {}

  struct Asked {
    GenerateRequest spec;
    std::vector<std::vector<TokenId>> answers;
    Receipt receipt;
    bool is_done = false;
  };
  // Enqueues a request; `asked` gets its answers.
  void Begin(GenerateRequest spec, Asked* asked) {
    spec.tenant = "anna";
    spec.ignore_eos = true;
    spec.sampling.temperature = 0;
    asked->spec = spec;
    asked->answers.resize(spec.n);
    auto request = CheckRequest(
        std::move(spec),
        [asked](const Event& event) {
          for (const auto& token : event.tokens) asked->answers[event.choice].push_back(token.id);
          if (event.last) asked->receipt = event.receipt;
          asked->is_done |= event.last;
        },
        LimitsFor(*cache_, kResumeContext, kSmallVocab, 2));
    ASSERT_TRUE(request);
    (*request)->id = RequestId{++last_id_};
    (*request)->times.submitted_ns = MonotonicNs();
    scheduler_.Enqueue(std::move(*request));
  }
  // Steps until a choice of a request with this priority has the state.
  void StepUntil(int32_t priority, std::string_view state) {
    for (uint32_t i = 0; i < kMostSteps; ++i) {
      for (const SequenceState& each : scheduler_.States(std::nullopt)) {
        if (each.priority == priority && each.state == state) return;
      }
      Step();
    }
    FAIL() << "no choice was ever '" << state << "'";
  }
  // Steps until the request has its answers, which are those of its tokens.
  void Finish(const Asked& asked) {
    for (uint32_t i = 0; i < kMostSteps && !asked.is_done; ++i) Step();
    ASSERT_TRUE(asked.is_done);
    for (const std::vector<TokenId>& answer : asked.answers) {
      EXPECT_EQ(answer.size(), asked.spec.max_tokens);
      std::vector<TokenId> tokens = asked.spec.prompt;
      for (const TokenId token : answer) {
        EXPECT_EQ(token, runner_.NextToken(tokens));
        tokens.push_back(token);
      }
    }
  }

 private:
  static constexpr uint32_t kDraft = 12;

  static FakeRunner::Options RunnerOptions() {
    FakeRunner::Options options = SmallRunnerOptions();
    options.max_positions = kResumeContext;
    options.long_after = kResumeLongAfter;
    return options;
  }
  void Step() {
    scheduler_.Step();
    scheduler_.CheckInvariants();
  }

  FakeRunner runner_;
  const std::unique_ptr<KvCache> cache_;
  Scheduler scheduler_;
  uint64_t last_id_ = 0;
};

// The first answer leaves the KV of all tokens that the second one, which is equal, has when it
// becomes long. So the second one decodes in the step that restarts it. One token is left then, but
// the draft of the step before had 12.
TEST(SchedulerResume, ARestartedAnswerDropsTheDraftOfItsLastStep) {
  ResumingScheduler process;
  for (const bool is_first : {true, false}) {
    GenerateRequest spec;
    spec.prompt = SmallPrompt(kResumeLongAfter - 13);
    spec.max_tokens = 13 + 2;
    ResumingScheduler::Asked asked;
    process.Begin(spec, &asked);
    process.Finish(asked);
    EXPECT_EQ(asked.receipt.draft.all_drafted(), 12u);
    EXPECT_EQ(asked.receipt.draft.all_accepted(), 12u);
    EXPECT_EQ(asked.receipt.recomputed > 0, is_first);
  }
}

// Its choices become long. While its prompt is read again for them, another request takes their
// place, and the cache still has the Cursor of the shorter prompt.
TEST(SchedulerResume, ChoicesGoOnThoughTheyLoseTheirBlocksAgainBeforeTheirPromptIsRead) {
  ResumingScheduler process;
  GenerateRequest spec;
  spec.prompt = SmallPrompt(40);
  spec.max_tokens = kResumeContext - 40;
  spec.n = 2;
  spec.priority = 5;
  spec.chunk_tokens = 4;
  ResumingScheduler::Asked asked, urgent;
  process.Begin(spec, &asked);
  process.StepUntil(5, "decode");
  process.StepUntil(5, "prefill");
  spec.prompt = SmallPrompt(40, 2);
  spec.max_tokens = 8;
  spec.priority = 0;
  process.Begin(spec, &urgent);
  process.StepUntil(5, "preempted");
  process.Finish(urgent);
  process.Finish(asked);
  EXPECT_EQ(asked.receipt.preemptions, 1u);
}

}  // namespace
}  // namespace kvasir
