// What the choices of requests are doing, for GET /v1/cache/sequences.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cache/kv_cache.h"
#include "kvasir/engine.h"
#include "schedule/leaders.h"
#include "schedule/request_queues.h"

namespace kvasir {

// Returns a row for each choice that waits or runs, of a tenant or of all: the oldest running
// request first, then those that wait.
std::vector<SequenceState> StatesOf(const RequestQueues& requests, const Leaders& leaders,
                                    const KvCache& cache, const std::optional<std::string>& tenant);

}  // namespace kvasir
