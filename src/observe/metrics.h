// What an engine and this process count, as Prometheus text.
#pragma once

#include <string>

#include "kvasir/engine.h"

namespace kvasir {

// Text exposition format 0.0.4. vLLM's names where the meaning is vLLM's; ours, with the unit in
// the name, otherwise.
std::string PrometheusText(const EngineStats& stats);

}  // namespace kvasir
