// Which layers of a config.json see a sliding window, and how long it is.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "import/architecture.h"
#include "import/hf_fields.h"

namespace kvasir {

// Reads ModelConfig::windows: layer_types decides where it is present, else the family's
// WindowRule. kInvalidArgument: a window of 0 or layer_types of another length; kUnsupported: a
// window in a family that has none.
Result<std::vector<uint32_t>> ReadWindows(Fields& fields, const Architecture& row,
                                          const ModelConfig& config, const std::string& file);

}  // namespace kvasir
