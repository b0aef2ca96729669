#include "engine/assembly.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/cpu_topology.h"
#include "base/result.h"
#include "base/sizes.h"
#include "engine/adapter_store.h"
#include "engine/draft_parts.h"
#include "engine/memory_plan.h"
#include "engine/model_files.h"
#include "engine/option_limits.h"
#include "engine/remote_assembly.h"
#include "events/event_sockets.h"
#include "import/architecture.h"
#include "policy/retention_policy.h"
#include "schedule/request_check.h"

namespace kvasir {
namespace {

constexpr uint64_t kShapeSeed = 1;

constexpr const char* kWeightsHelp =
    "i8, i4, q8_0 and q4_0 quantise at load; or leave the flag out";

Result<ImportedModel> OpenShape(const EngineOptions& options) {
  DType dtype = DType::kBf16;
  if (options.weights && !FindWeightChoice(*options.weights)) {
    constexpr DType kStored[] = {DType::kF32, DType::kF16, DType::kBf16};
    const auto* found = std::ranges::find(kStored, *options.weights, &WeightsName);
    if (found == std::end(kStored)) {
      return FailField(Code::kInvalidArgument, "weights",
                       "unknown format '{}' for a shape (known: f32, f16, bf16); {}",
                       *options.weights, kWeightsHelp);
    }
    dtype = *found;
  }
  return SyntheticModel(*options.shape, dtype, kShapeSeed);
}

// Returns the tokens of a step. In a model with windows a sequence holds a window and a step, so
// shorter steps leave more room: Gemma 3 1B takes 18.0% of what its layers would take without
// windows, with 512 rows 18.1%.
uint32_t StepTokens(const EngineOptions& options, const ModelConfig& config) {
  const bool has_windows = std::ranges::any_of(
      config.windows, [&](uint32_t window) { return window > 0 && window < config.max_positions; });
  return options.step_tokens.value_or(has_windows ? 448 : 512);
}

Result<RunnerOptions> RunnerOptionsFor(const EngineOptions& options, const ModelConfig& config) {
  RunnerOptions runner;
  const CpuTopology topology = ReadCpuTopology();
  runner.threads = options.threads.value_or(topology.default_threads());
  if (options.pin_threads) {
    runner.cpus = topology.PinOrder(runner.threads);
    if (runner.threads > topology.cpus.size() && options.warn) {
      options.warn(fmt::format("pin_threads: {} share {}; a step waits for the slowest of them",
                               CountText(runner.threads, "thread"),
                               CountText(topology.cpus.size(), "processor")));
    }
  }
  runner.max_rows = std::max(StepTokens(options, config), options.parallel);
  if (options.adapters.any()) {
    runner.adapters = {options.adapters.max_rank, options.adapters.max_loaded};
  }
  runner.block_tokens = options.block_tokens;
  const std::optional<KvFormats> formats = ParseKvFormats(options.kv_format);
  if (!formats) {
    const std::optional<KvFormats> similar = SimilarKvFormats(options.kv_format);
    return FailField(Code::kInvalidArgument, "kv_format",
                     "unknown KV format '{}'{} (known: {}); K and V separately: "
                     "k=int8,v=f16",
                     options.kv_format,
                     similar ? fmt::format(" (did you mean {}?)", NameOf(*similar)) : "",
                     KvFormatNames());
  }
  runner.kv_format = *formats;
  runner.kv_skip_layers = options.kv_skip_layers;
  const char* env = std::getenv("KVASIR_TARGET");
  const std::string name = options.target ? *options.target : env != nullptr ? env : "";
  if (name.empty()) return runner;
  const std::optional<Target> target = ParseTarget(name);
  if (!target) {
    std::string known;
    for (const Target t : SupportedTargets()) {
      known += (known.empty() ? "" : ", ") + std::string(NameOf(t));
    }
    return FailField(Code::kInvalidArgument, "target",
                     "this CPU or this build has no target {}; here are {}", name, known);
  }
  runner.target = *target;
  return runner;
}

// Absent where no disk is wanted: not asked for, a cap of 0, or a cache that keeps nothing.
Result<std::optional<DiskTierOptions>> DiskOptionsFor(const Assembly& a,
                                                      const EngineOptions& options) {
  if (!options.disk || options.disk->cap_bytes == 0u) return std::nullopt;
  if (a.model.config.encoder) {
    if (!options.disk->folder) return std::nullopt;
    return FailField(Code::kInvalidArgument, "disk",
                     "the KV of {} depends on its source and is not kept on a disk; leave --disk "
                     "out",
                     a.model.name);
  }
  if (options.cache_mode != CacheMode::kPrefix) {
    if (!options.disk->folder) return std::nullopt;
    return FailField(Code::kInvalidArgument, "disk",
                     "only a cache that requests share is kept on a disk; leave --cache out, or "
                     "give --cache prefix");
  }
  const std::string otherwise = DefaultDiskFolder(options.cache_dir).value_or("");
  DiskTierOptions disk{.folder = options.disk->folder.value_or(otherwise),
                       .cap_bytes = options.disk->cap_bytes,
                       .ttl_hours = options.disk->ttl_hours,
                       .reserve_bytes = options.disk->reserve_bytes,
                       .shape = {.block_tokens = a.cache.layout.block_tokens(),
                                 .payload_bytes = a.cache.layout.block_bytes()},
                       .model = a.model.name,
                       .kv_format = KvFormatText(a.runner)};
  const uint64_t least = DiskTier::MinCapBytes(disk.shape);
  if (disk.cap_bytes && *disk.cap_bytes < least) {
    return FailField(Code::kInvalidArgument, "disk_cap",
                     "{} bytes do not hold two segments of this model's blocks; give at least {}",
                     *disk.cap_bytes, RoundedUpMib(least));
  }
  if (disk.ttl_hours == 0) {
    return FailField(Code::kInvalidArgument, "disk_ttl", "0 hours; give at least 1");
  }
  if (options.disk->memory_bytes) DiskTier::FitMemory(*options.disk->memory_bytes, &disk);
  return disk;
}

// Absent where no events are published.
Result<std::optional<KvEventLog::Options>> EventOptionsFor(const Assembly& a,
                                                           const EngineOptions& options) {
  if (!options.events) return std::nullopt;
  const auto refuse = [](const std::string& why) {
    return FailField(Code::kInvalidArgument, "kv_events", "{}", why);
  };
  if (options.cache_mode != CacheMode::kPrefix) {
    return refuse(
        "only a cache that requests share has blocks to tell of; leave --cache out, or give "
        "--cache prefix");
  }
  if (a.model.config.encoder) {
    return refuse(fmt::format(
        "the KV of {} depends on its source, which no router knows; leave --kv-events out",
        a.model.name));
  }
  if (a.cache.layout.num_full_groups() == 0) {
    return refuse(fmt::format(
        "all layers of {} have sliding windows: no block of it stands for all tokens before it; "
        "leave --kv-events out",
        a.model.name));
  }
  KV_TRY(CheckEventAddress("kv_events", options.events->address));
  if (const auto& replay = options.events->replay_address) {
    KV_TRY(CheckEventAddress("kv_events_replay", *replay));
  }
  return KvCache::EventOptions(a.cache, a.cache_plan, options.events->owner);
}

uint64_t ParametersOf(const ImportedModel& model) {
  uint64_t sum = model.embedding.num_elements() + model.final_norm.num_elements();
  if (model.lm_head) sum += model.lm_head->view.num_elements();
  if (model.head_bias) sum += model.head_bias->num_elements();
  if (model.final_norm_bias) sum += model.final_norm_bias->num_elements();
  if (model.positions) sum += model.positions->num_elements();
  ForEachLayerTensor(model,
                     [&](Slot, const MatrixSource& tensor) { sum += tensor.view.num_elements(); });
  if (model.encoder) {
    sum += model.encoder->final_norm.num_elements();
    if (model.encoder->final_norm_bias) sum += model.encoder->final_norm_bias->num_elements();
    if (model.encoder->embedding) sum += model.encoder->embedding->num_elements();
    if (model.encoder->positions) sum += model.encoder->positions->num_elements();
  }
  return sum;
}

// Returns the most blocks of the pool: all sequences of the largest size, since blocks end with
// their sequence.
uint32_t MostBlocksWithoutReuse(const EngineOptions& options, const KvCacheOptions& cache,
                                uint32_t ctx_size) {
  uint64_t tokens = ctx_size;
  if (options.cache_mode == CacheMode::kNone) {
    tokens = std::min<uint64_t>(tokens, kMaxTokensWithoutCache);
  }
  const KvDemand demand{
      .prompt_tokens = 0, .tokens = static_cast<uint32_t>(tokens), .n = options.parallel};
  const uint64_t blocks = demand.blocks(cache.layout, cache.step_tokens) +
                          options.parallel * cache.layout.SourceBlocks(ctx_size);
  return static_cast<uint32_t>(std::clamp<uint64_t>(blocks, 2, cache.max_blocks));
}

Status CheckRetention(const EngineOptions& options, const ModelConfig& config, uint32_t ctx_size) {
  if (options.retention.policy == Retention::kFull) return {};
  const std::string_view why = WhyNoRetention(config, options.cache_mode);
  if (!why.empty()) return FailField(Code::kInvalidArgument, "retention", "{}", why);
  if (options.retention.policy == Retention::kHeavy && options.block_tokens != kHeavyBlock) {
    return FailField(Code::kInvalidArgument, "retention",
                     "heavy keeps blocks of {} tokens; leave --block-tokens at that", kHeavyBlock);
  }
  KV_TRY(RetentionPolicy::Create(options.retention, {.ctx_size = ctx_size, .prompt_tokens = 0}));
  return {};
}

}  // namespace

Result<ImportedModel> OpenModel(const EngineOptions& options, Need need) {
  KV_TRY(CheckOptions(options));
  if (options.shape) return OpenShape(options);
  KV_ASSIGN(const std::filesystem::path path, FindModel(options.model));
  KV_ASSIGN(ImportedModel model, ImportModel(path, need));
  if (options.model_name) model.name = *options.model_name;
  const std::string stored = WeightsName(MainFormat(model));
  if (!options.weights || options.weights == stored) return model;
  if (HasQuantised(model)) {
    return FailField(Code::kInvalidArgument, "weights",
                     "{} is quantised already ({}) and is used as it is; leave --weights out",
                     path.string(), stored);
  }
  if (!FindWeightChoice(*options.weights)) {
    return FailField(Code::kInvalidArgument, "weights",
                     "{} is not the format of this model's files ({}); {}", *options.weights,
                     stored, kWeightsHelp);
  }
  return model;
}

Result<Assembly> Assemble(const EngineOptions& options, Need need) {
  KV_ASSIGN(ImportedModel model, OpenModel(options, need));
  return Assemble(options, std::move(model), need);
}

namespace {

Speculate SpeculationFor(const EngineOptions& options, const ModelConfig& config) {
  const bool can_draft =
      options.draft_max > 0 && options.cache_mode != CacheMode::kNone && !config.encoder;
  return can_draft ? options.speculate : Speculate::kOff;
}

// Returns the rows of logits. Every running sequence wants one row a step, and a draft some more; a
// few serve requests for all rows. With more than 128 the head is read again, so that logits of
// many sequences take no more memory.
uint32_t LogitRowsFor(const EngineOptions& options, Speculate speculate, SequencesAre sequences) {
  if (sequences == SequencesAre::kDrafts) return options.parallel;
  const uint32_t draft_max = speculate == Speculate::kOff ? 0 : options.draft_max;
  return std::clamp(options.parallel + draft_max, 16u, 128u);
}

}  // namespace

Result<Assembly> Assemble(const EngineOptions& options, ImportedModel model, Need need,
                          SequencesAre sequences) {
  KV_ASSIGN(RunnerOptions runner, RunnerOptionsFor(options, model.config));
  if (options.weights && !HasQuantised(model)) runner.weights = FindWeightChoice(*options.weights);
  const uint32_t trained = model.config.max_positions;
  if (model.config.encoder && options.cache_mode == CacheMode::kNone) {
    return FailField(Code::kInvalidArgument, "cache",
                     "none computes the source again for every token; use sequence for {}",
                     model.name);
  }
  for (const uint32_t layer : runner.kv_skip_layers) {
    if (layer < model.config.num_layers) continue;
    return FailField(Code::kInvalidArgument, "kv_skip_layers",
                     "the model has no layer {}; its layers are 0 to {}", layer,
                     model.config.num_layers - 1);
  }
  std::sort(runner.kv_skip_layers.begin(), runner.kv_skip_layers.end());
  const uint32_t ctx_size = options.ctx_size.value_or(trained);
  if (ctx_size > trained) {
    return FailField(Code::kInvalidArgument, "ctx_size",
                     "{} is more than the {} positions that the model was trained for; give at "
                     "most that, or leave it out",
                     ctx_size, trained);
  }
  const RopeConfig& rope = model.config.rope;
  std::optional<uint32_t> long_rope_after;
  if (UsesLongFactors(rope, ctx_size)) {
    long_rope_after = static_cast<uint32_t>(rope.original_max_positions);
  }
  KV_TRY(CheckRetention(options, model.config, ctx_size));
  const Speculate speculate = SpeculationFor(options, model.config);
  const uint32_t logit_rows = runner.max_logit_rows = LogitRowsFor(options, speculate, sequences);
  runner.max_positions = ctx_size;
  // A source is read whole.
  if (model.config.encoder) runner.max_rows = std::max(runner.max_rows, ctx_size);
  KvCacheOptions cache{.layout = Runner::LayoutFor(model.config, runner),
                       .budget_bytes = options.kv_memory_bytes,
                       .hidden_size = model.config.hidden_size,
                       .num_namespaces = NamespacesFor(options, long_rope_after.has_value()),
                       .max_identities = IdentitiesFor(options, long_rope_after.has_value()),
                       .secret = {},
                       // A load extends a sequence by whole blocks.
                       .step_tokens = options.disk || options.remote
                                          ? std::max(runner.max_rows, options.block_tokens)
                                          : runner.max_rows,
                       .reuse = options.cache_mode == CacheMode::kPrefix,
                       .eviction = FindEvictionChoice(options.eviction),
                       .keep_share = options.keep_share,
                       .continues = speculate != Speculate::kOff};
  if (sequences == SequencesAre::kDrafts) cache.num_cursors = 0;
  if (!cache.reuse) cache.max_blocks = MostBlocksWithoutReuse(options, cache, ctx_size);
  Assembly assembly{.model = std::move(model),
                    .ctx_size = ctx_size,
                    .long_rope_after = long_rope_after,
                    .speculate = speculate,
                    .logit_rows = logit_rows,
                    .runner = runner,
                    .cache = std::move(cache)};
  KV_ASSIGN(assembly.adapters, OpenAdapters(options.adapters, assembly.model));
  assembly.runner_plan = Runner::PlanFor(assembly.model, runner);
  KV_TRY(KvCache::CheckBudget(assembly.cache));
  assembly.cache_plan = KvCache::Plan(assembly.cache);
  KV_ASSIGN(assembly.disk, DiskOptionsFor(assembly, options));
  KV_ASSIGN(assembly.remote, RemoteOptionsFor(assembly, options));
  KV_ASSIGN(assembly.events, EventOptionsFor(assembly, options));
  KV_ASSIGN(assembly.draft, AssembleDraft(options, assembly, need));
  assembly.plan = PlanMemory(assembly, options);
  return assembly;
}

std::string_view WhyNoRetention(const ModelConfig& config, CacheMode cache_mode) {
  if (config.encoder) return "models with an encoder keep all of what they generate";
  const auto is_long = [](const RopeConfig& rope) { return rope.type == RopeType::kLongRope; };
  if (is_long(config.rope) || (config.local_rope && is_long(*config.local_rope))) {
    return "models with RoPE longrope keep all: they compute a sequence again when it grows long";
  }
  if (cache_mode == CacheMode::kNone) {
    return "--cache none keeps no KV of which some could be dropped; use prefix or sequence";
  }
  return "";
}

std::string_view WhyNoSpans(const ImportedModel& model, CacheMode cache_mode) {
  const ModelConfig& config = model.config;
  if (config.encoder) return "models with an encoder read a source, which has no spans";
  if (model.positions) return "models with learned positions cannot read text in another place";
  const auto is_long = [](const RopeConfig& rope) { return rope.type == RopeType::kLongRope; };
  if (is_long(config.rope) || (config.local_rope && is_long(*config.local_rope))) {
    return "models with RoPE longrope rotate text by the length of its prompt";
  }
  for (uint32_t layer = 0; layer < config.num_layers; ++layer) {
    if (LayerOf(config, layer).window == 0) continue;
    return "models with sliding windows keep only the end of a text";
  }
  if (cache_mode == CacheMode::kNone) return "--cache none keeps no KV; use prefix or sequence";
  return "";
}

namespace {

std::string WhyNoEmbeddings(const ImportedModel& model) {
  if (model.config.encoder) return "an encoder-decoder model embeds no texts";
  return model.pooling ? "" : model.pooling.error().message;
}

}  // namespace

ModelCard CardOf(const Assembly& assembly) {
  const ImportedModel& model = assembly.model;
  return {.id = model.name,
          .architecture = model.config.architecture,
          .path = model.path.string(),
          .dtype = assembly.runner.weights ? std::string(assembly.runner.weights->name)
                                           : WeightsName(MainFormat(model)),
          .parameters = ParametersOf(model),
          .vocab_size = model.config.vocab_size,
          .max_positions = model.config.max_positions,
          .ctx_size = assembly.ctx_size,
          .num_layers = model.config.num_layers,
          .hidden_size = model.config.hidden_size,
          .long_rope_after = assembly.long_rope_after,
          .decoder_start = model.config.encoder ? std::optional(model.config.encoder->decoder_start)
                                                : std::nullopt,
          .source_vocab_size = model.config.encoder ? EncoderOf(model.config).vocab_size : 0,
          .language_pair = model.config.encoder ? model.config.encoder->pair : std::nullopt,
          .draft_vocab_size = assembly.draft ? assembly.draft->model.config.vocab_size : 0,
          .bos = model.config.bos,
          .eos = {},
          .fim = model.config.fim,
          .content = {},
          .pooling = model.pooling ? *model.pooling : std::nullopt,
          .no_embeddings = WhyNoEmbeddings(model)};
}

}  // namespace kvasir
