// The limits of request fields: what the parsers check, and what /openapi.json and docs/ say (a
// test compares the docs). The ranges of sampling parameters are in kvasir/sampling_ranges.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kvasir/sampling_ranges.h"

namespace kvasir {

// Generating.
inline constexpr uint32_t kMaxChoices = 128;          // n, best_of, n_cmpl
inline constexpr size_t kMaxAnswers = 1024;           // prompts times n
inline constexpr size_t kMaxInputs = 2048;            // input of embeddings
inline constexpr int64_t kMaxTimeoutMs = 86'400'000;  // timeout_ms: a day
inline constexpr uint32_t kMaxIndent = 65536;         // n_indent
// Every prompt of a request has its own copy of the stop texts, and each token is compared with
// them, so their size is limited.
inline constexpr size_t kMaxStops = 16;
inline constexpr size_t kMaxStopBytes = 1024;                            // of each
inline constexpr size_t kMaxStopIds = 1024;                              // stop_token_ids
inline constexpr size_t kMaxBiases = 4096;                               // tokens of logit_bias
inline constexpr size_t kMaxListedSamplers = 32, kMaxSamplerBytes = 64;  // samplers; of a name

// Names that an answer repeats, or that the cache goes by.
inline constexpr size_t kMaxAnyNameBytes = 256;  // model, with --alias '*': each event has it
inline constexpr size_t kMaxSaltBytes = 256;     // cache_salt
inline constexpr size_t kMaxResponseFields = 64, kMaxResponseFieldBytes = 256;  // response_fields

// Sessions.
inline constexpr size_t kMaxSegments = 1024;         // segments, of a message
inline constexpr size_t kMaxSegmentNameBytes = 256;  // of a segment
inline constexpr size_t kMaxOriginBytes = 64;        // origin
// As OpenAI limits metadata, in bytes.
inline constexpr size_t kMaxMetadata = 16, kMaxMetadataKey = 64, kMaxMetadataValue = 512;

}  // namespace kvasir
