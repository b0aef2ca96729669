// The draft model of an engine: its options, its memory, its vocabulary, and its parts.
#pragma once

#include <memory>

#include "base/secret.h"
#include "engine/assembly.h"
#include "engine/start_parts.h"
#include "kvasir/engine_options.h"
#include "kvasir/plan.h"
#include "model/runner.h"
#include "schedule/scheduler_options.h"
#include "text/tokenizer.h"

namespace kvasir {

// Returns the draft model of the options; nullptr: they name none. `model`: for which it drafts.
// kInvalidArgument where nothing can be drafted.
Result<std::unique_ptr<Assembly>> AssembleDraft(const EngineOptions& options, const Assembly& model,
                                                Need need);

// Adds what the draft model takes to the plan, before its sums are made. Without one, nothing.
void PlanDraft(const Assembly& a, const EngineOptions& options, MemoryPlan& plan);

// kInvalidArgument, naming the first id, unless the ids below the smaller vocabulary have the same
// bytes. nullptr: the model has no vocabulary.
Status CheckDraftVocabulary(const Tokenizer* model, const Tokenizer* draft);

// The draft model, ready to run.
struct DraftModelOnEngine {
  std::unique_ptr<Runner> runner;  // nullptr without a draft model
  std::unique_ptr<KvCache> cache;
  DraftModelParts parts;
};
// Loads it. `tokenizer`: of the model for which it drafts.
Result<DraftModelOnEngine> LoadDraft(Assembly draft, const Tokenizer* tokenizer,
                                     const ServerSecret& secret, const EngineOptions& options);

}  // namespace kvasir
