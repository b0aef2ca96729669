// A MemoryPlan as JSON, for `kvasir plan --json` and `GET /v1/cache`.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "kvasir/plan.h"

namespace kvasir {

// Returns every field of the struct under its name, in the order of the struct.
nlohmann::ordered_json PlanJson(const MemoryPlan& plan);

}  // namespace kvasir
