// RequestTrace: what happened to a request and when, for spans.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kvasir/receipt.h"

namespace kvasir {

// Why a running request gave up its blocks. kRope is last: it is a restart, to be computed again as
// a long one, and does not count as a preemption.
enum class PreemptCause { kMemory, kFairness, kPriority, kRope };
inline constexpr uint32_t kNumCountedCauses = static_cast<uint32_t>(PreemptCause::kRope);
const char* ToString(PreemptCause cause);  // "memory", "fairness", "priority", "rope"

// How a traced request ended.
enum class TraceEnd { kFinished, kCancelled, kFailed };

// Times are MonotonicNs; 0: it did not come to that. It has no token, text or name of a tenant.
struct RequestTrace {
  static constexpr size_t kMaxAllocations = 64;
  static constexpr size_t kMaxPreemptions = 8;

  struct Preemption {
    uint64_t begin_ns = 0, resumed_ns = 0;
    uint64_t caught_up_ns = 0;  // its next token was sampled
    PreemptCause cause{};
    uint32_t recomputed = 0;  // tokens
  };
  // A step in which the request evicted blocks, or a time in which it had no room to go on.
  struct Allocation {
    uint64_t begin_ns = 0, end_ns = 0;
    uint32_t evicted_blocks = 0, evicted_tokens = 0;
    uint32_t evicted_own_blocks = 0;  // of the same namespace
    bool waited = false;
  };

  // From the first block that it waited for from a tier to the last one, and the tokens that came.
  struct Restore {
    uint64_t begin_ns = 0, end_ns = 0;  // 0: nothing was asked for; it did not end
    uint32_t disk_tokens = 0, remote_tokens = 0;
  };

  uint64_t submitted_ns = 0, admitted_ns = 0, matched_ns = 0;
  uint64_t first_token_ns = 0, last_token_ns = 0, ended_ns = 0;
  std::vector<Preemption> preemptions;  // the first kMaxPreemptions
  std::vector<Allocation> allocations;  // the first kMaxAllocations
  Restore restore;
  Receipt receipt;
  TraceEnd end = TraceEnd::kFinished;
  uint32_t completion_tokens = 0, choices = 1, max_tokens = 0;
  float temperature = 0, top_p = 0;
};

}  // namespace kvasir
