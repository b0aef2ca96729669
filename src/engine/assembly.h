// Assembly: from EngineOptions to the exact options of every part, and what they will allocate.
#pragma once

#include "cache/kv_cache.h"
#include "import/importer.h"
#include "kvasir/engine.h"
#include "model/runner.h"

namespace kvasir {

// PlanMemory stops here; Load goes on from here: that is why their figures agree.
struct Assembly {
  ImportedModel model;
  uint32_t ctx_size = 0;
  uint32_t logit_rows = 0;  // of one call to Runner::Logits
  RunnerOptions runner;
  KvCacheOptions cache;  // the secret is still zero
  Runner::Plan runner_plan{};
  CachePlan cache_plan{};
  MemoryPlan plan;
};

// Reads the model's headers and checks every option. kInvalidArgument and kUnsupported name the
// option and the values that are allowed.
Result<Assembly> Assemble(const EngineOptions& options);

// All but the end tokens, which the tokenizer knows too.
ModelCard CardOf(const Assembly& assembly);

}  // namespace kvasir
