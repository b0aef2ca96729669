#include "schedule/span_reader.h"

#include <gtest/gtest.h>

#include "schedule/scheduler_parts_for_test.h"

namespace kvasir {
namespace {

constexpr uint32_t kReadSpan = 64, kReadSeam = 8;

class SpanReaderTest : public testing::Test {
 protected:
  // Returns a prompt of a start token, words, a document that is a span after the start token, a
  // question.
  static GenerateRequest Spec(uint32_t num_words) {
    std::vector<TokenId> prompt = {1};
    const auto add = [&](const std::vector<TokenId>& more) {
      prompt.insert(prompt.end(), more.begin(), more.end());
    };
    add(SmallPrompt(num_words, 5));
    const auto begin = static_cast<uint32_t>(prompt.size());
    add(SmallPrompt(kReadSpan, 9));
    add({7, 8, 9});
    GenerateRequest spec = SchedulerParts::Spec(std::move(prompt), /*max_tokens=*/4);
    spec.spans = PromptSpans{.spans = {{begin, begin + kReadSpan}}, .seam = kReadSeam, .head = 1};
    return spec;
  }
  // Computes a prompt and reads its spans.
  void Compute(Request& request) {
    Sequence& first = *request.answer.sequences[0];
    for (;;) {
      ASSERT_TRUE(parts_.spans.Read(request));
      Sequence* const part = request.spans.reading();
      Sequence& next = part != nullptr ? *part : first;
      uint32_t rows = std::min(kSmallRows, next.num_pending());
      if (rows == 0) return;
      if (part == nullptr) {
        rows = std::min(rows, request.spans.plan->RowsFrom(first.kv.num_committed()));
      }
      parts_.Compute(request, next, rows);
    }
  }
  const SpansReceipt& ReceiptOf(Request& request) {
    parts_.spans.Note(request, *request.answer.sequences[0]);
    parts_.spans.FillReceipt(request);
    return *request.receipt.spans;
  }

  SchedulerParts parts_;
};

TEST_F(SpanReaderTest, APartIsComputedOnceAndReadInOtherPlaces) {
  Request& request = parts_.Run(Spec(20));
  Compute(request);
  EXPECT_EQ(request.answer.sequences[0]->kv.num_committed(), request.prompt_tokens());
  EXPECT_EQ(ReceiptOf(request).computed_tokens, kReadSpan - kReadSeam);
  EXPECT_EQ(ReceiptOf(request).seam_tokens, kReadSeam);
  EXPECT_EQ(parts_.spans.num_matches(), 2u) << "when it came, and when the part began";

  Request& other = parts_.Run(Spec(33));
  Compute(other);
  EXPECT_EQ(ReceiptOf(other).reused_tokens, kReadSpan - kReadSeam);
  EXPECT_EQ(ReceiptOf(other).computed_tokens, 0u);
  EXPECT_EQ(other.receipt.computed + other.receipt.cached_tokens(), other.prompt_tokens());
}

TEST_F(SpanReaderTest, WhatAStoppedRequestHasComputedIsFoundAgain) {
  Request& request = parts_.Run(Spec(20));
  ASSERT_TRUE(parts_.spans.Read(request));
  parts_.ComputePrompt(request, request.spans.plan->inexact_from());
  ASSERT_TRUE(parts_.spans.Read(request));
  ASSERT_NE(request.spans.reading(), nullptr);
  parts_.Compute(request, *request.spans.reading(), kSmallRows);
  parts_.Compute(request, *request.spans.reading(), kSmallRows);
  parts_.spans.Stop(request);
  EXPECT_TRUE(request.spans.parts.empty());

  Request& other = parts_.Run(Spec(33));
  EXPECT_GE(other.spans.parts[0]->sequence.kv.num_committed(), 2 * kSmallRows);
}

TEST_F(SpanReaderTest, APartWithoutRoomIsLookedForAgainOnlyWhereItMayFindSome) {
  for (const TokenId first : {40, 41}) {  // each takes half of the pool
    parts_.Run(SchedulerParts::Spec(SmallPrompt(16, first), kSmallContext - 15));
  }
  Request& request = parts_.Wait(Spec(20));
  const MatchResult match = parts_.matcher.Match(request, request.spec.prompt, false, {});
  const auto refused = parts_.spans.Reserve(request, match);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kExhausted);
  const uint64_t looked = parts_.spans.num_matches();
  EXPECT_FALSE(parts_.spans.Reserve(request, match));
  EXPECT_EQ(parts_.spans.num_matches(), looked);
  parts_.spans.Retry();
  EXPECT_FALSE(parts_.spans.Reserve(request, match));
  EXPECT_GT(parts_.spans.num_matches(), looked);
  parts_.requests.running.pop_back();
  EXPECT_TRUE(parts_.spans.Reserve(request, match));
}

}  // namespace
}  // namespace kvasir
