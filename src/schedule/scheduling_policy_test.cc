#include "schedule/scheduling_policy.h"

#include <gtest/gtest.h>

namespace kvasir {
namespace {

using ViewState = RequestView::State;

class Policy : public testing::Test {
 protected:
  void Decide() {
    view_.requests = requests_;
    view_.sequences = sequences_;
    view_.cost = &cost_;
    view_.tenants = tenants_;
    MakeSchedulingPolicy(schedule_)->Decide(view_, plan_);
  }
  void AddRunning(uint64_t arrival_ns, RequestView request = {}) {
    request.state = ViewState::kRunning;
    request.arrival_ns = arrival_ns;
    requests_.push_back(request);
  }
  void AddWaiting(RequestView request = {}) { requests_.push_back(request); }

  std::vector<RequestView> requests_;
  std::vector<SequenceView> sequences_;
  std::vector<TenantView> tenants_ = {{}};
  Schedule schedule_ = Schedule::kFifo;
  StepCost cost_;
  View view_{.parallel = 4, .max_rows = 64};
  StepPlan plan_;
};
using Indices = std::vector<uint32_t>;

TEST_F(Policy, AdmitsTheFirstThatWaits) {
  AddRunning(1);
  AddWaiting();
  AddWaiting();
  Decide();
  EXPECT_EQ(plan_.admit, 1u);
}

TEST_F(Policy, AdmitsNoMoreChoicesThanMayRun) {
  AddRunning(1, {.choices = 3});
  AddWaiting({.choices = 2});
  AddWaiting({.choices = 1});
  Decide();
  EXPECT_FALSE(plan_.admit) << "the first one waits for two places";
}

TEST_F(Policy, ATenantAtItsMostRunningHoldsUpNobodyElse) {
  schedule_ = Schedule::kFair;
  tenants_ = {{.charge_ns = 0, .running = 2, .max_running = 3}, {.charge_ns = 5e9}};
  AddRunning(1, {.choices = 2});
  AddWaiting({.choices = 2});
  AddWaiting({.tenant = 1});
  Decide();
  EXPECT_EQ(plan_.admit, 2u);
  requests_.pop_back();
  AddRunning(2, {.tenant = 1, .choices = 2});
  Decide();
  EXPECT_FALSE(plan_.admit);
  EXPECT_FALSE(plan_.preempt) << "it could not run";
  requests_[1].choices = 1;
  requests_.pop_back();
  Decide();
  EXPECT_EQ(plan_.admit, 1u);
}

// A reload may lower the limit below the choices of a request that was accepted.
TEST_F(Policy, ARequestOfMoreChoicesThanItsTenantMayRunRunsAlone) {
  for (const ViewState state : {ViewState::kWaiting, ViewState::kPreempted}) {
    tenants_ = {{.running = 1, .max_running = 2}};
    requests_.clear();
    AddRunning(1);
    AddWaiting({.state = state, .choices = 3});
    Decide();
    EXPECT_FALSE(plan_.admit);
    tenants_[0].running = 0;
    requests_.erase(requests_.begin());
    Decide();
    EXPECT_EQ(plan_.admit, 0u);
  }
}

// A source is read whole, in a step whose rows it does not take.
TEST_F(Policy, ReadsSourcesBesideTheRowsOfAStep) {
  AddRunning(1);
  AddRunning(2);
  AddRunning(3);
  AddRunning(4);
  sequences_ = {{.request = 0, .pending = 1, .decodes = true},
                {.request = 1, .pending = 2, .source_tokens = 64},
                {.request = 2, .pending = 2, .source_tokens = 1},
                {.request = 3, .pending = 5}};
  Decide();
  EXPECT_EQ(plan_.source_rows, (Indices{0, 64, 0, 0})) << "64 rows are all that there are";
  EXPECT_EQ(plan_.rows, (Indices{1, 2, 0, 5})) << "who waits for its source has no rows";
  sequences_[1].source_tokens = 40;
  sequences_[2].source_tokens = 24;
  Decide();
  EXPECT_EQ(plan_.source_rows, (Indices{0, 40, 24, 0}));
  EXPECT_EQ(plan_.rows, (Indices{1, 2, 2, 5}));
}

TEST_F(Policy, OnlyTheFirstSourceMayTakeLongerThanAStepShould) {
  for (int i = 0; i < 100; ++i) {
    cost_.Observe({.prefill_rows = 64}, 64'000'000);
    cost_.Observe({.decode_rows = 1}, 1'000'000);
  }
  view_.target_step_ns = 20'000'000;
  for (uint64_t i = 1; i <= 3; ++i) AddRunning(i);
  sequences_ = {{.request = 0, .pending = 1, .decodes = true},
                {.request = 1, .pending = 2, .source_tokens = 32},
                {.request = 2, .pending = 2, .source_tokens = 32}};
  Decide();
  EXPECT_EQ(plan_.source_rows, (Indices{0, 32, 0}));
  EXPECT_EQ(plan_.rows[0], 1u);
  sequences_[0].decodes = false;  // no request waits for the step's end
  Decide();
  EXPECT_EQ(plan_.source_rows, (Indices{0, 32, 32}));
}

TEST_F(Policy, LetsSixteenPassOneWithoutRoom) {
  AddWaiting({.has_no_room = true, .overtaken = SchedulingPolicy::kMaxOvertaken - 1});
  AddWaiting();
  Decide();
  EXPECT_EQ(plan_.admit, 1u);
  requests_[0].overtaken = SchedulingPolicy::kMaxOvertaken;
  Decide();
  EXPECT_FALSE(plan_.admit);
  requests_[0].has_no_room = false;
  Decide();
  EXPECT_EQ(plan_.admit, 0u);
}

TEST_F(Policy, PassesAFewWithoutRoom) {
  for (uint32_t i = 0; i + 1 < SchedulingPolicy::kMaxPassed; ++i) AddWaiting({.has_no_room = true});
  AddWaiting();
  Decide();
  EXPECT_EQ(plan_.admit, SchedulingPolicy::kMaxPassed - 1);
  requests_.insert(requests_.begin(), {.has_no_room = true});
  Decide();
  EXPECT_FALSE(plan_.admit);
}

TEST_F(Policy, LetsNobodyPassOneThatWasPreempted) {
  AddWaiting({.state = ViewState::kPreempted, .has_no_room = true});
  AddWaiting();
  Decide();
  EXPECT_FALSE(plan_.admit);
}

TEST_F(Policy, AFollowerHoldsUpNobody) {
  AddWaiting({.follows = true});
  AddWaiting();
  Decide();
  EXPECT_EQ(plan_.admit, 1u);
}

TEST_F(Policy, PreemptsTheCheapestButNeverTheOldest) {
  AddRunning(5, {.is_starved = true, .recompute_tokens = 70});
  AddRunning(3, {.recompute_tokens = 1});
  AddRunning(7, {.recompute_tokens = 40});
  AddRunning(8, {.recompute_tokens = 50});
  Decide();
  EXPECT_EQ(plan_.preempt, 2u);
  requests_[2].preemptions = SchedulingPolicy::kMaxPreemptions;
  Decide();
  EXPECT_EQ(plan_.preempt, 3u);
  requests_[3].preemptions = 1;
  requests_[3].tokens_since_resume = SchedulingPolicy::kCooldownTokens - 1;
  Decide();
  EXPECT_EQ(plan_.preempt, 0u) << "the one that needs more gives way";
}

TEST_F(Policy, AStarvedRequestWithoutAVictimWaits) {
  AddRunning(1, {.is_starved = true});
  AddRunning(2, {.preemptions = SchedulingPolicy::kMaxPreemptions});
  AddWaiting();
  sequences_ = {{.request = 0, .pending = 1, .decodes = true},
                {.request = 1, .pending = 1, .decodes = true}};
  Decide();
  EXPECT_FALSE(plan_.preempt);
  EXPECT_FALSE(plan_.admit);
  EXPECT_EQ(plan_.rows, (Indices{0, 1}));
}

constexpr AccountId kOne{1}, kTwo{2};

TEST_F(Policy, OnlyWhatIsBeyondAGuaranteeGivesWayToAnotherAccount) {
  AddRunning(1, {.account = kOne, .above_guarantee = true});
  AddRunning(2, {.account = kTwo, .recompute_tokens = 1});
  AddRunning(3,
             {.account = kOne, .above_guarantee = true, .is_starved = true, .recompute_tokens = 9});
  Decide();
  EXPECT_EQ(plan_.preempt, 2u) << "the second is within its guarantee";
  requests_[1].above_guarantee = true;
  Decide();
  EXPECT_EQ(plan_.preempt, 1u);
}

TEST_F(Policy, AnAccountAtItsMaximumTakesFromItselfAlone) {
  AddRunning(1, {.account = kTwo, .above_guarantee = true});
  AddRunning(2, {.account = kOne, .above_guarantee = true, .over_quota = true, .is_starved = true});
  Decide();
  EXPECT_FALSE(plan_.preempt) << "it is the oldest of its account";
  AddRunning(3, {.account = kOne, .above_guarantee = true, .recompute_tokens = 500});
  Decide();
  EXPECT_EQ(plan_.preempt, 2u);
}

TEST_F(Policy, ARunningOneAtItsOwnMaximumHoldsUpNobodyElse) {
  tenants_ = {{}, {}};
  AddRunning(1, {.account = kOne, .above_guarantee = true, .over_quota = true, .is_starved = true});
  AddWaiting({.has_no_room = true, .account = kOne, .over_quota = true});
  AddWaiting({.tenant = 1, .account = kTwo});
  Decide();
  EXPECT_EQ(plan_.admit, 2u);
  AddRunning(2, {.tenant = 1, .account = kTwo, .is_starved = true, .recompute_tokens = 3});
  AddRunning(3, {.tenant = 1, .account = kTwo, .recompute_tokens = 2});
  Decide();
  EXPECT_EQ(plan_.preempt, 4u) << "the second starved one has a victim";
  requests_[4].preemptions = SchedulingPolicy::kMaxPreemptions;
  requests_[3].preemptions = SchedulingPolicy::kMaxPreemptions;
  Decide();
  EXPECT_FALSE(plan_.preempt);
  EXPECT_FALSE(plan_.admit) << "the second one needs what is released";
}

TEST_F(Policy, WaitingForItsOwnMaximumHoldsUpNobodyElse) {
  tenants_ = {{}, {}};
  AddWaiting({.has_no_room = true,
              .overtaken = SchedulingPolicy::kMaxOvertaken,
              .account = kOne,
              .over_quota = true});
  AddWaiting({.tenant = 1, .account = kTwo});
  Decide();
  EXPECT_EQ(plan_.admit, 1u);
}

TEST_F(Policy, AGuaranteeIsPaidByThoseAboveTheirs) {
  AddRunning(1, {.account = kTwo, .above_guarantee = true});
  AddRunning(2, {.account = kTwo, .above_guarantee = true, .recompute_tokens = 7});
  AddRunning(3, {.account = AccountId{3}, .recompute_tokens = 1});
  AddWaiting({.account = kTwo});
  AddWaiting({.has_no_room = true, .account = kOne, .is_owed = true});
  view_.parallel = 8;
  requests_[3].has_no_room = true;
  Decide();
  EXPECT_EQ(plan_.preempt, 1u) << "the first is the oldest, the third within its guarantee";
  EXPECT_EQ(plan_.cause, PreemptCause::kFairness);
  requests_[3].has_no_room = requests_[4].has_no_room = false;
  Decide();
  EXPECT_EQ(plan_.admit, 4u) << "before the one that came earlier";
}

TEST_F(Policy, GivesRowsToDecodingSequencesFirst) {
  AddRunning(1);
  AddRunning(2);
  AddRunning(3);
  sequences_ = {{.request = 0, .pending = 50},
                {.request = 1, .pending = 1, .decodes = true},
                {.request = 2, .pending = 50}};
  Decide();
  EXPECT_EQ(plan_.rows, (Indices{50, 1, 13}));
}

TEST_F(Policy, KeepsStepsWithinTheTargetWhileSomethingDecodes) {
  for (uint32_t i = 0; i < 50; ++i) {  // 1 ms a row
    for (const uint32_t rows : {1u, 8u, 64u})
      cost_.Observe({.prefill_rows = rows}, rows * 1'000'000);
  }
  view_.target_step_ns = 32'000'000;
  AddRunning(1);
  AddRunning(2);
  sequences_ = {{.request = 0, .pending = 60}, {.request = 1, .pending = 1, .decodes = true}};
  Decide();
  EXPECT_EQ(plan_.rows[1], 1u);
  EXPECT_NEAR(plan_.rows[0], 31, 3);
  view_.target_step_ns = 1;
  Decide();
  EXPECT_EQ(plan_.rows[0], SchedulingPolicy::kLeastPrefillRows);
  sequences_[1] = {.request = 1, .pending = 60};
  Decide();
  EXPECT_EQ(plan_.rows, (Indices{60, 4})) << "nothing decodes: as many as there is room for";
}

class Fair : public Policy {
 protected:
  Fair() {
    schedule_ = Schedule::kFair;
    tenants_.resize(3);
  }
};

TEST_F(Fair, ServesTheTenantThatWasGivenLeast) {
  tenants_[0].charge_ns = 5;
  tenants_[1].charge_ns = 3;
  AddWaiting({.tenant = 0});
  AddWaiting({.tenant = 1, .priority = 9});
  Decide();
  EXPECT_EQ(plan_.admit, 1u);
}

TEST_F(Fair, ServesPriorityThenArrivalInATenant) {
  AddWaiting({.priority = 1});
  AddWaiting({.priority = 0});
  AddWaiting({.priority = 0});
  Decide();
  EXPECT_EQ(plan_.admit, 1u);
  view_.now_ns = static_cast<uint64_t>(6 * SchedulingPolicy::kAgingNs);
  requests_[1].arrival_ns = requests_[2].arrival_ns = view_.now_ns;
  Decide();
  EXPECT_EQ(plan_.admit, 0u) << "it waited long";
  requests_[2].state = ViewState::kPreempted;
  Decide();
  EXPECT_EQ(plan_.admit, 2u) << "it ran before";
}

TEST_F(Fair, OfAFewTheOneWithMostResidentTokensGoesFirst) {
  for (uint32_t i = 0; i <= SchedulingPolicy::kMaxCompared; ++i) AddWaiting();
  AddWaiting({.tenant = 1, .resident_tokens = 900});
  tenants_[1].charge_ns = 1;
  requests_[SchedulingPolicy::kMaxCompared].resident_tokens = 500;
  Decide();
  EXPECT_EQ(plan_.admit, 0u) << "too far after the first, or of another tenant";
  requests_[3].resident_tokens = 16;
  requests_[5].resident_tokens = 32;
  Decide();
  EXPECT_EQ(plan_.admit, 5u);
  requests_[5].priority = 1;
  Decide();
  EXPECT_EQ(plan_.admit, 8u) << "one fewer is before it";
  requests_[8].resident_tokens = 0;
  Decide();
  EXPECT_EQ(plan_.admit, 3u);
  requests_[1].overtaken = SchedulingPolicy::kMaxOvertaken;
  Decide();
  EXPECT_EQ(plan_.admit, 0u) << "the second one was passed often, and may go next itself";
  requests_[1].resident_tokens = 1;
  Decide();
  EXPECT_EQ(plan_.admit, 1u);
  requests_[0].overtaken = SchedulingPolicy::kMaxOvertaken;
  Decide();
  EXPECT_EQ(plan_.admit, 0u);
}

TEST_F(Fair, APreemptedRequestHoldsUpItsOwnTenantOnly) {
  AddWaiting({.state = ViewState::kPreempted, .has_no_room = true});
  AddWaiting();
  AddWaiting({.tenant = 1});
  tenants_[1].charge_ns = 7;
  Decide();
  EXPECT_FALSE(plan_.admit);
  tenants_[0].charge_ns = 9;
  Decide();
  EXPECT_EQ(plan_.admit, 2u);
}

TEST_F(Fair, TakesFromWhoWasGivenFarMore) {
  AddRunning(1, {.tenant = 0, .choices = 2, .recompute_tokens = 30});
  AddRunning(2, {.tenant = 0, .choices = 2, .recompute_tokens = 10});
  AddWaiting({.tenant = 1});
  tenants_[0].charge_ns = SchedulingPolicy::kUnfairNs - 1;
  Decide();
  EXPECT_FALSE(plan_.preempt) << "the difference is small";
  tenants_[0].charge_ns += 2;
  Decide();
  EXPECT_EQ(plan_.preempt, 1u);
  EXPECT_EQ(plan_.cause, PreemptCause::kFairness);
  AddRunning(3, {.tenant = 1});
  view_.parallel = 5;
  Decide();
  EXPECT_EQ(plan_.preempt, 1u) << "one choice of the other tenant runs, and 4 of this one";
  AddRunning(4, {.tenant = 1});
  view_.parallel = 6;
  Decide();
  EXPECT_FALSE(plan_.preempt) << "half as many choices run of the other tenant";
}

TEST_F(Fair, ABetterPriorityTakesTheWorstPlaceOfItsTenant) {
  AddRunning(1, {.priority = 2});
  AddRunning(2, {.priority = 5, .recompute_tokens = 30});
  AddRunning(3, {.priority = 5, .recompute_tokens = 10});
  AddRunning(4, {.tenant = 1, .priority = 9});
  AddWaiting({.priority = 5});
  Decide();
  EXPECT_FALSE(plan_.preempt) << "no better than any that runs";
  AddWaiting({.priority = 2});
  Decide();
  EXPECT_EQ(plan_.preempt, 2u) << "the cheaper one of the worst of its tenant";
  EXPECT_EQ(plan_.cause, PreemptCause::kPriority);
  requests_[1].preemptions = requests_[2].preemptions = SchedulingPolicy::kMaxPreemptions;
  Decide();
  EXPECT_FALSE(plan_.preempt) << "preempted too often";
  requests_[2].preemptions = 0;
  view_.parallel = 5;
  Decide();
  EXPECT_EQ(plan_.admit, 5u) << "a place is free";
  schedule_ = Schedule::kFifo;
  view_.parallel = 4;
  Decide();
  EXPECT_FALSE(plan_.preempt);
}

TEST_F(Fair, AFewOnlyWaitAfterTheyRan) {
  view_.parallel = 2;
  AddRunning(1, {.priority = 3});
  AddRunning(2, {.priority = 3});
  AddWaiting({.priority = 9, .preemptions = 1});
  AddWaiting({.priority = 1});
  Decide();
  EXPECT_EQ(plan_.preempt, 1u);
  AddWaiting({.priority = 9, .preemptions = 1});
  Decide();
  EXPECT_FALSE(plan_.preempt);
  // It is computed again for another length (RoPE), which is not counted as a preemption.
  requests_.back() = {.state = ViewState::kPreempted, .priority = 9};
  Decide();
  EXPECT_FALSE(plan_.preempt);
}

TEST_F(Fair, WaitsForNobodyThatWasGivenMore) {
  AddWaiting({.tenant = 0, .has_no_room = true, .overtaken = SchedulingPolicy::kMaxOvertaken});
  AddWaiting({.tenant = 0});
  AddWaiting({.tenant = 1});
  tenants_[0].charge_ns = 1;
  Decide();
  EXPECT_EQ(plan_.admit, 2u);
  tenants_[1].charge_ns = 2;
  Decide();
  EXPECT_FALSE(plan_.admit);
}

TEST_F(Fair, ComputesThePromptsOfTheTenantThatWasGivenLeastFirst) {
  tenants_[0].charge_ns = 5;
  AddRunning(1, {.tenant = 0});
  AddRunning(2, {.tenant = 1});
  sequences_ = {{.request = 0, .pending = 60}, {.request = 1, .pending = 60}};
  Decide();
  EXPECT_EQ(plan_.rows, (Indices{4, 60}));
}

}  // namespace
}  // namespace kvasir
