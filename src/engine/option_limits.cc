#include "engine/option_limits.h"

#include <vector>

#include "base/result.h"
#include "base/sizes.h"
#include "format/kv_format.h"
#include "kvasir/engine_ranges.h"
#include "policy/eviction_choice.h"

namespace kvasir {
namespace {

static_assert(kBlockTokensRange.least == kRunTokens);

Status InRange(const char* field, uint32_t value, EngineRange range) {
  if (value >= range.least && value <= range.most) return {};
  return FailField(Code::kInvalidArgument, field, "{} is not in [{}, {}]", value, range.least,
                   range.most);
}

}  // namespace

std::vector<EvictionPolicyName> EvictionPolicies() {
  std::vector<EvictionPolicyName> names;
  for (const EvictionChoice& choice : EvictionChoices()) {
    names.push_back({choice.name, choice.evicts_first});
  }
  return names;
}

Status CheckOptions(const EngineOptions& options) {
  KV_TRY(InRange("parallel", options.parallel, kParallelRange));
  KV_TRY(InRange("max_queued", options.max_queued, kMaxQueuedRange));
  KV_TRY(InRange("max_queue_ms", options.max_queue_ms, kMaxQueueMsRange));
  KV_TRY(InRange("target_itl_ms", options.target_itl_ms, kTargetItlMsRange));
  KV_TRY(InRange("draft_max", options.draft_max, kDraftMaxRange));
  KV_TRY(InRange("grammar_compiles", options.grammar_compiles, {1, 2}));
  KV_TRY(InRange("max_tenants", options.max_tenants, kMaxTenantsRange));
  if (!(options.kv_headroom >= 0 && options.kv_headroom <= kMaxKvHeadroom)) {
    return FailField(Code::kInvalidArgument, "kv_headroom", "{} is not in [0, {}]",
                     options.kv_headroom, kMaxKvHeadroom);
  }
  if (options.step_tokens) {
    KV_TRY(InRange("step_tokens", *options.step_tokens, kStepTokensRange));
  }
  if (options.threads) KV_TRY(InRange("threads", *options.threads, kThreadsRange));
  if (options.ctx_size == 0u) {
    return FailField(Code::kInvalidArgument, "ctx_size", "0 tokens; give at least 1");
  }
  if (options.request_memory_bytes < kMinRequestMemoryBytes) {
    return FailField(Code::kInvalidArgument, "request_memory",
                     "{} bytes are too few; give at least {} MiB", options.request_memory_bytes,
                     kMinRequestMemoryBytes >> 20);
  }
  if (options.block_tokens == 0 || options.block_tokens % kRunTokens != 0 ||
      options.block_tokens > kBlockTokensRange.most) {
    return FailField(Code::kInvalidArgument, "block_tokens", "{} is not a multiple of {} up to {}",
                     options.block_tokens, kRunTokens, kBlockTokensRange.most);
  }
  KV_TRY(InRange("max_lora_rank", options.adapters.max_rank, kMaxLoraRankRange));
  KV_TRY(InRange("max_loras", options.adapters.max_loaded, kMaxLorasRange));
  if (options.adapters.load.size() > options.adapters.max_loaded) {
    return FailField(Code::kInvalidArgument, "lora", "{}; --max-loras allows {}; give more",
                     CountText(options.adapters.load.size(), "adapter"),
                     options.adapters.max_loaded);
  }
  if (!(options.keep_share >= 0 && options.keep_share <= 1)) {
    return FailField(Code::kInvalidArgument, "keep_share", "{} is not in [0, 1]",
                     options.keep_share);
  }
  if (FindEvictionChoice(options.eviction) == nullptr) {
    return FailField(Code::kInvalidArgument, "eviction", "unknown policy '{}' (known: {})",
                     options.eviction, EvictionNames());
  }
  return {};
}

}  // namespace kvasir
