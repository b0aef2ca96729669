#include "schedule/retainer.h"

#include <gtest/gtest.h>

#include "schedule/scheduler_parts_for_test.h"

namespace kvasir {
namespace {

constexpr uint32_t kRetainedPrompt = 100, kRetainedExact = 48, kRetainedBudget = 32;

class RetainerTest : public testing::Test {
 protected:
  Request& Run(Retention policy, uint32_t budget, uint32_t exact_tokens) {
    GenerateRequest spec = SchedulerParts::Spec(SmallPrompt(kRetainedPrompt), 4);
    spec.retention =
        RetentionChoice{.policy = policy, .budget = budget, .exact_tokens = exact_tokens};
    return parts_.Run(std::move(spec));
  }
  // Computes up to a token, and drops before each step what may go.
  void Compute(Request& request, uint32_t end) {
    Sequence& sequence = *request.answer.sequences[0];
    while (sequence.kv.num_committed() < end) {
      ASSERT_TRUE(parts_.retainer.DropTokens(request));
      const uint32_t begin = sequence.kv.num_committed();
      parts_.Compute(request, sequence,
                     std::min({kSmallRows, end - begin, request.retention->RowsFrom(begin)}));
    }
    ASSERT_TRUE(parts_.retainer.DropTokens(request));
  }
  const RetentionReceipt& ReceiptOf(Request& request) {
    parts_.retainer.Note(request, *request.answer.sequences[0]);
    Retainer::FillReceipt(request);
    return *request.receipt.retention;
  }

  SchedulerParts parts_{{.heavy_context = kRetainedPrompt}};
};

TEST_F(RetainerTest, DropsTheBlocksThatNoLaterTokenSees) {
  Request& request = Run(Retention::kWindow, kRetainedBudget, kRetainedExact);
  ASSERT_EQ(request.retention->inexact_from(), kRetainedExact);
  const KvSequence& kv = request.answer.sequences[0]->kv;
  Compute(request, kRetainedExact - 1);
  EXPECT_EQ(kv.table().first(), 0u) << "exact tokens see all before them";
  Compute(request, kRetainedPrompt);
  EXPECT_EQ(kv.table().first(), (kRetainedPrompt + 1 - kRetainedBudget) / kSmallBlockTokens);
  const RetentionReceipt& receipt = ReceiptOf(request);
  EXPECT_EQ(receipt.kept, kRetainedBudget);
  EXPECT_EQ(receipt.dropped, kRetainedPrompt - kRetainedBudget);
  EXPECT_EQ(receipt.inexact_from, kRetainedExact);
  EXPECT_EQ(parts_.figures.stats().retention_inexact, kRetainedPrompt - kRetainedExact);
}

TEST_F(RetainerTest, AShortSequenceKeepsAll) {
  Request& request = Run(Retention::kWindow, kRetainedBudget, kRetainedExact);
  Compute(request, kRetainedExact - 1);
  const RetentionReceipt& receipt = ReceiptOf(request);
  EXPECT_EQ(receipt.dropped, 0u);
  EXPECT_FALSE(receipt.inexact_from);
  EXPECT_EQ(parts_.figures.stats().retention_inexact, 0u);
}

TEST_F(RetainerTest, HeavyTakesWeightsForADecisionAndGivesThemBack) {
  EXPECT_EQ(parts_.retainer.bytes(),
            BlockSums::BytesFor(BlockSums::ShapeFor(parts_.cache->layout(), kRetainedPrompt),
                                SchedulerParts::kParallel));
  constexpr uint32_t kExact = 80;
  Request& request = Run(Retention::kHeavy, kMinHeavyBudget, kExact);
  const Sequence& sequence = *request.answer.sequences[0];
  Compute(request, kExact - RetentionPolicy::kScoredTokens);
  EXPECT_FALSE(sequence.retained.sums.is_taken());
  parts_.Compute(request, *request.answer.sequences[0], 1);
  EXPECT_TRUE(sequence.retained.sums.is_taken());
  Compute(request, kExact);
  EXPECT_FALSE(sequence.retained.sums.is_taken());
  EXPECT_EQ(sequence.retained.decisions, 1u);
  EXPECT_GE(sequence.retained.dropped, kExact - kMinHeavyBudget);
  Compute(request, kExact + 1);
  EXPECT_EQ(ReceiptOf(request).dropped, sequence.retained.dropped);
}

}  // namespace
}  // namespace kvasir
