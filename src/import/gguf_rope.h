// RoPE as a GGUF file's keys and tensors say it.
#pragma once

#include <string>

#include "import/gguf_metadata.h"
#include "import/model_config.h"

namespace kvasir {

// nullptr: the file has no such tensor. O(tensors).
const StoredTensor* FindTensor(const GgufFile& gguf, const std::string& name);

// Returns the scaling as llama.cpp reads it: linear where a factor is given, llama3 as frequency
// factors. kUnsupported and kInvalidArgument name the key. REQUIRES: config has head_dim and
// max_positions.
Result<RopeConfig> ReadGgufRope(const GgufFile& gguf, Metadata& keys, const ModelConfig& config,
                                const std::string& file);

}  // namespace kvasir
