// Fills in the RequestTrace of a request that has one; the calls do nothing for the others.
#pragma once

#include <cstdint>

#include "cache/kv_cache.h"
#include "schedule/request.h"

namespace kvasir {

// Returns a trace with room for all that it may get, so that steps allocate nothing.
std::unique_ptr<RequestTrace> NewTrace();

void TracePreempt(Request& request, PreemptCause cause, uint64_t now_ns);
void TraceResume(Request& request, uint64_t now_ns);  // its receipt already counts what it costs
void TraceCaughtUp(Request& request);                 // its next token was sampled
void TraceWait(Request& request);                     // is_starved was decided for the next step
// Completes the trace of a request that ended now; its receipt is complete.
void WriteTrace(Request& request, FinishReason reason, uint64_t now_ns);
// Passes the trace to spec.on_trace, once.
void DeliverTrace(Request& request) noexcept;

// Notes what is evicted while it lives: a step allocates blocks for the request.
class AllocationWatch {
 public:
  AllocationWatch(Request& request, const CacheCounters& counters);
  ~AllocationWatch();
  AllocationWatch(const AllocationWatch&) = delete;
  AllocationWatch& operator=(const AllocationWatch&) = delete;

 private:
  RequestTrace* const trace_;  // nullptr: not traced
  const CacheCounters& counters_;
  uint64_t begin_ns_ = 0, blocks_ = 0, tokens_ = 0, own_blocks_ = 0;
};

}  // namespace kvasir
