#include "schedule/draft_book.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "schedule/scheduler_parts_for_test.h"

namespace kvasir {
namespace {

constexpr uint32_t kBookPrompt = 20, kBookAnswer = 20;

// A request whose first token was drawn, and a draft of three tokens after it.
class DraftBookTest : public testing::Test {
 protected:
  DraftBookTest()
      : request_(parts_.Run(SchedulerParts::Spec(SmallPrompt(kBookPrompt), kBookAnswer))),
        sequence_(*request_.answer.sequences[0]) {
    parts_.ComputePrompt(request_, kBookPrompt);
    sequence_.tokens.push_back(4);
    request_.answer.longest = 1;
    std::ranges::copy(std::array<TokenId, 3>{5, 6, 7}, sequence_.draft.tokens.begin());
    sequence_.draft.num_tokens = 3;
  }
  // Finds out about the draft's next row, after which `id` was drawn.
  void Draw(TokenId id) {
    ++sequence_.check.num_right;
    TokenChooser::Draw draw{.request = &request_,
                            .sequence = &sequence_,
                            .hidden = nullptr,
                            .logits = {},
                            .id = id,
                            .token = {}};
    DraftBook::Note(sequence_, draw);
  }

  SchedulerParts parts_{{.speculate = Speculate::kAlways}};
  Request& request_;
  Sequence& sequence_;
};

TEST_F(DraftBookTest, CommitsTheRowsThatAreRight) {
  parts_.Compute(request_, sequence_, 1, /*drafted=*/3);
  EXPECT_EQ(sequence_.kv.num_tokens(), kBookPrompt + 4);
  sequence_.check = {.num_drafted = 3, .position = kBookPrompt, .is_open = true};
  Draw(5);
  EXPECT_TRUE(sequence_.check.is_open);
  Draw(9);
  EXPECT_FALSE(sequence_.check.is_open);
  parts_.drafts.Settle(request_, sequence_);
  EXPECT_EQ(sequence_.kv.num_committed(), kBookPrompt + 2) << "the last token and one drafted";
  EXPECT_EQ(sequence_.kv.num_tokens(), kBookPrompt + 2);
  EXPECT_TRUE(sequence_.check.rejected);
  EXPECT_EQ(request_.receipt.draft.all_drafted(), 3u);
  EXPECT_EQ(request_.receipt.draft.all_accepted(), 1u);
  EXPECT_EQ(parts_.figures.stats().drafts.accepted_at[0], 1u);
  EXPECT_EQ(parts_.figures.stats().drafts.accepted_at[1], 0u);
  parts_.drafts.Settle(request_, sequence_);
  EXPECT_EQ(request_.receipt.draft.steps, 1u) << "a draft is settled once";
}

TEST_F(DraftBookTest, ADraftReachesAsFarAsThereIsRoom) {
  const uint32_t known = kBookPrompt + 1;
  parts_.drafts.Reserve(parts_.requests.running, /*headroom=*/0);
  EXPECT_EQ(request_.room.draft_tokens, known + parts_.options.draft_max);
  parts_.drafts.Reserve(parts_.requests.running, parts_.cache->plan().num_blocks);
  EXPECT_EQ(request_.room.draft_tokens, 2 * kSmallBlockTokens) << "to the end of its block";
}

TEST_F(DraftBookTest, AnswersThatMayNotBeDraftedGetNoRoom) {
  request_.spec.draft_max = 0;
  parts_.drafts.Reserve(parts_.requests.running, /*headroom=*/0);
  EXPECT_EQ(request_.room.draft_tokens, 0u);
}

}  // namespace
}  // namespace kvasir
