// The check of EngineOptions that needs no model.
#pragma once

#include "kvasir/engine_options.h"
#include "kvasir/status.h"

namespace kvasir {

// Checks what kvasir/engine_ranges.h says of options, and names. kInvalidArgument names the field,
// its value and what it may be.
Status CheckOptions(const EngineOptions& options);

}  // namespace kvasir
