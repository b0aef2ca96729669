#include "kvasir/receipt.h"

#include <gtest/gtest.h>

namespace kvasir {
namespace {

TEST(Receipt, OfSeveralPromptsHasTheSumsAndTheTimesOfTheFirstToken) {
  Receipt sum{.prompt_tokens = 10, .computed = 4, .reused_pool = 5, .reused_partial = 1};
  sum.saved_ms = 2;
  sum.ttft_ms = 30;
  sum.queue_ms = 20;
  sum.tpot_ms = 3;
  Receipt other{.prompt_tokens = 7,
                .computed = 1,
                .reused_disk = 4,
                .reused_remote = 2,
                .source_tokens = 9,
                .source_reused = 9,
                .preemptions = 1,
                .recomputed = 6,
                .miss = Miss{MissReason::kCold}};
  other.saved_ms = 5;
  other.ttft_ms = 8;
  other.queue_ms = 1;
  other.compute_ms = 7;
  other.tpot_ms = 2;
  sum.draft = {.steps = 1, .drafted = {4, 0}, .accepted = {3, 0}};
  other.draft = {.steps = 2, .drafted = {1, 7}, .accepted = {0, 5}};
  sum.Add(other);
  EXPECT_EQ(sum.prompt_tokens, 17u);
  EXPECT_EQ(sum.computed + sum.cached_tokens(), sum.prompt_tokens);
  EXPECT_EQ(sum.source_reused, 9u);
  EXPECT_EQ(sum.preemptions, 1u);
  EXPECT_EQ(sum.recomputed, 6u);
  EXPECT_EQ(sum.miss->reason, MissReason::kCold);
  EXPECT_EQ(sum.saved_ms, 7);
  EXPECT_EQ(sum.ttft_ms, 8);
  EXPECT_EQ(sum.queue_ms, 1);
  EXPECT_EQ(sum.compute_ms, 7);
  EXPECT_EQ(sum.tpot_ms, 3);
  EXPECT_EQ(sum.draft.steps, 3u);
  EXPECT_EQ(sum.draft.all_drafted(), 12u);
  EXPECT_EQ(sum.draft.all_accepted(), 8u);
}

TEST(Receipt, KeepsTheFirstMissAndTheEarlierTimes) {
  Receipt sum{.miss = Miss{MissReason::kDiverged, 3}};
  sum.ttft_ms = 8;
  sum.queue_ms = 1;
  Receipt other{.miss = Miss{MissReason::kCold}};
  other.ttft_ms = 30;
  other.queue_ms = 20;
  sum.Add(other);
  EXPECT_EQ(sum.miss->reason, MissReason::kDiverged);
  EXPECT_EQ(sum.ttft_ms, 8);
  EXPECT_EQ(sum.queue_ms, 1);
}

}  // namespace
}  // namespace kvasir
