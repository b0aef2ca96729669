// When a draft model reads and drafts: where it is expected to pay.
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "base/own_clock.h"
#include "base/random.h"
#include "schedule/model_drafting_for_test.h"

namespace kvasir {
namespace {

// Two tokens of six that were there before say little of the next one, and cost nothing to look up.
TEST(DraftModelPace, DraftsWhereMemoryIsOftenWrong) {
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
TEST(DraftModelPace, ReadsLittleWhereItIsAlwaysWrong) {
  OwnClock clock;
  ModelDrafting drafting(
      {.draft_windows = {16}, .speculate = Speculate::kAuto, .clock = &clock, .draft_ms = 5});
  GenerateRequest spec = ReplayedSpec(0, 400, 0.0);
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
TEST(DraftModelPace, DraftsAfterAPromptThatTookLong) {
  OwnClock clock;
  ModelDrafting drafting(
      {.draft_windows = {16}, .speculate = Speculate::kAuto, .clock = &clock, .draft_row_ms = 1});
  GenerateRequest spec = ReplayedSpec(8, 300, 0.9);
  drafting.Begin(0, spec);
  drafting.Run();
  EXPECT_GT(drafting.DraftsOf(0).accepted[static_cast<size_t>(DraftSource::kModel)], 150u);
}

TEST(DraftModelPace, DraftsAgainAfterTheMachineWasBusy) {
  OwnClock clock;
  ModelDrafting drafting({.draft_windows = {16}, .speculate = Speculate::kAuto, .clock = &clock});
  GenerateRequest spec = ReplayedSpec(0, 300, 1.0);
  std::vector<uint32_t> drafted;
  for (uint32_t request = 0; request < 7; ++request) {
    drafting.TakeForDraftRow(&clock, request == 1 || request == 2 ? 60 : 0);
    drafting.Begin(request, spec);
    drafting.Run();
    drafted.push_back(drafting.DraftsOf(request).drafted[static_cast<size_t>(DraftSource::kModel)]);
  }
  EXPECT_GT(drafted[0], 200u);
  EXPECT_LT(drafted[2], 200u);
  EXPECT_GT(drafted[6], 200u);
}

// With many answers at once a draft may not pay that would pay for one: then nothing is read.
TEST(DraftModelPace, ReadsNothingWhereItPaysForOneAloneOnly) {
  OwnClock clock;
  ModelDrafting drafting(
      {.draft_windows = {16}, .speculate = Speculate::kAuto, .clock = &clock, .draft_row_ms = 25});
  for (uint32_t request = 0; request < 4; ++request) {
    GenerateRequest spec = ReplayedSpec(0, 200, 0.5);
    spec.prompt[0] = static_cast<TokenId>(request);
    drafting.Begin(request, std::move(spec));
  }
  drafting.Run();
  EXPECT_LT(drafting.draft_steps(), 60u);
}

}  // namespace
}  // namespace kvasir
