// EngineStats: a snapshot of what an Engine counts.
#pragma once

#include <cstdint>
#include <vector>

#include "kvasir/cache_counters.h"
#include "kvasir/drafts.h"
#include "kvasir/histogram.h"
#include "kvasir/request_stats.h"
#include "kvasir/request_trace.h"
#include "kvasir/retention.h"
#include "kvasir/tenant.h"

namespace kvasir {

// A snapshot of counters and gauges, with those of the cache; each name's unit is in its comment.
struct EngineStats : CacheCounters {
  uint64_t computed_tokens = 0, generated_tokens = 0;  // tokens; computed: of prompts
  uint64_t requests_finished = 0, requests_cancelled = 0, requests_failed = 0;
  uint64_t requests_past_deadline = 0;  // with and without an answer; not among the other three
  uint64_t running = 0, queued = 0;     // sequences, requests
  uint64_t steps = 0, decode_steps = 0, decode_rows = 0, prefill_rows = 0;
  uint64_t step_ns = 0, cache_ns = 0;  // time in steps; time inside Match, Extend and Commit
  uint64_t weight_read_bytes = 0;      // by products: a matrix once a step, chosen experts only
  uint64_t kv_read_bytes = 0;  // by attention; a prefix that a step's rows share counts once
  uint64_t free_blocks = 0, idle_blocks = 0, pinned_blocks = 0;
  uint64_t cached_tokens = 0, live_tokens = 0, cursors = 0;
  uint64_t preemptions[kNumCountedCauses] = {};  // of requests, by PreemptCause
  uint64_t volatile_tokens = 0;                  // VolatileLine::repeated_tokens
  uint64_t prepared_tokens = 0;                  // computed for requests with only_when_idle
  // Tokens that the last token of a choice did not see, and tokens that did not see all before
  // them, of choices that ended.
  uint64_t retention_dropped[kNumRetentions] = {};
  uint64_t retention_inexact = 0;
  // SpansReceipt, over finished requests; and tokens after the first span that is read elsewhere
  // that were computed, of choices that ended.
  uint64_t span_reused_tokens = 0, span_computed_tokens = 0, span_seam_tokens = 0;
  uint64_t spans_inexact = 0;
  // Sources that an encoder read, and tokens of those whose KV was in the cache.
  uint64_t encoder_passes = 0, reused_source_tokens = 0;
  uint64_t hypotheses = 0;  // that are alive: beams of searches that run
  // Receipt::recomputed, not among prompt_tokens: of all causes, and of sequences that outgrew RoPE
  // longrope's short factors.
  uint64_t recomputed_tokens = 0, recomputed_rope_tokens = 0;
  uint64_t ttft_ns_sum = 0, queue_ns_sum = 0;  // over finished requests
  // Over finished requests; token_seconds: over all tokens of answers except the first.
  Histogram ttft_seconds{kFirstTokenBounds}, token_seconds{kTokenTimeBounds};
  Histogram request_seconds{kRequestTimeBounds}, queue_seconds{kRequestTimeBounds};
  Histogram prompt_lengths{kTokenCountBounds}, answer_lengths{kTokenCountBounds};
  RequestStats requests;
  StepCostStats cost;
  DraftStats drafts;
  std::vector<TenantStats> tenants;  // in the order in which they came; [0]: of those without room
  std::vector<CacheOwnerStats> cache_owners;  // those of the tenants
  double waste = 0;  // (bytes of non-free blocks - bytes of live or cached tokens) / the former
  double worst_waste = 0;  // largest at any step whose pool was at least 90% full
};

}  // namespace kvasir
