// Assembly: turns EngineOptions into the exact options of every part, and the plan of their memory.
#pragma once

#include <memory>
#include <string_view>

#include "cache/kv_cache.h"
#include "import/importer.h"
#include "import/lora.h"
#include "kvasir/engine_options.h"
#include "kvasir/model_card.h"
#include "kvasir/plan.h"
#include "model/runner.h"
#include "remote/remote_tier.h"
#include "tier/disk_tier.h"

namespace kvasir {

// PlanMemory ends here and Load continues from here, so their figures agree.
struct Assembly {
  ImportedModel model;
  uint32_t ctx_size = 0;
  std::optional<uint32_t> long_rope_after = {};  // ModelCard's
  Speculate speculate = Speculate::kOff;         // off too where nothing can be drafted
  uint32_t logit_rows = 0;                       // rows of one call to Runner::Logits
  RunnerOptions runner;
  KvCacheOptions cache;  // the secret is still zero, and the tier not there
  Runner::Plan runner_plan{};
  CachePlan cache_plan{};
  std::optional<RemoteTierOptions> remote = {};    // without Identity; absent: none is wanted
  std::optional<KvEventLog::Options> events = {};  // absent: none are published
  std::optional<DiskTierOptions> disk = {};   // without secret and Identity; absent: none is wanted
  std::unique_ptr<Assembly> draft = nullptr;  // nullptr: no draft model is wanted
  std::vector<LoraAdapter> adapters = {};     // of EngineOptions::adapters::load
  MemoryPlan plan;
};

// What the sequences of an Assembly are: requests, or drafts of those. Drafts have no cursors, and
// one row of logits each.
enum class SequencesAre { kRequests, kDrafts };

// Reads the model's headers and checks every option. kInvalidArgument and kUnsupported name the
// option and the values that are allowed.
Result<Assembly> Assemble(const EngineOptions& options, Need need = Need::kWeights);
// Does the first part of that: checks options that need no model, and imports it.
Result<ImportedModel> OpenModel(const EngineOptions& options, Need need);
// Assembles a model that was imported for `options` or for others of the same model and weights.
Result<Assembly> Assemble(const EngineOptions& options, ImportedModel model,
                          Need need = Need::kWeights,
                          SequencesAre sequences = SequencesAre::kRequests);

// Returns why no sequence of the model may drop tokens (RetentionPolicy); empty: they may.
std::string_view WhyNoRetention(const ModelConfig& config, CacheMode cache_mode);
// Says why a model's prompts have no spans (PromptSpans); empty: they may.
std::string_view WhyNoSpans(const ImportedModel& model, CacheMode cache_mode);

// Returns the card without end tokens, which also depend on the tokenizer.
ModelCard CardOf(const Assembly& assembly);

}  // namespace kvasir
