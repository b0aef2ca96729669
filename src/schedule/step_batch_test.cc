#include "schedule/step_batch.h"

#include <gtest/gtest.h>

#include "schedule/request_answer.h"
#include "testing/small_runner_for_test.h"

namespace kvasir {
namespace {

class StepBatchTest : public testing::Test {
 protected:
  StepBatchTest()
      : runner_(SmallRunnerOptions()),
        cache_(SmallCache(runner_)),
        batch_(runner_, runner_.layout(), kSmallRows, 4) {}

  // Makes a request whose sequence has room for all of its prompt and computed nothing yet.
  std::unique_ptr<Request> Ask(uint32_t tokens, TokenId first) {
    auto request = std::make_unique<Request>();
    request->spec.prompt = SmallPrompt(tokens, first);
    MatchResult match = cache_->Match(cache_->EnterNamespace("a", {}), request->spec.prompt, {});
    request->room.reservation =
        *cache_->Reserve(match, {.prompt_tokens = tokens, .tokens = tokens});
    AddSequence(*request, cache_->Fetch(std::move(match), tokens, request->room.reservation),
                nullptr);
    KV_CHECK(cache_->Extend(request->answer.sequences[0]->kv, request->spec.prompt));
    return request;
  }
  void Add(Request& request, uint32_t num_rows, bool decodes = false) {
    batch_.Add({.request = &request,
                .sequence = request.answer.sequences[0].get(),
                .first_row = 0,
                .num_rows = num_rows,
                .position = 0,
                .source_rows = 0,
                .decodes = decodes},
               /*kv_bytes=*/100);
  }

  FakeRunner runner_;
  const std::unique_ptr<KvCache> cache_;
  StepBatch batch_;
};

TEST_F(StepBatchTest, ComputesTheRowsOfEachSequence) {
  const auto a = Ask(5, 1), b = Ask(3, 2);
  batch_.Clear();
  Add(*a, 5);
  Add(*b, 3);
  for (StepBatch::Rows& rows : batch_.rows()) batch_.AddRows(rows, 0);
  ASSERT_TRUE(batch_.has_rows());
  ASSERT_TRUE(batch_.Compute());
  EXPECT_EQ(batch_.rows()[1].first_row, 5u);
  EXPECT_EQ(batch_.num_computed(), 8u);
  // What the runner computed is what it computes for each sequence alone.
  for (const StepBatch::Rows& rows : batch_.rows()) {
    const float* const hidden = runner_.hidden(rows.first_row + rows.num_rows - 1).data();
    std::vector<float> logits(kSmallVocab);
    runner_.Logits({&hidden, 1}, logits.data());
    EXPECT_EQ(std::ranges::max_element(logits) - logits.begin(),
              runner_.NextToken(rows.request->spec.prompt));
  }
}

TEST_F(StepBatchTest, AShiftIsAnotherPosition) {
  const auto a = Ask(5, 1);
  Add(*a, 4);
  batch_.AddRows(batch_.rows()[0], 1);
  ASSERT_TRUE(batch_.Compute());
  const float* const hidden = runner_.hidden(3).data();
  std::vector<float> logits(kSmallVocab);
  runner_.Logits({&hidden, 1}, logits.data());
  EXPECT_NE(std::ranges::max_element(logits) - logits.begin(),
            runner_.NextToken(std::span(a->spec.prompt).first(4)));
}

TEST_F(StepBatchTest, AddsUpItsWork) {
  const auto a = Ask(5, 1), b = Ask(3, 2);
  Add(*a, 5);
  Add(*b, 1, /*decodes=*/true);
  EXPECT_EQ(batch_.work().prefill_rows, 5u);
  EXPECT_EQ(batch_.work().prefill_kv_bytes, 500);
  EXPECT_EQ(batch_.work().decode_rows, 1u);
  EXPECT_EQ(batch_.work().decode_kv_bytes, 100);
  EXPECT_EQ(batch_.decode_rows(), 1u);
  batch_.Clear();
  EXPECT_TRUE(batch_.empty());
  EXPECT_EQ(batch_.work().rows(), 0u);
}

}  // namespace
}  // namespace kvasir
