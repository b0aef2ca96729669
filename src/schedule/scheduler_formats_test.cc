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

  // With so many steps of walks in each step.
  void Start(uint64_t format_steps) {
    scheduler_.emplace(runner_, *cache_,
                       SchedulerOptions{.kv_headroom = 0,
                                        .parallel = kFormatRows,
                                        .max_rows = kSmallRows,
                                        .end_tokens = {},
                                        .format_steps = format_steps});
  }
  uint64_t Ask(GenerateRequest spec) {
    const uint64_t id = ++last_id_;
    spec.prompt = std::vector<TokenId>(20, 1);
    spec.max_tokens = 4;
    spec.ignore_eos = true;
    auto request = CheckRequest(
        std::move(spec),
        [this, id](const Event& event) {
          num_tokens_[id] += event.tokens.size();
          if (event.finish_reason != FinishReason::kNone) reasons_[id] = event.finish_reason;
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
  const std::unique_ptr<KvCache> cache_;
  const std::shared_ptr<const Grammar> grammar_;
  TokenMasks masks_;
  std::optional<Scheduler> scheduler_;
  std::map<uint64_t, size_t> num_tokens_;
  std::map<uint64_t, FinishReason> reasons_;
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

}  // namespace
}  // namespace kvasir
