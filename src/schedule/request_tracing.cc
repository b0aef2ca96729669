#include "schedule/request_tracing.h"

#include <utility>

#include "base/clock.h"

namespace kvasir {
namespace {

void Add(RequestTrace& trace, const RequestTrace::Allocation& allocation) {
  if (trace.allocations.size() == RequestTrace::kMaxAllocations) return;
  trace.allocations.push_back(allocation);
}

void EndWait(Request& request, uint64_t now_ns) {
  if (request.tracing.starved_since_ns == 0) return;
  Add(*request.tracing.trace,
      {.begin_ns = request.tracing.starved_since_ns, .end_ns = now_ns, .waited = true});
  request.tracing.starved_since_ns = 0;
}

}  // namespace

std::unique_ptr<RequestTrace> NewTrace() {
  auto trace = std::make_unique<RequestTrace>();
  trace->preemptions.reserve(RequestTrace::kMaxPreemptions);
  trace->allocations.reserve(RequestTrace::kMaxAllocations);
  return trace;
}

void TracePreempt(Request& request, PreemptCause cause, uint64_t now_ns) {
  if (!request.tracing.trace) return;
  EndWait(request, now_ns);
  auto& all = request.tracing.trace->preemptions;
  if (all.size() == RequestTrace::kMaxPreemptions) return;
  all.push_back({.begin_ns = now_ns, .cause = cause});
}

void TraceResume(Request& request, uint64_t now_ns) {
  if (!request.tracing.trace) return;
  uint32_t before = 0;
  for (const auto& each : request.tracing.trace->preemptions) before += each.recomputed;
  auto& last = request.tracing.trace->preemptions.back();
  if (last.resumed_ns != 0) return;  // this preemption was one too many to keep
  last.resumed_ns = now_ns;
  last.recomputed = request.receipt.recomputed - before;
}

void TraceCaughtUp(Request& request) {
  if (!request.tracing.trace || request.tracing.trace->preemptions.empty()) return;
  auto& last = request.tracing.trace->preemptions.back();
  if (last.resumed_ns != 0 && last.caught_up_ns == 0)
    last.caught_up_ns = request.times.last_token_ns;
}

void TraceWait(Request& request) {
  if (!request.tracing.trace || request.room.is_starved == (request.tracing.starved_since_ns != 0))
    return;
  const uint64_t now_ns = MonotonicNs();
  if (request.room.is_starved) {
    request.tracing.starved_since_ns = now_ns;
  } else {
    EndWait(request, now_ns);
  }
}

void WriteTrace(Request& request, FinishReason reason, uint64_t now_ns) {
  if (!request.tracing.trace) return;
  EndWait(request, now_ns);
  RequestTrace& trace = *request.tracing.trace;
  trace.submitted_ns = request.times.submitted_ns;
  trace.admitted_ns = request.times.admitted_ns;
  trace.first_token_ns = request.times.first_token_ns;
  trace.last_token_ns = request.times.last_token_ns;
  trace.ended_ns = now_ns;
  trace.end = reason == FinishReason::kCancelled ? TraceEnd::kCancelled
              : reason == FinishReason::kError   ? TraceEnd::kFailed
                                                 : TraceEnd::kFinished;
  trace.completion_tokens = request.answer.completion_tokens;
  trace.choices = request.spec.n;
  trace.max_tokens = request.max_tokens;
  trace.temperature = request.spec.sampling.temperature;
  trace.top_p = request.spec.sampling.top_p;
}

void DeliverTrace(Request& request) noexcept {
  if (!request.tracing.trace) return;
  request.tracing.trace->receipt = std::move(request.receipt);
  request.spec.on_trace(std::move(*request.tracing.trace));
  request.tracing.trace.reset();
}

AllocationWatch::AllocationWatch(Request& request, const CacheCounters& counters)
    : trace_(request.tracing.trace.get()), counters_(counters) {
  if (trace_ == nullptr) return;
  begin_ns_ = MonotonicNs();
  blocks_ = counters.evicted_blocks;
  tokens_ = counters.evicted_tokens;
  own_blocks_ = counters.evicted_own_blocks;
}

AllocationWatch::~AllocationWatch() {
  if (trace_ == nullptr || counters_.evicted_blocks == blocks_) return;
  Add(*trace_,
      {.begin_ns = begin_ns_,
       .end_ns = MonotonicNs(),
       .evicted_blocks = static_cast<uint32_t>(counters_.evicted_blocks - blocks_),
       .evicted_tokens = static_cast<uint32_t>(counters_.evicted_tokens - tokens_),
       .evicted_own_blocks = static_cast<uint32_t>(counters_.evicted_own_blocks - own_blocks_)});
}

}  // namespace kvasir
