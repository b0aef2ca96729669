#include "schedule/step_draws.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <vector>

#include "schedule/scheduler_parts_for_test.h"

namespace kvasir {
namespace {

constexpr uint32_t kDrawnPrompt = 20;

class StepDrawsTest : public testing::Test {
 protected:
  // Runs a request whose prompt the step has computed.
  Request& Ask(uint32_t max_tokens, const std::function<void(GenerateRequest&)>& change = {}) {
    GenerateRequest spec = SchedulerParts::Spec(SmallPrompt(kDrawnPrompt), max_tokens);
    if (change) change(spec);
    Request& request = parts_.Run(std::move(spec));
    parts_.ComputePrompt(request, kDrawnPrompt);
    return request;
  }
  void Draw(bool ends_prompt) {
    parts_.draws.Clear();
    parts_.draws.Add(parts_.batch.rows()[0], ends_prompt);
    parts_.draws.Run(parts_.batch);
  }
  // Computes the greedy answer from its tokens alone.
  std::vector<TokenId> Answer(uint32_t num_tokens) const {
    std::vector<TokenId> tokens = SmallPrompt(kDrawnPrompt);
    for (uint32_t i = 0; i < num_tokens; ++i) tokens.push_back(parts_.runner.NextToken(tokens));
    return {tokens.begin() + kDrawnPrompt, tokens.end()};
  }
  static std::vector<TokenId> AnswerOf(const Sequence& sequence) {
    return {sequence.tokens.begin() + kDrawnPrompt, sequence.tokens.end()};
  }

  SchedulerParts parts_{{.speculate = Speculate::kAlways}};
};

TEST_F(StepDrawsTest, AnAnswerGetsTheTokenOfItsRowAndEndsWithItsLast) {
  Request& request = Ask(2);
  Sequence& sequence = *request.answer.sequences[0];
  Draw(/*ends_prompt=*/true);
  EXPECT_EQ(AnswerOf(sequence), Answer(1));
  EXPECT_EQ(request.events.Of(0).tokens.size(), 1u);
  EXPECT_FALSE(request.done());
  parts_.Compute(request, sequence, 1);
  Draw(/*ends_prompt=*/false);
  EXPECT_EQ(AnswerOf(sequence), Answer(2));
  EXPECT_TRUE(request.done());
  EXPECT_EQ(request.events.Of(0).finish_reason, FinishReason::kLength);
  EXPECT_EQ(parts_.figures.stats().generated_tokens, 2u);
}

TEST_F(StepDrawsTest, APromptWithoutAnAnswerEndsWithItsStep) {
  Request& request = Ask(0);
  Draw(/*ends_prompt=*/true);
  EXPECT_TRUE(request.done());
  EXPECT_EQ(request.events.Of(0).tokens.size(), 0u);
}

TEST_F(StepDrawsTest, DraftedRowsAreDrawnWhileTheyAreRight) {
  Request& request = Ask(8);
  Sequence& sequence = *request.answer.sequences[0];
  Draw(/*ends_prompt=*/true);
  const std::vector<TokenId> answer = Answer(4);
  const auto wrong = static_cast<TokenId>((answer[3] + 1) % static_cast<TokenId>(kSmallVocab));
  std::ranges::copy(std::array{answer[1], answer[2], wrong}, sequence.draft.tokens.begin());
  sequence.draft.num_tokens = 3;
  parts_.Compute(request, sequence, 1, /*drafted=*/3);
  Draw(/*ends_prompt=*/false);
  EXPECT_EQ(AnswerOf(sequence), answer);
  EXPECT_EQ(sequence.kv.num_committed(), kDrawnPrompt + 3);
  EXPECT_EQ(request.receipt.draft.all_accepted(), 2u);
}

TEST_F(StepDrawsTest, PassesTheLogitsOnThatAreAskedFor) {
  std::vector<uint32_t> positions;
  Request& request = Ask(1, [&](GenerateRequest& spec) {
    spec.logits_from = kDrawnPrompt - 2;
    spec.on_logits = [&](uint32_t, uint32_t position, std::span<const float> logits) {
      EXPECT_EQ(logits.size(), kSmallVocab);
      positions.push_back(position);
    };
  });
  Draw(/*ends_prompt=*/true);
  EXPECT_EQ(positions, (std::vector<uint32_t>{kDrawnPrompt - 2, kDrawnPrompt - 1}));
  EXPECT_TRUE(request.done());
}

TEST_F(StepDrawsTest, AllocatesWhatItPlans) {
  EXPECT_EQ(parts_.draws.bytes(), StepDraws::BytesFor(kSmallVocab, parts_.options.logit_rows,
                                                      /*has_encoder=*/false));
}

}  // namespace
}  // namespace kvasir
