// What a model's backend is made with.
#pragma once

#include <cstdint>

#include "backend/backend.h"
#include "import/model_config.h"
#include "model/runner.h"

namespace kvasir {

// Returns the options of a model's backend. `quant_columns`: of its packed weights.
BackendOptions BackendOptionsFor(const ModelConfig& config, const RunnerOptions& options,
                                 uint32_t quant_columns);

}  // namespace kvasir
