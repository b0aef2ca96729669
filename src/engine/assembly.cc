#include "engine/assembly.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/cpu_topology.h"
#include "base/result.h"
#include "base/sizes.h"
#include "engine/model_files.h"
#include "grammar/stack_frame.h"
#include "import/architecture.h"
#include "schedule/request_check.h"
#include "schedule/scheduler.h"

namespace kvasir {
namespace {

constexpr uint32_t kMaxParallel = 4096;
constexpr uint32_t kMaxTenants = 1
                                 << 14;  // with two Identities each, less than 2^16 - 1 namespaces
constexpr double kMaxHeadroom = 0.5;
constexpr uint32_t kMaxStepTokens = 1 << 16;
constexpr uint64_t kMinRequestMemoryBytes = uint64_t{16} << 20;
// Memory of a running sequence: its ids twice (in the request and in the cache), and its block
// table.
constexpr uint64_t kSequenceBytesPerToken = 10;
// The hypotheses of a search come at once: as its events, and as the copies that go to the caller.
// There are at most as many as beams, which are running sequences.
constexpr uint64_t kHypothesisBytesPerToken = 2 * sizeof(GeneratedToken);
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

// Imports the model and checks options.weights.
Result<ImportedModel> OpenModel(const EngineOptions& options, Need need) {
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

Status CheckLimit(const char* field, uint32_t value, uint32_t low, uint32_t high) {
  if (value >= low && value <= high) return {};
  return FailField(Code::kInvalidArgument, field, "{} is not in [{}, {}]", value, low, high);
}

Status CheckOptions(const EngineOptions& options) {
  KV_TRY(CheckLimit("parallel", options.parallel, 1, kMaxParallel));
  KV_TRY(CheckLimit("max_queued", options.max_queued, 0, 1 << 20));
  KV_TRY(CheckLimit("max_queue_ms", options.max_queue_ms, 1, 86'400'000));
  KV_TRY(CheckLimit("target_itl_ms", options.target_itl_ms, 0, 3'600'000));
  KV_TRY(CheckLimit("max_tenants", options.max_tenants, 1, kMaxTenants));
  if (!(options.kv_headroom >= 0 && options.kv_headroom <= kMaxHeadroom)) {
    return FailField(Code::kInvalidArgument, "kv_headroom", "{} is not in [0, {}]",
                     options.kv_headroom, kMaxHeadroom);
  }
  if (options.step_tokens) {
    KV_TRY(CheckLimit("step_tokens", *options.step_tokens, 1, kMaxStepTokens));
  }
  if (options.threads) KV_TRY(CheckLimit("threads", *options.threads, 1, 1024));
  if (options.ctx_size == 0u) {
    return FailField(Code::kInvalidArgument, "ctx_size", "0 tokens; give at least 1");
  }
  if (options.request_memory_bytes < kMinRequestMemoryBytes) {
    return FailField(Code::kInvalidArgument, "request_memory",
                     "{} bytes are too few; give at least {} MiB", options.request_memory_bytes,
                     kMinRequestMemoryBytes >> 20);
  }
  if (options.block_tokens == 0 || options.block_tokens % kRunTokens != 0 ||
      options.block_tokens > 1024) {
    return FailField(Code::kInvalidArgument, "block_tokens",
                     "{} is not a multiple of {} up to 1024", options.block_tokens, kRunTokens);
  }
  if (FindEvictionChoice(options.eviction) == nullptr) {
    return FailField(Code::kInvalidArgument, "eviction", "unknown policy '{}' (known: {})",
                     options.eviction, EvictionNames());
  }
  return {};
}

// In a model with windows a sequence holds a window and a step, so shorter steps leave more room:
// Gemma 3 1B takes 18.0% of what its layers would take without windows, with 512 rows 18.1%.
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
      options.warn(fmt::format(
          "pin_threads: {} threads share {} processors; a step waits for the slowest of them",
          runner.threads, topology.cpus.size()));
    }
  }
  runner.max_rows = std::max(StepTokens(options, config), options.parallel);
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

// "int8", or "int8; f16 in layers 0, 15".
std::string KvFormatText(const RunnerOptions& options) {
  std::string text = NameOf(options.kv_format);
  for (const uint32_t layer : options.kv_skip_layers) {
    text += (layer == options.kv_skip_layers.front() ? "; f16 in layers " : ", ") +
            std::to_string(layer);
  }
  return text;
}

// The least budget of the cache that holds a sequence of the whole context. O(log bytes).
uint64_t LeastForContext(const Assembly& a) {
  KvCacheOptions cache = a.cache;
  const KvDemand demand{.prompt_tokens = 0,
                        .tokens = a.ctx_size,
                        .source_tokens = a.model.config.encoder ? a.ctx_size : 0};
  const uint64_t blocks = demand.blocks(cache.layout, cache.step_tokens);
  uint64_t low = a.cache_plan.total_bytes(), high = 2 * low;
  const auto holds = [&](uint64_t bytes) {
    cache.budget_bytes = bytes;
    return KvCache::Plan(cache).num_blocks >= blocks;
  };
  while (!holds(high)) high *= 2;
  while (low < high) {
    const uint64_t middle = low + (high - low) / 2;
    if (holds(middle)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

// What compiling a grammar takes until it is done: 25,000 words of 4 to 8 letters 25 MiB, of 3
// characters of other scripts 42 MiB.
constexpr uint64_t kCompileBytes = 44 << 20;

MemoryPlan Join(const Assembly& a, const EngineOptions& options) {
  MemoryPlan plan;
  plan.weights_bytes = a.runner_plan.weights_bytes;
  plan.mapped_bytes = a.runner_plan.mapped_bytes;
  plan.kv_bytes = a.cache_plan.pool_bytes;
  plan.index_bytes = a.cache_plan.index_bytes;
  plan.cursor_bytes = a.cache_plan.cursor_bytes;
  plan.scratch_bytes =
      a.runner_plan.scratch_bytes +
      Scheduler::ScratchBytes(a.model.config.vocab_size, a.model.config.hidden_size, a.logit_rows,
                              a.runner.threads, options.parallel,
                              a.cache.layout.num_cross_groups() > 0);
  const bool searches = a.cache.layout.num_cross_groups() > 0;
  plan.request_bytes = options.request_memory_bytes +
                       uint64_t{options.parallel} * a.ctx_size *
                           (kSequenceBytesPerToken + (searches ? kHypothesisBytesPerToken : 0));
  plan.session_bytes = options.session_memory_bytes;
  plan.grammar_bytes = options.grammar_memory_bytes;
  if (a.disk) {
    plan.tier_index_bytes =
        DiskTier::IndexBytes(*a.disk) + KvCache::WriteQueueBytes(a.cache_plan.num_blocks);
    plan.tier_buffer_bytes = DiskTier::BufferBytes(*a.disk);
    plan.tier_usable_bytes = DiskTier::UsableBytes(*a.disk);
  }
  plan.total_bytes = plan.weights_bytes + plan.kv_bytes + plan.index_bytes + plan.cursor_bytes +
                     plan.scratch_bytes + plan.request_bytes + plan.session_bytes +
                     plan.grammar_bytes + plan.tier_index_bytes + plan.tier_buffer_bytes;
  const uint64_t tokenizer_bytes = TokenizerBytes(a.model);
  plan.process_bytes += 5 * tokenizer_bytes;
  if (options.grammar_memory_bytes > 0) {
    plan.process_bytes += kCompileBytes + options.parallel * kMostFrameBytes;
  }
  plan.load_peak_bytes = plan.total_bytes + a.runner_plan.load_bytes + 10 * tokenizer_bytes;
  plan.kv_memory_bytes = options.kv_memory_bytes;
  plan.block_bytes = a.cache_plan.block_bytes;
  plan.block_tokens = options.block_tokens;
  plan.num_blocks = a.cache_plan.num_blocks;
  plan.kv_bytes_per_token = a.cache.layout.token_bytes();
  plan.max_tokens = a.cache.layout.num_full_groups() == 0
                        ? a.ctx_size
                        : KvDemand{.prompt_tokens = 0, .tokens = 0}.MaxTokens(
                              a.cache.layout, a.cache.step_tokens, plan.num_blocks);
  PlanSequences(a.cache, a.ctx_size, plan);
  plan.ctx_size = a.ctx_size;
  plan.parallel = options.parallel;
  plan.model = a.model.name;
  plan.kv_format = KvFormatText(a.runner);
  plan.eviction = a.cache.eviction->name;
  plan.weights =
      a.runner.weights ? std::string(a.runner.weights->name) : WeightsName(MainFormat(a.model));
  plan.weights_assumed = a.model.assumed_dtype.has_value();
  if (plan.max_tokens < plan.ctx_size) plan.context_kv_memory_bytes = LeastForContext(a);
  return plan;
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
  return disk;
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

}  // namespace

Result<Assembly> Assemble(const EngineOptions& options, Need need) {
  KV_TRY(CheckOptions(options));
  KV_ASSIGN(ImportedModel model, OpenModel(options, need));
  return Assemble(options, std::move(model));
}

Result<Assembly> Assemble(const EngineOptions& options, ImportedModel model) {
  KV_ASSIGN(RunnerOptions runner, RunnerOptionsFor(options, model.config));
  if (options.weights && !HasQuantised(model)) {
    runner.weights = FindWeightChoice(*options.weights);
  }
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
  // Every running sequence wants one row a step; a few more serve requests for all rows. With more
  // than 128 the head is read again, so that logits of many sequences take no more memory.
  const uint32_t logit_rows = std::clamp(options.parallel, 16u, 128u);
  runner.max_positions = ctx_size;
  // A source is read whole.
  if (model.config.encoder) runner.max_rows = std::max(runner.max_rows, ctx_size);
  runner.max_logit_rows = logit_rows;
  KvCacheOptions cache{.layout = Runner::LayoutFor(model.config, runner),
                       .budget_bytes = options.kv_memory_bytes,
                       .hidden_size = model.config.hidden_size,
                       .num_namespaces = options.max_tenants * (long_rope_after ? 2 : 1),
                       .secret = {},
                       // A load extends a sequence by whole blocks.
                       .step_tokens = options.disk ? std::max(runner.max_rows, options.block_tokens)
                                                   : runner.max_rows,
                       .reuse = options.cache_mode == CacheMode::kPrefix,
                       .eviction = FindEvictionChoice(options.eviction)};
  if (!cache.reuse) {
    // Blocks end with their sequence, so the pool needs at most all sequences of the largest size.
    uint64_t tokens = ctx_size;
    if (options.cache_mode == CacheMode::kNone) {
      tokens = std::min<uint64_t>(tokens, kMaxTokensWithoutCache);
    }
    const KvDemand demand{
        .prompt_tokens = 0, .tokens = static_cast<uint32_t>(tokens), .n = options.parallel};
    const uint64_t blocks = demand.blocks(cache.layout, cache.step_tokens) +
                            options.parallel * cache.layout.SourceBlocks(ctx_size);
    cache.max_blocks = static_cast<uint32_t>(std::clamp<uint64_t>(blocks, 2, cache.max_blocks));
  }
  Assembly assembly{.model = std::move(model),
                    .ctx_size = ctx_size,
                    .long_rope_after = long_rope_after,
                    .logit_rows = logit_rows,
                    .runner = runner,
                    .cache = std::move(cache)};
  assembly.runner_plan = Runner::PlanFor(assembly.model, runner);
  KV_TRY(KvCache::CheckBudget(assembly.cache));
  assembly.cache_plan = KvCache::Plan(assembly.cache);
  KV_ASSIGN(assembly.disk, DiskOptionsFor(assembly, options));
  assembly.plan = Join(assembly, options);
  return assembly;
}

void PlanSequences(const KvCacheOptions& cache, uint64_t tokens, MemoryPlan& plan) {
  uint64_t blocks = 0;
  plan.groups.clear();
  for (const KvKind& kind : cache.layout.kinds()) {
    const uint32_t window = kind.reach.window;
    const bool cross = kind.reach.kind == KvReach::Kind::kCross;
    KvGroupPlan group{
        .group = cross         ? "cross"
                 : window == 0 ? "full"
                               : "window",
        .block_bytes = cache.layout.block_bytes(),
        .sequence_blocks = cross ? cache.layout.SourceBlocks(tokens)
                                 : cache.layout.SequenceBlocks(kind, tokens, cache.step_tokens)};
    if (window > 0) group.window = window;
    for (uint32_t i = kind.first_group; i < kind.first_group + kind.num_groups; ++i) {
      group.layers += static_cast<uint32_t>(cache.layout.group(i).layers.size());
      group.kv_bytes_per_token += cache.layout.token_bytes(i);
    }
    blocks += group.sequence_blocks;
    plan.groups.push_back(std::move(group));
  }
  plan.sequence_tokens = tokens;
  plan.sequence_bytes = blocks * plan.block_bytes;
  plan.sequences = blocks == 0 ? 0 : plan.num_blocks / blocks;
}

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
          .long_rope_after = assembly.long_rope_after,
          .decoder_start = model.config.encoder ? std::optional(model.config.encoder->decoder_start)
                                                : std::nullopt,
          .source_vocab_size = model.config.encoder ? EncoderOf(model.config).vocab_size : 0,
          .language_pair = model.config.encoder ? model.config.encoder->pair : std::nullopt,
          .bos = model.config.bos,
          .eos = {},
          .fim = model.config.fim,
          .content = {}};
}

}  // namespace kvasir
