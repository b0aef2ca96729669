#include "schedule/request_counts.h"

#include <gtest/gtest.h>

namespace kvasir {
namespace {

using TimeState = FirstTokenTime::State;

uint64_t Sum(const FirstTokenTime& time) {
  uint64_t sum = 0;
  for (size_t i = 0; i < kNumFirstTokenParts; ++i) {
    sum += time.part_ns(static_cast<FirstTokenPart>(i));
  }
  return sum;
}

TEST(FirstTokenTime, PartsAddUpToTheTimeToTheFirstToken) {
  FirstTokenTime time;
  time.Start(100);
  time.Enter(TimeState::kFollows, 150, 7);  // 50 in the queue
  time.Enter(TimeState::kQueued, 180, 9);   // 30 for a leader, which ended; then no room
  time.Enter(TimeState::kRuns, 200, 10);    // 20 in the queue
  time.Enter(TimeState::kQueued, 260, 25);  // preempted: 15 in the cache, 45 computing
  time.Enter(TimeState::kRuns, 300, 26);    // 40 in the queue
  time.Enter(TimeState::kDone, 350, 30);    // 4 and 46
  time.Enter(TimeState::kQueued, 900, 80);  // later ones do not count
  EXPECT_EQ(time.part_ns(FirstTokenPart::kQueue), 110u);
  EXPECT_EQ(time.part_ns(FirstTokenPart::kShared), 30u);
  EXPECT_EQ(time.part_ns(FirstTokenPart::kCache), 19u);
  EXPECT_EQ(time.part_ns(FirstTokenPart::kLoad), 0u);
  EXPECT_EQ(time.part_ns(FirstTokenPart::kCompute), 91u);
  EXPECT_EQ(Sum(time), 250u);
}

TEST(RequestCounts, PartsOfATokenAddUpToTheGapBeforeIt) {
  EngineStats stats;
  stats.cache_ns = 130;
  CountTokenParts(1000, {.cache_before_ns = 100, .compute_ns = 600, .sample_ns = 50}, stats);
  const double* parts = stats.requests.token_part_ns;
  EXPECT_EQ(parts[static_cast<size_t>(TokenPart::kCompute)], 600);
  EXPECT_EQ(parts[static_cast<size_t>(TokenPart::kCache)], 30);
  EXPECT_EQ(parts[static_cast<size_t>(TokenPart::kSample)], 50);
  EXPECT_EQ(parts[static_cast<size_t>(TokenPart::kWait)], 320);
}

TEST(RequestCounts, PartsNeverExceedTheGap) {
  EngineStats stats;
  CountTokenParts(100, {.compute_ns = 80, .sample_ns = 50}, stats);
  double sum = 0;
  for (const double part : stats.requests.token_part_ns) sum += part;
  EXPECT_EQ(sum, 100);
}

TEST(RecentReads, ForgetsWhatIsOlderThanAMinute) {
  constexpr uint64_t kSecond = 1'000'000'000;
  RecentReads reads;
  RequestStats stats;
  reads.Add(10 * kSecond, 5, 1000);
  reads.Add(40 * kSecond, 7, 1400);
  reads.Fill(stats);
  EXPECT_EQ(stats.recent_read_bytes, 1400u);
  EXPECT_EQ(stats.recent_step_ns, 12u);
  EXPECT_EQ(stats.recent_end_ns, 40 * kSecond);
  reads.Add(71 * kSecond, 1, 1500);
  reads.Fill(stats);
  EXPECT_EQ(stats.recent_read_bytes, 500u);
  EXPECT_EQ(stats.recent_step_ns, 8u);
}

TEST(RequestCounts, ChoicesThatNeverRanHaveNoLength) {
  EngineStats stats;
  CountChoice(50, FinishReason::kStop, 100, stats);
  CountChoice(0, FinishReason::kCancelled, 100, stats);
  EXPECT_EQ(stats.requests.stopped, 1u);
  EXPECT_EQ(stats.requests.aborted, 1u);
  EXPECT_EQ(stats.requests.sequence_tokens.count(), 1u);
  EXPECT_EQ(stats.requests.context_ratios.sum(), 0.5);
}

TEST(RequestCounts, OnlyFinishedRequestsEnterHistograms) {
  EngineStats stats;
  stats.tenants.resize(2);
  Request request;
  request.tenant = 1;
  request.spec.prompt = {1, 2, 3};
  request.times.submitted_ns = 1'000'000'000;
  CountRequest(request, FinishReason::kCancelled, 3'000'000'000, stats);
  EXPECT_EQ(stats.requests_cancelled, 1u);
  EXPECT_EQ(stats.tenants[1].requests, 1u);
  EXPECT_EQ(stats.tenants[1].queue_ns, 2e9);
  EXPECT_EQ(stats.prompt_lengths.count(), 0u);
  request.times.admitted_ns = 2'000'000'000;
  request.times.first_token_ns = 4'000'000'000;
  request.times.last_token_ns = 7'000'000'000;
  request.answer.longest = request.answer.completion_tokens = 2;
  request.receipt.estimate_ms = 1500;
  request.receipt.ttft_ms = 3000;
  request.receipt.computed = 3;
  CountRequest(request, FinishReason::kStop, 8'000'000'000, stats);
  EXPECT_EQ(stats.requests.prefill_seconds.sum(), 2);
  EXPECT_EQ(stats.requests.decode_seconds.sum(), 3);
  EXPECT_EQ(stats.requests.inference_seconds.sum(), 5);
  EXPECT_EQ(stats.requests.ttft_ratio.sum(), 2);
  EXPECT_EQ(stats.tenants[1].computed_tokens, 3u);
  EXPECT_EQ(stats.tenants[1].generated_tokens, 2u);
}

}  // namespace
}  // namespace kvasir
