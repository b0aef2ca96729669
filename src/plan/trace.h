// Trace: requests that a real service got, as published by Mooncake: lengths and shared blocks, no
// text.
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
  // The blocks of the prompt in order; the last one may not be full. Equal numbers mean equal
  // blocks after equal blocks.
  std::vector<uint32_t> block_ids;
};

// JSON Lines in the format of kvcache-ai/Mooncake (FAST 2025), one object on each line:
//   {"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [numbers]}
// Ignores other keys and empty lines. kCorruption names `file` and the line.
Result<std::vector<TraceRequest>> ParseTrace(std::string_view text, const std::string& file);
// kNotFound when the file cannot be opened, kIoError when it cannot be read.
Result<std::vector<TraceRequest>> ReadTrace(const std::string& path);

}  // namespace kvasir
