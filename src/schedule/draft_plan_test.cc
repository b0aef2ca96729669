// How long drafts are: DraftPace, the cost of draft rows, and PlanDrafts.
#include <gtest/gtest.h>

#include <vector>

#include "schedule/draft_pace.h"
#include "schedule/scheduling_policy.h"

namespace kvasir {
namespace {

constexpr uint64_t kDraftMs = 1'000'000;

Draft DraftAfter(uint32_t num_equal) {
  Draft draft;
  draft.num_tokens = 8;
  draft.num_equal = num_equal;
  return draft;
}

TEST(DraftPace, BeginsAtTheTenantsMeanAndLearns) {
  DraftMeans means;
  DraftPace pace;
  const uint32_t kind = KindOf(DraftAfter(8));
  const double before = pace.Chance(kind, means);
  for (int i = 0; i < 20; ++i) means.counts().Add(kind, 8, 0);
  EXPECT_LT(pace.Chance(kind, means), before / 2) << "the tenant's drafts are wrong";
  for (int i = 0; i < 20; ++i) pace.counts().Add(kind, 8, 8);
  EXPECT_GT(pace.Chance(kind, means), 0.9) << "this request's are right";
  EXPECT_GT(pace.Chance(KindOf(DraftAfter(2)), means), 0.2) << "another kind";
  // What was not tried for long counts less.
  for (int i = 0; i < 500; ++i) pace.CountUntried(kind, 1);
  EXPECT_LT(pace.Chance(kind, means), 0.5);
}

TEST(DraftPace, OneInManyStepsGoesWithout) {
  DraftPace pace;
  uint32_t without = 0;
  for (uint64_t i = 0; i < 320; ++i) {
    const bool drafts = pace.MayDraft(i);
    without += !drafts;
    pace.AddStep({.drafted = drafts,
                  .could_draft = true,
                  .num_tokens = drafts ? 4.0 : 1.0,
                  .ns = 10 * kDraftMs,
                  .answer_tokens = i});
  }
  EXPECT_EQ(without, 320 / DraftPace::kPlainEvery);
}

// Steps with drafts take twice as long and give no more tokens.
TEST(DraftPace, StopsWhereDraftsAreSlowerForLongerEachTime) {
  DraftPace pace;
  std::vector<uint64_t> stops;  // answer tokens at which drafting stops
  uint64_t tokens = 0;
  for (bool before = true; stops.size() < 3; ++tokens) {
    ASSERT_LT(tokens, 10'000u);
    const bool drafts = pace.MayDraft(tokens) && tokens > 3;
    pace.AddStep({.drafted = drafts,
                  .could_draft = true,
                  .num_tokens = 1,
                  .ns = (drafts ? 20 : 10) * kDraftMs,
                  .answer_tokens = tokens});
    if (before && !pace.MayDraft(tokens + 1)) stops.push_back(tokens);
    before = pace.MayDraft(tokens + 1);
  }
  EXPECT_LE(stops[0], 2 * DraftPace::kMinSteps);
  EXPECT_GE(stops[1] - stops[0], DraftPace::kFirstPause);
  EXPECT_GE(stops[2] - stops[1], 2 * DraftPace::kFirstPause);
}

// Returns costs by which a step of one row takes 20 ms, and each row of a prompt 1 ms more.
StepCost KnownCost() {
  StepCost cost;
  for (int i = 0; i < 40; ++i) {
    cost.Observe({.decode_rows = 1}, 20 * kDraftMs);
    cost.Observe({.prefill_rows = 256}, 256 * kDraftMs);
  }
  return cost;
}

TEST(StepCost, ADraftThatWasNeverSeenCostsAsManyRowsOfPrompts) {
  StepCost cost = KnownCost();
  const double one = cost.PredictNs({.decode_rows = 1});
  EXPECT_NEAR(one, 20e6, 2e6);
  EXPECT_NEAR(cost.PredictNs({.decode_rows = 1, .draft_rows = 7}) - one, 7e6, 1e6);
  // Drafts turn out to cost little; prompts cost what they did.
  for (int i = 0; i < 100; ++i) {
    cost.Observe({.decode_rows = 1, .draft_rows = 8}, 22 * kDraftMs);
    if (i % 8 == 0) cost.Observe({.decode_rows = 1}, 20 * kDraftMs);
  }
  EXPECT_NEAR(cost.PredictNs({.decode_rows = 1, .draft_rows = 8}), 22e6, 1e6);
  EXPECT_NEAR(cost.PredictNs({.decode_rows = 1}), 20e6, 1e6);
  EXPECT_NEAR(cost.PredictNs({.prefill_rows = 256}), 256e6, 20e6);
}

TEST(StepCost, DraftsThatWereSlowLongAgoCountAsNeverSeen) {
  StepCost cost = KnownCost();
  for (int i = 0; i < 100; ++i) {
    cost.Observe({.decode_rows = 1, .draft_rows = 7}, 500 * kDraftMs);
    cost.Observe({.decode_rows = 1}, 200 * kDraftMs);
  }
  const StepWork drafted{.decode_rows = 1, .draft_rows = 7};
  EXPECT_GT(cost.PredictNs(drafted), 400e6);
  for (int i = 0; i < 600; ++i) {
    cost.Observe({.decode_rows = 1}, 20 * kDraftMs);
    if (i % 8 == 0) cost.Observe({.prefill_rows = 256}, 256 * kDraftMs);
  }
  EXPECT_NEAR(cost.PredictNs(drafted), 27e6, 2e6);
}

class DraftPlan : public testing::Test {
 protected:
  const StepPlan& Decide() {
    view_.requests = requests_;
    view_.sequences = sequences_;
    view_.tenants = tenants_;
    view_.cost = &cost_;
    MakeSchedulingPolicy(Schedule::kFair)->Decide(view_, plan_);
    return plan_;
  }
  void AddDrafted(uint32_t drafted, double chance) {
    requests_.push_back({.state = RequestView::State::kRunning, .arrival_ns = requests_.size()});
    sequences_.push_back({.request = static_cast<uint32_t>(requests_.size() - 1),
                          .pending = 1,
                          .decodes = true,
                          .kv_bytes = 0,
                          .drafted = drafted,
                          .draft_chance = chance});
  }

  std::vector<RequestView> requests_;
  std::vector<SequenceView> sequences_;
  std::vector<TenantView> tenants_ = {{}};
  StepCost cost_ = KnownCost();
  View view_{.parallel = 4, .max_rows = 64, .max_draft_rows = 32};
  StepPlan plan_;
};

TEST_F(DraftPlan, IsLongWhereTokensAreLikelyAndEmptyWhereTheyAreNot) {
  AddDrafted(16, 0.98);
  EXPECT_EQ(Decide().draft_rows[0], 16u);
  EXPECT_EQ(plan_.rows[0], 1u);
  sequences_[0].draft_chance = 0.02;
  EXPECT_EQ(Decide().draft_rows[0], 0u);
  // A second token of 0.5 * 0.5 gives a quarter of a token for 1 ms: more than 1 in 20 ms.
  sequences_[0].draft_chance = 0.5;
  EXPECT_GT(Decide().draft_rows[0], 1u);
  EXPECT_LT(plan_.draft_rows[0], 8u);
}

TEST_F(DraftPlan, GivesRowsToTheLikelierSequence) {
  AddDrafted(16, 0.6);
  AddDrafted(16, 0.98);
  view_.max_draft_rows = 8;
  Decide();
  EXPECT_EQ(plan_.draft_rows[0] + plan_.draft_rows[1], 8u);
  EXPECT_GT(plan_.draft_rows[1], 2 * plan_.draft_rows[0]);
}

TEST_F(DraftPlan, StaysWithinTheStepsTimeAndLeavesRowsToPrompts) {
  AddDrafted(32, 0.99);
  view_.target_step_ns = 30 * kDraftMs;
  EXPECT_LE(Decide().draft_rows[0], 11u);
  EXPECT_GT(plan_.draft_rows[0], 5u);
  view_.target_step_ns = 0;
  view_.max_rows = 24;
  requests_.push_back({.state = RequestView::State::kRunning, .arrival_ns = 9});
  sequences_.push_back({.request = 1, .pending = 100, .decodes = false, .kv_bytes = 0});
  Decide();
  EXPECT_LE(plan_.draft_rows[0], 24u - 1 - SchedulingPolicy::kLeastPrefillRows);
  EXPECT_GE(plan_.rows[1], SchedulingPolicy::kLeastPrefillRows);
}

TEST_F(DraftPlan, IsAsLongAsItMayBeWhereItAlwaysDrafts) {
  AddDrafted(9, 0.01);
  AddDrafted(0, 0);
  view_.drafts_always = true;
  EXPECT_EQ(Decide().draft_rows, (std::vector<uint32_t>{9, 0}));
  view_.max_draft_rows = 4;
  EXPECT_EQ(Decide().draft_rows, (std::vector<uint32_t>{4, 0}));
}

}  // namespace
}  // namespace kvasir
