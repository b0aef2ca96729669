// Rows that wait until it is known which tokens their format has.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "base/own_clock.h"
#include "grammar/grammar_text.h"
#include "grammar/token_masks.h"
#include "schedule/request_check.h"
#include "schedule/request_limits_for_test.h"
#include "schedule/scheduler.h"
#include "testing/fake_runner.h"
#include "testing/small_runner_for_test.h"

namespace kvasir {
namespace {

constexpr uint32_t kFormatRows = 4;  // at once

class FormatsTest : public testing::Test {
 protected:
  FormatsTest()
      : runner_(SmallRunnerOptions()),
        cache_(SmallCache(runner_)),
        grammar_(*CompileGrammarText(FormatLanguage::kGbnf, "root ::= [a-z]+")),
        masks_(std::make_shared<const TokenTrie>(std::vector<std::string>(kSmallVocab, "ab"),
                                                 std::vector<TokenId>()),
               1 << 20) {}

  // Starts a scheduler with so many steps of walks in each step.
  void Start(uint64_t format_steps) {
    scheduler_.emplace(runner_, *cache_,
                       SchedulerOptions{.kv_headroom = 0,
                                        .unknown_answer_tokens = 1,
                                        .parallel = kFormatRows,
                                        .max_rows = kSmallRows,
                                        .end_tokens = {},
                                        .format_steps = format_steps});
  }
  uint64_t Ask(GenerateRequest spec, uint32_t max_tokens = 4) {
    const uint64_t id = ++last_id_;
    if (spec.prompt.empty()) spec.prompt = std::vector<TokenId>(20, 1);
    spec.max_tokens = max_tokens;
    spec.ignore_eos = true;
    auto request = CheckRequest(
        std::move(spec),
        [this, id](const Event& event) {
          num_tokens_[id] += event.tokens.size();
          if (event.finish_reason != FinishReason::kNone) reasons_[id] = event.finish_reason;
          if (event.error) errors_[id] = *event.error;
        },
        LimitsFor(*cache_, kSmallContext, kSmallVocab, kFormatRows));
    EXPECT_TRUE(request);
    (*request)->format = {.whole = grammar_, .closing = nullptr, .masks = &masks_};
    (*request)->id = RequestId{id};
    (*request)->times.submitted_ns = MonotonicNs();
    scheduler_->Enqueue(std::move(*request));
    return id;
  }
  void Run() {
    for (int step = 0; step < 1000 && !scheduler_->idle(); ++step) Step();
    EXPECT_TRUE(scheduler_->idle());
  }
  void Step() {
    scheduler_->Step();
    scheduler_->CheckInvariants();
  }

