// RoPE as a config.json says it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "import/architecture.h"
#include "import/hf_fields.h"

namespace kvasir {

// Parses RoPE. transformers 4: rope_theta and rope_scaling ("rope_type", or "type" before 4.43).
// transformers 5: rope_parameters holds both; it still reads rope_scaling first where that is set.
// kUnsupported and kInvalidArgument name the key. REQUIRES: config has head_dim and max_positions.
Result<RopeConfig> ParseRope(Fields& fields, const Architecture& row, const ModelConfig& config,
                             const std::string& file);

// Parses RoPE of full layers and of layers with a window. transformers 4: rope_theta and
// rope_scaling against rope_local_base_freq; 5: rope_parameters.full_attention and
// .sliding_attention.
Status ParseTwoRopes(const nlohmann::json& object, const Architecture& row, const std::string& file,
                     ModelConfig& config);

}  // namespace kvasir
