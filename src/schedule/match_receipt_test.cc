#include "schedule/match_receipt.h"

#include <gtest/gtest.h>

#include "testing/small_runner_for_test.h"

namespace kvasir {
namespace {

class MatchReceiptTest : public testing::Test {
 protected:
  MatchReceiptTest() : runner_(SmallRunnerOptions()), cache_(SmallCache(runner_)) {
    request_.spec.prompt = SmallPrompt(40);
    request_.spec.ignored = {"best_of"};
  }
  const Receipt& Explain() {
    ExplainMatch(request_,
                 cache_->Match(cache_->EnterNamespace("a", {}), request_.spec.prompt, {}));
    return request_.receipt;
  }

  const FakeRunner runner_;
  const std::unique_ptr<KvCache> cache_;
  Request request_;
};

TEST_F(MatchReceiptTest, SaysWhatIsComputedAndWhy) {
  const Receipt& receipt = Explain();
  EXPECT_EQ(receipt.prompt_tokens, 40u);
  EXPECT_EQ(receipt.computed, 40u);
  EXPECT_EQ(receipt.ignored, request_.spec.ignored);
  ASSERT_TRUE(receipt.miss);
  EXPECT_EQ(receipt.miss->reason, MissReason::kCold);
  EXPECT_FALSE(receipt.miss->message_index) << "the prompt has no messages";
}

TEST_F(MatchReceiptTest, ACallerKnowsThatTheIdentityChanged) {
  request_.spec.identity_changed = true;
  EXPECT_EQ(Explain().miss->reason, MissReason::kIdentityChanged);
}

TEST_F(MatchReceiptTest, NamesTheMessageOfTheFirstTokenThatWasNotFound) {
  request_.spec.message_ends = {10, 25, 30};
  const auto message_at = [&](uint32_t token) {
    SetReceiptMiss(request_, MissReason::kEvicted, token);
    EXPECT_EQ(request_.receipt.miss->at_token, token);
    return request_.receipt.miss->message_index;
  };
  EXPECT_EQ(message_at(0), 0u);
  EXPECT_EQ(message_at(9), 0u);
  EXPECT_EQ(message_at(10), 1u);
  EXPECT_EQ(message_at(29), 2u);
  EXPECT_EQ(message_at(30), std::nullopt) << "it comes after the last message";
}

}  // namespace
}  // namespace kvasir
