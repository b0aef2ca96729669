// TraceContext: which trace a request belongs to (W3C Trace Context).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "kvasir/status.h"

namespace kvasir {

using TraceId = std::array<uint8_t, 16>;
using SpanId = std::array<uint8_t, 8>;

struct TraceContext {
  TraceId trace{};
  std::optional<SpanId> parent;  // absent: the trace begins here
  bool sampled = false;
};

// Parses a `traceparent` header: "00-TRACE-PARENT-FLAGS" in lower-case hex digits; later versions
// may go on after that. Absent when it is anything else, as the specification demands.
std::optional<TraceContext> ParseTraceparent(std::string_view header);

// Returns the context of a request: that of its header; without a valid one a new trace, of which
// the share `sample` is sampled. kIoError when the system refuses random numbers.
Result<TraceContext> ContextOf(std::string_view header, double sample);

}  // namespace kvasir
