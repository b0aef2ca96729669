// The memory that an Assembly takes, part by part.
#pragma once

#include <cstdint>
#include <string>

#include "engine/assembly.h"
#include "kvasir/engine_options.h"
#include "kvasir/plan.h"

namespace kvasir {

// Memory of a running sequence: its ids twice (in the request and in the cache), and its block
// table.
inline constexpr uint64_t kSequenceBytesPerToken = 10;

// Plans the memory of an Assembly of which all but the plan is there, by the arithmetic of the
// parts. O(layers + log bytes).
MemoryPlan PlanMemory(const Assembly& a, const EngineOptions& options);

// Fills in the plan's groups, and what sequences of so many tokens take. REQUIRES: num_blocks and
// block_bytes are there.
void PlanSequences(const KvCacheOptions& cache, uint64_t tokens, MemoryPlan& plan);

// Returns "int8", or "int8; f16 in layers 0, 15".
std::string KvFormatText(const RunnerOptions& options);

}  // namespace kvasir
