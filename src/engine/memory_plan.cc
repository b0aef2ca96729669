#include "engine/memory_plan.h"

#include <fmt/format.h>

#include <utility>

#include "engine/adapter_store.h"
#include "engine/draft_parts.h"
#include "engine/model_files.h"
#include "events/kv_event_publisher.h"
#include "grammar/stack_frame.h"
#include "import/importer.h"
#include "policy/retention_policy.h"
#include "schedule/block_sums.h"
#include "schedule/scheduler.h"

namespace kvasir {
namespace {

// The hypotheses of a search come at once: as its events, and as the copies that go to the caller.
// There are at most as many as beams, which are running sequences.
constexpr uint64_t kHypothesisBytesPerToken = 2 * sizeof(GeneratedToken);

// Returns the least budget of the cache that holds a sequence of the whole context. O(log bytes).
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

// What compiling a grammar takes until it is done: 25,000 words of 3 Chinese characters 16 MiB, a
// million ways that lead on 26 MiB, a text of 500,000 parts 29 MiB.
constexpr uint64_t kCompileBytes = 30 << 20;

// Returns what formats of answers take beside grammar_memory_bytes.
uint64_t FormatWorkBytes(const EngineOptions& options) {
  if (options.grammar_memory_bytes == 0) return 0;
  return options.grammar_compiles * kCompileBytes + options.parallel * kMostFrameBytes;
}

}  // namespace

std::string KvFormatText(const RunnerOptions& options) {
  std::string text = NameOf(options.kv_format);
  for (const uint32_t layer : options.kv_skip_layers) {
    text += (layer == options.kv_skip_layers.front() ? "; f16 in layers " : ", ") +
            std::to_string(layer);
  }
  return text;
}

namespace {

// Fills in what a sequence takes that drops tokens, however long it gets, and the sums of weights.
void PlanRetention(const Assembly& a, const EngineOptions& options, MemoryPlan& plan) {
  const RetentionChoice& choice = options.retention;
  plan.retention = ToString(choice.policy);
  if (WhyNoRetention(a.model.config, options.cache_mode).empty()) {
    plan.retention_bytes =
        BlockSums::BytesFor(BlockSums::ShapeFor(a.cache.layout, a.ctx_size), options.parallel);
  }
  if (choice.policy == Retention::kFull) return;
  // The most that it may be where it is -1, the prompt.
  const std::optional<uint32_t> keep =
      choice.keep ? std::optional(*choice.keep < 0 ? kMaxRetainedTokens
                                                   : static_cast<uint32_t>(*choice.keep))
                  : std::nullopt;
  const RetentionPolicy policy =
      *RetentionPolicy::Create(choice, {.ctx_size = a.ctx_size, .prompt_tokens = 0, .keep = keep});
  plan.retention += fmt::format(":budget={}", policy.budget());
  if (choice.keep) {
    plan.retention += fmt::format(",keep={}", *choice.keep);  // which sinks that is, a prompt says
  } else if (choice.policy != Retention::kWindow) {
    plan.retention += fmt::format(",sinks={}", policy.sinks());
  }
  if (policy.is_heavy()) plan.retention += fmt::format(",recent={}", policy.recent());
  const KvLayout& layout = a.cache.layout;
  const KvDemand demand{.prompt_tokens = 0,
                        .tokens = kMaxRetainedTokens,
                        .most_full_tokens = policy.MostTokens(layout.block_tokens())};
  plan.retained_sequence_bytes =
      demand.blocks(layout, a.cache.step_tokens) * a.cache_plan.block_bytes;
}

}  // namespace

MemoryPlan PlanMemory(const Assembly& a, const EngineOptions& options) {
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
  plan.head_bytes = options.head_memory_bytes;
  plan.grammar_bytes = options.grammar_memory_bytes;
  plan.adapter_bytes = AdapterBudget(options.adapters, a.adapters);
  if (a.disk) {
    plan.tier_index_bytes =
        DiskTier::IndexBytes(*a.disk) + KvCache::WriteQueueBytes(a.cache_plan.num_blocks);
    plan.tier_buffer_bytes = DiskTier::BufferBytes(*a.disk);
    plan.tier_usable_bytes = DiskTier::UsableBytes(*a.disk);
  }
  if (a.remote) {
    plan.remote_index_bytes =
        RemoteTier::IndexBytes(*a.remote) + KvCache::WriteQueueBytes(a.cache_plan.num_blocks);
    plan.remote_buffer_bytes = RemoteTier::BufferBytes(*a.remote);
  }
  if (a.events) plan.events_bytes = KvEventPublisher::BytesFor(*a.events);
  PlanDraft(a, options, plan);
  PlanRetention(a, options, plan);
  plan.total_bytes = plan.weights_bytes + plan.kv_bytes + plan.index_bytes + plan.cursor_bytes +
                     plan.scratch_bytes + plan.request_bytes + plan.session_bytes +
                     plan.head_bytes + plan.grammar_bytes + plan.adapter_bytes +
                     plan.tier_index_bytes + plan.tier_buffer_bytes + plan.remote_index_bytes +
                     plan.remote_buffer_bytes + plan.events_bytes + plan.retention_bytes +
                     plan.draft_weights_bytes + plan.draft_kv_bytes + plan.draft_scratch_bytes;
  const uint64_t tokenizer_bytes = TokenizerBytes(a.model);
  plan.process_bytes += 5 * tokenizer_bytes + FormatWorkBytes(options);
  plan.load_peak_bytes = plan.total_bytes + a.runner_plan.load_bytes + 10 * tokenizer_bytes +
                         AdapterLoadBytes(a.adapters);
  if (a.draft) {
    plan.load_peak_bytes += a.draft->runner_plan.load_bytes + 10 * TokenizerBytes(a.draft->model);
  }
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

}  // namespace kvasir
