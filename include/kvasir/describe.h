// DescribeModel: what a model is and takes, from the headers of its files.
#pragma once

#include "kvasir/engine_options.h"
#include "kvasir/model_card.h"
#include "kvasir/plan.h"
#include "kvasir/status.h"

namespace kvasir {

struct ModelDescription {
  ModelCard card;  // without what the tokenizer's files and the digest of the weights say
  MemoryPlan plan;
};

// Reads no weights. Errors as those of Engine::PlanMemory. O(tensors).
Result<ModelDescription> DescribeModel(const EngineOptions& options);

}  // namespace kvasir
