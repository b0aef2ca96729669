// A MemoryPlan as users see it: `kvasir plan --json` and `GET /v1/cache`.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "kvasir/plan.h"

namespace kvasir {

// Every figure of the struct under its name, in its order.
nlohmann::ordered_json PlanJson(const MemoryPlan& plan);

}  // namespace kvasir
