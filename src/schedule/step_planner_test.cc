#include "schedule/step_planner.h"

#include <gtest/gtest.h>

#include "schedule/request_answer.h"
#include "testing/small_runner_for_test.h"

namespace kvasir {
namespace {

class StepPlannerTest : public testing::Test {
 protected:
  StepPlannerTest()
      : runner_(SmallRunnerOptions()),
        cache_(SmallCache(runner_)),
        options_({.parallel = 4, .max_rows = kSmallRows}),
        figures_(0),
        tenants_(*cache_, figures_.stats().tenants, 4, 10),
        loads_(runner_, *cache_, nullptr, figures_, kSmallRows),
        leaders_(requests_, options_, kSmallBlockTokens),
        chooser_(runner_, 4, {}),
        drafter_(options_, *cache_, chooser_, tenants_, format_steps_),
        planner_(options_, *cache_, requests_, tenants_, figures_, loads_, leaders_, drafter_),
        batch_(runner_, runner_.layout(), kSmallRows, 4) {}

  std::unique_ptr<Request> Ask(uint64_t id, uint32_t prompt_tokens) {
    auto request = std::make_unique<Request>();
    request->id = RequestId{id};
    request->times.submitted_ns = id;
    request->tenant = tenants_.NumberOf("a", requests_);
    request->spec.prompt = SmallPrompt(prompt_tokens, static_cast<TokenId>(id));
    request->max_tokens = 8;
    return request;
  }
  void Wait(uint64_t id, uint32_t prompt_tokens) {
    requests_.waiting.push_back(Ask(id, prompt_tokens));
  }
  Request& Run(uint64_t id, uint32_t prompt_tokens) {
    auto& request = requests_.running.emplace_back(Ask(id, prompt_tokens));
    const uint32_t tokens = prompt_tokens + 8;
    MatchResult match = cache_->Match(cache_->EnterNamespace("a", {}), request->spec.prompt, {});
    request->room.reservation =
        *cache_->Reserve(match, {.prompt_tokens = prompt_tokens, .tokens = tokens});
    AddSequence(*request, cache_->Fetch(std::move(match), tokens, request->room.reservation),
                nullptr);
    return *request;
  }

  FakeRunner runner_;
  const std::unique_ptr<KvCache> cache_;
  const SchedulerOptions options_;
  StepFigures figures_;
  TenantBook tenants_;
  RequestQueues requests_;
  TierLoads loads_;
  Leaders leaders_;
  TokenChooser chooser_;
  FormatSteps format_steps_{400'000, 4};
  Drafter drafter_;
  StepPlanner planner_;
  StepBatch batch_;
};

TEST_F(StepPlannerTest, AdmitsARequestThenGivesItRows) {
  Wait(1, 20);
  EXPECT_EQ(planner_.Decide({}).admit, 0u);
  requests_.waiting.clear();
  Request& request = Run(1, 20);
  const StepPlan& plan = planner_.Decide({});
  EXPECT_FALSE(plan.admit || plan.preempt);
  planner_.TakeRows(&batch_);
  ASSERT_EQ(batch_.rows().size(), 1u);
  EXPECT_EQ(batch_.rows()[0].request, &request);
  EXPECT_EQ(batch_.rows()[0].num_rows, kSmallRows) << "as many as a step has";
  EXPECT_FALSE(batch_.rows()[0].decodes);
}

TEST_F(StepPlannerTest, ShowsThePolicyTheRunningRequestsThenTheWaitingOnes) {
  Run(1, 20);
  Wait(2, 30);
  requests_.waiting[0]->wait.overtaken = 3;
  planner_.Decide({});
  const std::span<const RequestView> views = planner_.requests();
  ASSERT_EQ(views.size(), 2u);
  EXPECT_EQ(views[0].state, RequestView::State::kRunning);
  EXPECT_EQ(views[1].state, RequestView::State::kWaiting);
  EXPECT_EQ(views[1].overtaken, 3u);
  EXPECT_EQ(tenants_.views()[requests_.running[0]->tenant].running, 1u);
}

TEST_F(StepPlannerTest, ARequestWaitsWhileItsAccountsRunningOnesWaitForRoom) {
  Run(1, 20);
  Wait(2, 30);
  const AccountId account = cache_->EnterAccount("a");
  requests_.waiting[0]->room.account = account;
  EXPECT_FALSE(planner_.Decide(std::vector<AccountId>{account}).admit);
  EXPECT_TRUE(planner_.requests()[1].over_quota);
  EXPECT_TRUE(planner_.Decide({}).admit);
}

TEST_F(StepPlannerTest, ChoicesKeepOneLength) {
  Request& request = Run(1, 16);
  request.spec.n = 2;
  KvSequence& kv = request.answer.sequences[0]->kv;
  ASSERT_TRUE(cache_->Extend(kv, request.spec.prompt));
  cache_->Commit(kv, 16, KvCache::CommitKind::kEnd);
  request.answer.prompt_done = true;
  AddSequence(request, cache_->Fork(kv, 24), nullptr);
  request.answer.sequences[0]->tokens.insert(request.answer.sequences[0]->tokens.end(), {5, 7});
  request.answer.sequences[1]->tokens.push_back(6);
  planner_.Decide({});
  planner_.TakeRows(&batch_);
  ASSERT_EQ(batch_.rows().size(), 1u);
  EXPECT_EQ(batch_.rows()[0].sequence, request.answer.sequences[0].get())
      << "the other one waits for it";
  EXPECT_EQ(batch_.rows()[0].num_rows, 1u) << "its last token is computed with the other's";
  request.answer.sequences[0]->tokens.pop_back();
  planner_.Decide({});
  planner_.TakeRows(&batch_);
  ASSERT_EQ(batch_.rows().size(), 2u);
  EXPECT_TRUE(batch_.rows()[0].decodes && batch_.rows()[1].decodes);
}

TEST_F(StepPlannerTest, ProbesWhatTheCacheHasOfWaitingPrompts) {
  {
    const Request& earlier = Run(9, 32);
    KvSequence& kv = earlier.answer.sequences[0]->kv;
    ASSERT_TRUE(cache_->Extend(kv, earlier.spec.prompt));
    cache_->Commit(kv, 32, KvCache::CommitKind::kEnd);
    requests_.running.clear();
  }
  Wait(1, 32);
  Wait(9, 40);
  requests_.waiting[0]->spec.tenant = requests_.waiting[1]->spec.tenant = "a";
  planner_.Probe();
  EXPECT_EQ(requests_.waiting[0]->wait.resident_tokens, 0u);
  EXPECT_EQ(requests_.waiting[1]->wait.resident_tokens, 32u);
}

}  // namespace
}  // namespace kvasir
