// The counters of an engine and of this process as Prometheus text.
#pragma once

#include <string>

#include "kvasir/engine.h"

namespace kvasir {

// Text exposition format 0.0.4. Metrics with vLLM's meaning have vLLM's names; others begin with
// kvasir_ and have their unit in the name.
std::string PrometheusText(const EngineStats& stats);

}  // namespace kvasir
