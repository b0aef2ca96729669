// Trace: requests of a served day, as Mooncake publishes them: lengths and shared blocks, no text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/status.h"

namespace kvasir {

struct TraceRequest {
  uint64_t timestamp_ms = 0;  // since the trace began
  uint32_t input_tokens = 0;
  uint32_t output_tokens = 0;
  // Of the prompt, in order, the last one perhaps not full. The same number is the same block
  // after the same blocks.
  std::vector<uint32_t> block_ids;
};

// JSON Lines in the format of kvcache-ai/Mooncake (FAST 2025), an object a line:
//   {"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [numbers]}
// Other keys are ignored, empty lines too. kCorruption naming `file` and the line.
Result<std::vector<TraceRequest>> ParseTrace(std::string_view text, const std::string& file);
// kNotFound when the file cannot be opened, kIoError when it cannot be read.
Result<std::vector<TraceRequest>> ReadTrace(const std::string& path);

}  // namespace kvasir
