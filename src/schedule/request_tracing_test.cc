#include "schedule/request_tracing.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace kvasir {
namespace {

class RequestTracingTest : public testing::Test {
 protected:
  RequestTracingTest() {
    request_.spec.on_trace = [this](const RequestTrace& trace) { delivered_.push_back(trace); };
    request_.tracing.trace = NewTrace();
  }

  const std::vector<RequestTrace::Preemption>& preemptions() {
    return request_.tracing.trace->preemptions;
  }
  const std::vector<RequestTrace::Allocation>& allocations() {
    return request_.tracing.trace->allocations;
  }
  void Starve(bool is_starved) {
    request_.room.is_starved = is_starved;
    TraceWait(request_);
  }
  // Resumes at `now_ns`, when so many tokens have been computed again in all.
  void Resume(uint64_t now_ns, uint32_t recomputed) {
    request_.receipt.recomputed = recomputed;
    TraceResume(request_, now_ns);
  }

  Request request_;
  CacheCounters counters_;
  std::vector<RequestTrace> delivered_;
};

TEST_F(RequestTracingTest, APreemptionLastsUntilItsNextTokenAndHasItsOwnTokens) {
  TracePreempt(request_, PreemptCause::kPriority, 10);
  Resume(20, 5);
  request_.times.last_token_ns = 25;
  TraceCaughtUp(request_);
  request_.times.last_token_ns = 27;
  TraceCaughtUp(request_);
  TracePreempt(request_, PreemptCause::kMemory, 30);
  TraceCaughtUp(request_);  // of a token that was sampled before
  Resume(40, 12);
  ASSERT_EQ(preemptions().size(), 2u);
  EXPECT_EQ(preemptions()[0].begin_ns, 10u);
  EXPECT_EQ(preemptions()[0].resumed_ns, 20u);
  EXPECT_EQ(preemptions()[0].caught_up_ns, 25u);
  EXPECT_EQ(preemptions()[0].cause, PreemptCause::kPriority);
  EXPECT_EQ(preemptions()[0].recomputed, 5u);
  EXPECT_EQ(preemptions()[1].resumed_ns, 40u);
  EXPECT_EQ(preemptions()[1].caught_up_ns, 0u);
  EXPECT_EQ(preemptions()[1].recomputed, 7u);
}

TEST_F(RequestTracingTest, KeepsTheFirstPreemptionsAlone) {
  for (uint64_t i = 0; i < RequestTrace::kMaxPreemptions + 2; ++i) {
    TracePreempt(request_, PreemptCause::kMemory, 100 * i + 1);
    Resume(100 * i + 2, static_cast<uint32_t>(i + 1));
  }
  ASSERT_EQ(preemptions().size(), RequestTrace::kMaxPreemptions);
  EXPECT_EQ(preemptions().back().begin_ns, 100 * (RequestTrace::kMaxPreemptions - 1) + 1);
  EXPECT_EQ(preemptions().back().resumed_ns, preemptions().back().begin_ns + 1);
  EXPECT_EQ(preemptions().back().recomputed, 1u);
}

TEST_F(RequestTracingTest, AWaitForRoomEndsWithTheRoomOrAPreemption) {
  Starve(true);
  const uint64_t since_ns = request_.tracing.starved_since_ns;
  EXPECT_GT(since_ns, 0u);
  Starve(true);
  EXPECT_EQ(request_.tracing.starved_since_ns, since_ns);
  EXPECT_TRUE(allocations().empty());
  Starve(false);
  ASSERT_EQ(allocations().size(), 1u);
  EXPECT_TRUE(allocations()[0].waited);
  EXPECT_EQ(allocations()[0].begin_ns, since_ns);
  EXPECT_GE(allocations()[0].end_ns, since_ns);
  Starve(false);
  EXPECT_EQ(allocations().size(), 1u);
  Starve(true);
  const uint64_t now_ns = request_.tracing.starved_since_ns + 9;
  TracePreempt(request_, PreemptCause::kFairness, now_ns);
  ASSERT_EQ(allocations().size(), 2u);
  EXPECT_EQ(allocations()[1].end_ns, now_ns);
  EXPECT_EQ(request_.tracing.starved_since_ns, 0u);
}

TEST_F(RequestTracingTest, AStepIsNotedWhereItEvicts) {
  counters_.evicted_blocks = 7;
  counters_.evicted_tokens = 100;
  counters_.evicted_own_blocks = 3;
  { const AllocationWatch watch(request_, counters_); }
  EXPECT_TRUE(allocations().empty());
  {
    const AllocationWatch watch(request_, counters_);
    counters_.evicted_blocks += 2;
    counters_.evicted_tokens += 20;
    counters_.evicted_own_blocks += 1;
  }
  ASSERT_EQ(allocations().size(), 1u);
  EXPECT_EQ(allocations()[0].evicted_blocks, 2u);
  EXPECT_EQ(allocations()[0].evicted_tokens, 20u);
  EXPECT_EQ(allocations()[0].evicted_own_blocks, 1u);
  EXPECT_FALSE(allocations()[0].waited);
  EXPECT_GE(allocations()[0].end_ns, allocations()[0].begin_ns);
  for (size_t i = 0; i < RequestTrace::kMaxAllocations; ++i) {
    const AllocationWatch watch(request_, counters_);
    ++counters_.evicted_blocks;
  }
  EXPECT_EQ(allocations().size(), RequestTrace::kMaxAllocations);
}

TEST_F(RequestTracingTest, IsDeliveredOnceWithItsEndAndReceipt) {
  request_.times.submitted_ns = 1;
  request_.times.admitted_ns = 2;
  request_.spec.n = 3;
  request_.receipt.recomputed = 4;
  Starve(true);
  WriteTrace(request_, FinishReason::kCancelled, UINT64_MAX);
  DeliverTrace(request_);
  DeliverTrace(request_);
  ASSERT_EQ(delivered_.size(), 1u);
  const RequestTrace& trace = delivered_[0];
  EXPECT_EQ(trace.submitted_ns, 1u);
  EXPECT_EQ(trace.admitted_ns, 2u);
  EXPECT_EQ(trace.ended_ns, UINT64_MAX);
  EXPECT_EQ(trace.choices, 3u);
  EXPECT_EQ(trace.receipt.recomputed, 4u);
  EXPECT_EQ(trace.end, TraceEnd::kCancelled);
  ASSERT_EQ(trace.allocations.size(), 1u);
  EXPECT_EQ(trace.allocations[0].end_ns, UINT64_MAX) << "the wait ends with the request";
  for (const auto& [reason, end] : {std::pair{FinishReason::kError, TraceEnd::kFailed},
                                    std::pair{FinishReason::kStop, TraceEnd::kFinished},
                                    std::pair{FinishReason::kLength, TraceEnd::kFinished}}) {
    request_.tracing.trace = NewTrace();
    WriteTrace(request_, reason, 5);
    EXPECT_EQ(request_.tracing.trace->end, end);
  }
}

TEST_F(RequestTracingTest, ARequestWithoutATraceHasNone) {
  request_.tracing.trace.reset();
  Starve(true);
  TracePreempt(request_, PreemptCause::kMemory, 1);
  Resume(2, 1);
  TraceCaughtUp(request_);
  {
    const AllocationWatch watch(request_, counters_);
    ++counters_.evicted_blocks;
  }
  WriteTrace(request_, FinishReason::kStop, 3);
  DeliverTrace(request_);
  EXPECT_EQ(request_.tracing.trace, nullptr);
  EXPECT_EQ(request_.tracing.starved_since_ns, 0u);
  EXPECT_TRUE(delivered_.empty());
}

}  // namespace
}  // namespace kvasir
