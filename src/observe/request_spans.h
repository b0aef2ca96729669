// RequestSpans: a RequestTrace as spans of OpenTelemetry.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "kvasir/request_trace.h"
#include "observe/trace_context.h"
#include "observe/trace_pair.h"

namespace kvasir {

struct TracedRequest {
  RequestTrace trace;
  TraceContext context;
  SpanId root{};  // of its span; those of its children follow from it
  std::string id, model_name;
};

// The program that the spans are of.
struct SpanSource {
  std::string service = "kvasir", version;
  std::vector<TracePair> attributes = {};  // beside these two
};

// Returns one for the request, and one for each of its parts.
size_t NumSpans(const RequestTrace& trace);

// Returns the body of a POST of OTLP/HTTP in JSON (ExportTraceServiceRequest): ids in hex digits,
// 64-bit numbers as strings. unix_offset_ns: UnixNs() less MonotonicNs(). A request's span is
// `llm_request`; its children are `queue`, `match`, `restore` where it waited for a tier,
// `prefill`, `decode`, `preempt` and `resume` for each preemption, and `allocate` with a child
// `evict` where blocks were evicted. No token, text or tenant.
nlohmann::json OtlpJson(std::span<const TracedRequest> requests, const SpanSource& source,
                        int64_t unix_offset_ns);

}  // namespace kvasir
