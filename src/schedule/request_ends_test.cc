#include "schedule/request_ends.h"

#include <gtest/gtest.h>

#include <chrono>

#include "base/own_clock.h"
#include "schedule/scheduler_parts_for_test.h"

namespace kvasir {
namespace {

class RequestEndsTest : public testing::Test {
 protected:
  static GenerateRequest Spec(TokenId first = 1) {
    return SchedulerParts::Spec(SmallPrompt(40, first), /*max_tokens=*/8);
  }
  bool HoldsNothing() const {
    return parts_.cache->usage().pinned_blocks == 0 &&
           parts_.cache->unreserved_blocks() == parts_.cache->plan().num_blocks;
  }
  static FinishReason ReasonOf(Request& request) { return request.events.Of(0).finish_reason; }

  OwnClock clock_;
  SchedulerParts parts_;
};

TEST_F(RequestEndsTest, AFailedRequestGivesAllBackAndSaysWhy) {
  Request& request = parts_.Run(Spec());
  parts_.ComputePrompt(request, 20);
  EXPECT_FALSE(HoldsNothing());
  parts_.ends.Fail(request, {Code::kCorruption, "broken"});
  EXPECT_TRUE(request.done() && HoldsNothing());
  EXPECT_EQ(parts_.figures.stats().requests.corrupted, 1u);
  parts_.requests.CollectEnded();
  uint32_t ended = 0;
  parts_.ends.set_on_end([&](const Request&) { ++ended; });
  const RequestEnds::Delivered delivered = parts_.ends.Deliver();
  EXPECT_EQ(delivered.count, 1u);
  EXPECT_TRUE(parts_.requests.empty());
  ASSERT_EQ(parts_.events.size(), 1u);
  EXPECT_TRUE(parts_.events[0].last);
  EXPECT_EQ(parts_.events[0].error->message, "broken");
  EXPECT_EQ(parts_.events[0].receipt.prompt_tokens, 40u);
  EXPECT_EQ(ended, 1u);
}

TEST_F(RequestEndsTest, AChoiceThatEndsKeepsItsTailAndCursor) {
  Request& request = parts_.Run(Spec());
  parts_.ComputePrompt(request, 40);
  Sequence& sequence = *request.answer.sequences[0];
  sequence.tokens.push_back(7);
  parts_.Compute(request, sequence, 1);
  sequence.tokens.push_back(8);
  const float hidden[FakeRunner::kHidden] = {};
  parts_.ends.EndChoice(request, sequence, hidden, FinishReason::kStop);
  EXPECT_TRUE(request.done() && HoldsNothing());
  EXPECT_EQ(ReasonOf(request), FinishReason::kStop);
  EXPECT_EQ(parts_.cache->usage().num_cursors, 1u);
  EXPECT_EQ(parts_.cache->usage().cached_tokens, 41u);
  EXPECT_TRUE(parts_.requests.retry_admission);
}

TEST_F(RequestEndsTest, WhatIsCancelledMovesWhereverItIs) {
  Request& waiting = parts_.Wait(Spec());
  Request& running = parts_.Run(Spec(2));
  Request& spare = parts_.Wait(Spec(3));
  parts_.requests.spare.push_back(std::move(parts_.requests.waiting.back()));
  parts_.requests.waiting.pop_back();
  parts_.ends.Cancel(RequestId{99});
  EXPECT_FALSE(waiting.done() || running.done() || spare.done());
  for (const RequestId id : {waiting.id, running.id, spare.id}) parts_.ends.Cancel(id);
  EXPECT_TRUE(parts_.requests.waiting.empty() && parts_.requests.spare.empty());
  EXPECT_EQ(parts_.requests.ended.size(), 2u);
  EXPECT_EQ(parts_.requests.running.size(), 1u) << "until CollectEnded";
  for (Request* const request : {&waiting, &running, &spare}) {
    EXPECT_EQ(ReasonOf(*request), FinishReason::kCancelled);
  }
  EXPECT_TRUE(HoldsNothing());
}

TEST_F(RequestEndsTest, WorkForLaterStopsWhereItBegan) {
  GenerateRequest later = Spec();
  later.only_when_idle = true;
  Request& begun = parts_.Run(later);
  Request& other = parts_.Run(Spec(2));
  parts_.Wait(later);
  parts_.requests.spare.push_back(std::move(parts_.requests.waiting.back()));
  parts_.requests.waiting.pop_back();
  parts_.ends.StopSpare(RequestEnds::Spare::kBegun);
  EXPECT_TRUE(begun.done());
  EXPECT_FALSE(other.done());
  EXPECT_EQ(parts_.requests.spare.size(), 1u);
  parts_.ends.StopSpare(RequestEnds::Spare::kAll);
  EXPECT_TRUE(parts_.requests.spare.empty());
}

TEST_F(RequestEndsTest, ADeadlineIsAnErrorBeforeTheFirstTokenAndACutAfterIt) {
  GenerateRequest spec = Spec();
  spec.timeout_ms = 5;
  Request& waiting = parts_.Wait(spec);
  Request& answering = parts_.Run(spec);
  answering.times.first_token_ns = MonotonicNs();
  Request& later = parts_.Run(Spec(2));
  for (Request* const request : {&waiting, &answering}) {
    request->times.deadline_ns = request->times.submitted_ns + 5'000'000;
  }
  clock_.Advance(std::chrono::nanoseconds(4'999'999));
  parts_.ends.EndPastDeadline();
  EXPECT_TRUE(parts_.requests.ended.empty());
  clock_.Advance(std::chrono::nanoseconds(1));
  parts_.ends.EndPastDeadline();
  EXPECT_EQ(parts_.requests.ended.size(), 2u);
  EXPECT_EQ(waiting.events.Of(0).error->code, Code::kDeadlineExceeded);
  EXPECT_EQ(ReasonOf(answering), FinishReason::kLength);
  EXPECT_EQ(answering.events.Of(0).stop_match, "deadline");
  EXPECT_FALSE(later.done());
}

TEST_F(RequestEndsTest, AllFailTogether) {
  Request& waiting = parts_.Wait(Spec());
  Request& running = parts_.Run(Spec(2));
  parts_.ends.FailAll({Code::kUnavailable, "stopped"});
  EXPECT_TRUE(waiting.done() && running.done() && HoldsNothing());
  EXPECT_TRUE(parts_.requests.waiting.empty());
}

TEST_F(RequestEndsTest, SaysThatOneEndedThatCameBeforeAnErase) {
  parts_.ends.Fail(parts_.Run(Spec()), {Code::kUnavailable, "stopped"});
  EXPECT_FALSE(parts_.ends.has_erased());
  Request& erased = parts_.Run(Spec(2));
  erased.is_erased = true;
  parts_.ends.Cancel(erased.id);
  EXPECT_TRUE(parts_.ends.has_erased());
  parts_.ends.ClearErased();
  EXPECT_FALSE(parts_.ends.has_erased());
}

}  // namespace
}  // namespace kvasir
