// What must hold of statistics, receipts and traces after any schedule.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <iterator>
#include <numeric>

#include "kvasir/engine_stats.h"

namespace kvasir {

// Checks statistics after all `num_requests` requests ended, with `num_choices` choices.
inline void CheckStats(const EngineStats& stats, uint64_t num_requests, uint64_t num_choices) {
  const RequestStats& sums = stats.requests;
  const double between_s =
      std::accumulate(std::begin(sums.token_part_ns), std::end(sums.token_part_ns), 0.0) * 1e-9;
  EXPECT_NEAR(between_s, stats.token_seconds.sum(), 1e-6);
  double first_s = 0;
  for (const Histogram& part : sums.first_token_parts) first_s += part.sum();
  EXPECT_NEAR(first_s, stats.ttft_seconds.sum(), 1e-6);
  EXPECT_EQ(sums.stopped + sums.cut + sums.aborted + sums.failed, num_choices);
  EXPECT_EQ(stats.requests_finished + stats.requests_cancelled + stats.requests_failed +
                stats.requests_past_deadline,
            num_requests);
  uint64_t requests = 0, preemptions = 0;
  for (const TenantStats& tenant : stats.tenants) {
    requests += tenant.requests;
    preemptions += tenant.preemptions;
    EXPECT_TRUE(std::isfinite(tenant.service_ns)) << tenant.name;
  }
  EXPECT_EQ(requests, num_requests);
  EXPECT_EQ(preemptions, std::accumulate(std::begin(stats.preemptions), std::end(stats.preemptions),
                                         uint64_t{0}));
  EXPECT_EQ(sums.following, 0u);
  EXPECT_EQ(sums.oldest_wait_since_ns, 0u);
  EXPECT_EQ(sums.longest_running_tokens, 0u);
  EXPECT_LE(stats.evicted_blocks, stats.evicted_tokens);
}

// Checks that the parts of a first token's time add up to it.
inline void CheckParts(const Receipt& receipt) {
  EXPECT_NEAR(receipt.queue_ms + receipt.shared_ms + receipt.cache_ms + receipt.load_ms +
                  receipt.compute_ms,
              receipt.ttft_ms, 1e-6);
}

inline void CheckTrace(const RequestTrace& trace) {
  EXPECT_LE(trace.submitted_ns, trace.ended_ns);
  if (trace.admitted_ns != 0) {
    EXPECT_LE(trace.submitted_ns, trace.admitted_ns);
    EXPECT_LE(trace.admitted_ns, trace.matched_ns);
    EXPECT_LE(trace.matched_ns, trace.ended_ns);
  }
  if (trace.first_token_ns != 0) {
    EXPECT_LE(trace.matched_ns, trace.first_token_ns);
    EXPECT_LE(trace.first_token_ns, trace.last_token_ns);
    EXPECT_LE(trace.last_token_ns, trace.ended_ns);
  }
  uint32_t recomputed = 0;
  for (const auto& each : trace.preemptions) {
    EXPECT_LE(trace.admitted_ns, each.begin_ns);
    if (each.resumed_ns != 0) {
      EXPECT_LE(each.begin_ns, each.resumed_ns);
    }
    if (each.caught_up_ns != 0) {
      EXPECT_LE(each.resumed_ns, each.caught_up_ns);
    }
    recomputed += each.recomputed;
  }
  EXPECT_GE(trace.preemptions.size(), trace.receipt.preemptions);
  EXPECT_EQ(recomputed, trace.receipt.recomputed);
  EXPECT_LE(trace.allocations.size(), RequestTrace::kMaxAllocations);
  for (const auto& each : trace.allocations) {
    EXPECT_LE(each.begin_ns, each.end_ns);
    EXPECT_LE(each.evicted_own_blocks, each.evicted_blocks);
    EXPECT_LE(each.evicted_blocks, each.evicted_tokens);
    EXPECT_TRUE(each.waited || each.evicted_blocks > 0);
  }
}

}  // namespace kvasir
