// The limits of request fields: what the parsers check, and what /openapi.json says. The ranges of
// sampling parameters are in kvasir/sampling_ranges.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvasir {

inline constexpr uint32_t kMaxChoices = 128;          // n, best_of, n_cmpl
inline constexpr uint32_t kMaxTopLogprobs = 20;       // top_logprobs, logprobs, n_probs
inline constexpr int64_t kMaxTimeoutMs = 86'400'000;  // timeout_ms: a day
// Every prompt of a request has its own copy of the stop texts, and each token is compared with
// them, so their size is limited.
inline constexpr size_t kMaxStops = 16;
inline constexpr size_t kMaxStopBytes = 1024;  // of each
inline constexpr size_t kMaxSegments = 1024;   // segments, of a message of a session

}  // namespace kvasir
