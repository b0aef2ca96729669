// RequestStats: distributions and sums over requests, for /metrics.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "kvasir/histogram.h"
#include "kvasir/status.h"

namespace kvasir {

// Why a request was refused before it ran.
enum class RejectReason { kQueueFull, kQueueTime, kMemory, kRate, kQuota, kDeadline, kDraining };
inline constexpr uint32_t kNumRejectReasons = 7;
const char* ToString(RejectReason reason);  // "queue_full", "queue_time", ...
// Returns the reason of an error of Engine::CheckRoom: the tenant has as many requests as it may,
// or the engine has.
inline RejectReason QueueReason(const Error& error) {
  return error.cause == Cause::kMaxQueued ? RejectReason::kQuota : RejectReason::kQueueFull;
}
// Requests by RejectReason.
using RejectCounts = std::array<uint64_t, kNumRejectReasons>;

// What a request spends its time on until its first token: it waits for room, or for a request that
// computes what both begin with; calls of the cache; loading from a tier; computing.
enum class FirstTokenPart { kQueue, kShared, kCache, kLoad, kCompute };
inline constexpr uint32_t kNumFirstTokenParts = 5;
const char* ToString(FirstTokenPart part);  // "queue", "shared", ...

// What a request spends its time on between two tokens of an answer. kWait: time outside the step,
// and the rest.
enum class TokenPart { kWait, kCache, kCompute, kSample };
inline constexpr uint32_t kNumTokenParts = 4;
const char* ToString(TokenPart part);  // "wait", "cache", ...

// How long steps take on this machine, learned from those that ran: time = ns_of_rows, linear
// between its 1, 2, 4, ... rows, and what reading the KV that the rows see adds.
struct StepCostStats {
  uint64_t steps = 0;  // learned from; 0: nothing is known
  std::array<double, 17> ns_of_rows{};
  double prefill_ns_per_kv_byte = 0, decode_ns_per_kv_byte = 0;
};

// What one tenant was given, and has now. Times: modelled, of its rows; waiting for admission.
struct TenantStats {
  std::string name;
  uint32_t running = 0, waiting = 0;  // choices; requests
  uint64_t requests = 0, rejected = 0, preemptions = 0;
  uint64_t prompt_tokens = 0, computed_tokens = 0, generated_tokens = 0;  // computed: of prompts
  double service_ns = 0, queue_ns = 0;

  // Adds the sums of a tenant that is forgotten.
  void Add(const TenantStats& other) {
    requests += other.requests;
    rejected += other.rejected;
    preemptions += other.preemptions;
    prompt_tokens += other.prompt_tokens;
    computed_tokens += other.computed_tokens;
    generated_tokens += other.generated_tokens;
    service_ns += other.service_ns;
    queue_ns += other.queue_ns;
  }
};

// The blocks of a cache: a tenant's, or that of a share group.
struct CacheOwnerStats {
  std::string name;
  uint32_t pinned_blocks = 0, idle_blocks = 0, reserved_blocks = 0;
};

// In seconds and tokens, over finished requests unless named otherwise. A copy is a snapshot.
struct RequestStats {
  Histogram prefill_seconds{kRequestTimeBounds};    // from admission to the first token
  Histogram decode_seconds{kRequestTimeBounds};     // from the first token to the last one
  Histogram inference_seconds{kRequestTimeBounds};  // from admission to the last token
  Histogram tpot_seconds{kTokenTimeBounds};         // a request's mean time per later token
  std::array<Histogram, kNumFirstTokenParts> first_token_parts = {
      Histogram(kFirstTokenBounds), Histogram(kFirstTokenBounds), Histogram(kFirstTokenBounds),
      Histogram(kFirstTokenBounds), Histogram(kFirstTokenBounds)};
  Histogram computed_tokens{kTokenCountBounds};  // of the prompt
  Histogram max_tokens{kTokenCountBounds};       // as far as they fit the context
  Histogram choices{kChoiceBounds}, preemptions{kPreemptionBounds};
  Histogram sequence_tokens{kTokenCountBounds};  // of choices at their ends: prompt and answer
  Histogram context_ratios{kShareBounds};        // the same by the context
  Histogram step_tokens{kStepTokenBounds};       // rows of steps
  Histogram step_ratio{kRatioBounds};            // of steps: real time by predicted
  Histogram ttft_ratio{kRatioBounds};            // real time by Receipt::estimate_ms

  double token_part_ns[kNumTokenParts] = {};               // sums over tokens after the first
  double saved_ms = 0;                                     // sum of Receipt::saved_ms
  uint64_t stopped = 0, cut = 0, aborted = 0, failed = 0;  // choices: stop, length, abort, error
  uint64_t corrupted = 0;  // requests with a number that is not finite
  // Blocks for a request were refused: by the pool, and by a tenant's kv_max.
  uint64_t reservations_failed = 0, quota_reservations_failed = 0;
  RejectCounts rejected{};

  uint64_t longest_running_tokens = 0;  // of a sequence, now
  uint64_t following = 0;               // of the waiting requests: they wait for a leader
  uint64_t oldest_wait_since_ns = 0;    // MonotonicNs; 0: none waits
  uint64_t recent_read_bytes = 0;       // in the steps of the last minute: weights and KV
  uint64_t recent_step_ns = 0;          // time in those steps
  uint64_t recent_end_ns = 0;           // MonotonicNs at the end of the last step
};

}  // namespace kvasir