  OwnClock clock_;
  FakeRunner runner_;
  std::unique_ptr<KvCache> cache_;
  std::shared_ptr<const Grammar> grammar_;
  TokenMasks masks_;
  std::optional<Scheduler> scheduler_;
  std::map<uint64_t, size_t> num_tokens_;
  std::map<uint64_t, FinishReason> reasons_;
  std::map<uint64_t, Error> errors_;
  uint64_t last_id_ = 0;
};

TEST(HeldRows, KeepNothingOfARowThatIsGivenBack) {
  HeldRows rows(1, 8, 100);
  HeldRows::Held held = rows.Take();
  const HeldRow* const row = held.get();
  std::ranges::fill(held->hidden, 2.5F);
  std::ranges::fill(held->legal, ~uint64_t{0});
  held.reset();
  EXPECT_EQ(row->hidden, std::vector<float>(8, 0));
  EXPECT_EQ(row->legal, std::vector<uint64_t>(2, 0));
}

// A tenant of little weight has less than one step of the walks.
TEST_F(FormatsTest, ARowGetsOnHoweverSmallItsShareIs) {
  Start(0);
  const uint64_t one = Ask({}), other = Ask({.n = 2});
  Run();
  EXPECT_EQ(num_tokens_[one], 4U);
  EXPECT_EQ(num_tokens_[other], 8U);
}

// Each waiting row has one of `parallel` places for its mask: a lost one would stop the process.
// A walk may take 10 s, and its row holds activations of the prompt.
TEST_F(FormatsTest, AnEraseEndsRowsThatWaitAndTheirWalks) {
  for (const bool is_forget : {false, true}) {
    Start(1);
    int num_ended = 0;
    for (int round = 1; round < 20; ++round) {
      const uint64_t own = Ask({.tenant = "a"}), other = Ask({.tenant = "b"});
      for (int step = 0; step < round; ++step) Step();
      bool is_told = false, has_ended = false;
      const ErasureSink done = [&](const Erasure&) {
        is_told = true;
        has_ended = errors_.contains(own);
      };
      if (is_forget) {
        const ForgetRequest request{.owner = "a",
                                    .cache_salt = {},
                                    .ids = std::vector<TokenId>(20, 1),
                                    .first = 0,
                                    .last = 19,
                                    .kept = {}};
        scheduler_->Forget(request, std::make_shared<const KeptPrompts>(), ErasureSink(done));
      } else {
        scheduler_->Erase("a", ErasureSink(done));
      }
      Step();
      EXPECT_TRUE(is_told);
      Run();
      EXPECT_EQ(num_tokens_[other], 4u);
      EXPECT_FALSE(errors_.contains(other));
      EXPECT_EQ(errors_.contains(own), has_ended) << "the walk must end before the erase";
      num_ended += has_ended;
      if (has_ended) {
        EXPECT_EQ(errors_.at(own).code, Code::kUnavailable);
      } else {
        EXPECT_EQ(num_tokens_[own], 4u);
      }
    }
    EXPECT_GT(num_ended, 2);
  }
}

TEST_F(FormatsTest, CancelsAndDeadlinesGiveBackWhatWaitingRowsHold) {
  Start(1);
  int num_cancelled = 0;
  for (int round = 0; round < 20; ++round) {
    const uint64_t cancelled = Ask({.n = 2}), late = Ask({.timeout_ms = 5, .n = 2});
    for (int step = 0; step < round; ++step) Step();
    scheduler_->Cancel(RequestId{cancelled});
    clock_.Advance(std::chrono::milliseconds(6));
    Step();
    num_cancelled += reasons_[cancelled] == FinishReason::kCancelled;
    Run();
    EXPECT_TRUE(reasons_.contains(late)) << round;
  }
  EXPECT_GT(num_cancelled, 10);
  const uint64_t last = Ask({.n = kFormatRows});
  Run();
  EXPECT_EQ(num_tokens_[last], 4U * kFormatRows);
}

// A preempted request waits with others, and the plan has the memory of places for rows that run.
TEST(Sequence, LeavesNothingOfItsPlaceInAFormatThatItLeaves) {
  const auto grammar =
      *CompileGrammarText(FormatLanguage::kGbnf, "root ::= \"(\" root? \")\" | \"x\"");
  Sequence sequence;
  sequence.tokens = {1, 2, 3};
  sequence.BeginFormat(grammar);
  EXPECT_EQ(sequence.format_begin, 3u);
  ASSERT_TRUE(sequence.format->Advance(std::string(1000, '(')));
  sequence.format_end = 9;
  const auto depth = [&] {
    uint32_t most = 0;
    for (const auto& place : sequence.format->places().places()) {
      if (place.frame.get() != nullptr) most = std::max(most, place.frame->depth());
    }
    return most;
  };
  EXPECT_GT(depth(), 900u);
  sequence.LeaveFormat();
  EXPECT_LE(depth(), 1u);
  EXPECT_EQ(sequence.format_end, 3u);
}

// It finds its place again from its tokens, a step of the walk at a time.
TEST_F(FormatsTest, APreemptedRowGoesOnWhereItWasInItsFormat) {
  constexpr uint32_t kAnswer = 60;
  grammar_ = *CompileGrammarText(FormatLanguage::kGbnf, "root ::= (\"ab\"){60}");
  for (const uint64_t steps : {uint64_t{1}, uint64_t{1} << 20}) {
    scheduler_.reset();
    cache_ = *KvCache::Create({.layout = runner_.layout(),
                               .budget_bytes = 1 << 24,
                               .hidden_size = FakeRunner::kHidden,
                               .num_cursors = 4,
                               .max_blocks = 12,
                               .secret = {},
                               .step_tokens = kSmallRows});
    Start(steps);
    std::vector<uint64_t> ids;
    for (TokenId first = 1; first <= 3; ++first) {
      ids.push_back(Ask({.prompt = SmallPrompt(32, first)}, 100));
    }
    bool is_preempted = false;
    for (int step = 0; step < 100'000 && !scheduler_->idle(); ++step) {
      Step();
      for (const SequenceState& one : scheduler_->States(std::nullopt)) {
        is_preempted |= one.preemptions > 0;
      }
    }
    EXPECT_TRUE(scheduler_->idle());
    EXPECT_TRUE(is_preempted);
    for (const uint64_t id : ids) {
      EXPECT_EQ(num_tokens_[id], kAnswer);
      EXPECT_EQ(reasons_[id], FinishReason::kStop);
    }
  }
}

}  // namespace
}  // namespace kvasir
