#include "schedule/backlog_board.h"

#include <gtest/gtest.h>

#include "testing/small_runner_for_test.h"

namespace kvasir {
namespace {

class BacklogBoardTest : public testing::Test {
 protected:
  BacklogBoardTest()
      : runner_(SmallRunnerOptions()),
        cache_(SmallCache(runner_)),
        options_({.target_step_ns = 1000, .parallel = 4, .max_rows = kSmallRows}),
        figures_(0),
        tenants_(*cache_, figures_.stats().tenants, 4, 10),
        board_(options_, cache_->layout(), requests_, tenants_, figures_) {
    board_.set_on_backlog([this](const Backlog& backlog) { backlog_ = backlog; });
  }

  std::unique_ptr<Request> Ask(const char* tenant, uint32_t prompt_tokens) {
    auto request = std::make_unique<Request>();
    request->tenant = tenants_.NumberOf(tenant, requests_);
    request->spec.prompt = SmallPrompt(prompt_tokens);
    request->max_tokens = 100;
    return request;
  }

  const FakeRunner runner_;
  const std::unique_ptr<KvCache> cache_;
  const SchedulerOptions options_;
  StepFigures figures_;
  TenantBook tenants_;
  RequestQueues requests_;
  BacklogBoard board_;
  Backlog backlog_;
};

TEST_F(BacklogBoardTest, ShowsTenantsByTheirNumbers) {
  tenants_.SetRules({{"a", {.weight = 3, .max_running = 2}}});
  const uint32_t a = tenants_.NumberOf("a", requests_);
  tenants_.Charge(a, 30);
  board_.Publish();
  ASSERT_EQ(backlog_.tenants.size(), 2u);
  EXPECT_EQ(backlog_.IndexOf("a"), a);
  EXPECT_EQ(backlog_.tenants[a].weight, 3);
  EXPECT_EQ(backlog_.tenants[a].charge_ns, 10);
  EXPECT_EQ(backlog_.tenants[a].max_running, 2u);
  EXPECT_FALSE(backlog_.tenants[a].knows_answers);
  EXPECT_EQ(backlog_.parallel, 4u);
  EXPECT_EQ(backlog_.max_rows, kSmallRows);
  EXPECT_EQ(backlog_.target_step_ns, 1000);
}

TEST_F(BacklogBoardTest, ShowsWhatEachRequestStillNeeds) {
  requests_.waiting.push_back(Ask("a", 40));
  requests_.waiting[0]->wait.seen_tokens = 32;
  requests_.running.push_back(Ask("b", 20));
  requests_.running[0]->answer.prompt_done = true;
  requests_.running[0]->answer.longest = 7;
  requests_.running.push_back(Ask("b", 20));
  requests_.running[1]->spec.only_when_idle = true;
  board_.Publish();
  ASSERT_EQ(backlog_.waiting.size(), 1u);
  EXPECT_EQ(backlog_.waiting[0].new_tokens, 8);
  EXPECT_EQ(backlog_.tenants[requests_.waiting[0]->tenant].waiting, 1u);
  ASSERT_EQ(backlog_.running.size(), 1u);
  EXPECT_EQ(backlog_.running[0].new_tokens, 0);
  EXPECT_GT(backlog_.running[0].answer_tokens, 0);
}

TEST_F(BacklogBoardTest, CountsMoreThanItLists) {
  for (uint32_t i = 0; i < kPlayedStarts + 5; ++i) requests_.waiting.push_back(Ask("a", 4));
  board_.Publish();
  EXPECT_EQ(backlog_.waiting.size(), kPlayedStarts);
  EXPECT_EQ(backlog_.tenants[1].waiting, kPlayedStarts + 5);
}

}  // namespace
}  // namespace kvasir
