#include "plan/plan_json.h"

#include <nlohmann/json.hpp>

namespace kvasir {

nlohmann::ordered_json PlanJson(const MemoryPlan& plan) {
  nlohmann::ordered_json groups = nlohmann::ordered_json::array();
  for (const KvGroupPlan& group : plan.groups) {
    groups.push_back({
        {"group", group.group},
        {"layers", group.layers},
        {"window", group.window ? nlohmann::ordered_json(*group.window) : nullptr},
        {"block_bytes", group.block_bytes},
        {"kv_bytes_per_token", group.kv_bytes_per_token},
        {"sequence_blocks", group.sequence_blocks},
    });
  }
  return {
      {"weights_bytes", plan.weights_bytes},
      {"mapped_bytes", plan.mapped_bytes},
      {"kv_bytes", plan.kv_bytes},
      {"index_bytes", plan.index_bytes},
      {"cursor_bytes", plan.cursor_bytes},
      {"scratch_bytes", plan.scratch_bytes},
      {"request_bytes", plan.request_bytes},
      {"session_bytes", plan.session_bytes},
      {"head_bytes", plan.head_bytes},
      {"grammar_bytes", plan.grammar_bytes},
      {"adapter_bytes", plan.adapter_bytes},
      {"tier_index_bytes", plan.tier_index_bytes},
      {"tier_buffer_bytes", plan.tier_buffer_bytes},
      {"remote_index_bytes", plan.remote_index_bytes},
      {"remote_buffer_bytes", plan.remote_buffer_bytes},
      {"events_bytes", plan.events_bytes},
      {"draft_weights_bytes", plan.draft_weights_bytes},
      {"draft_kv_bytes", plan.draft_kv_bytes},
      {"draft_scratch_bytes", plan.draft_scratch_bytes},
      {"total_bytes", plan.total_bytes},
      {"process_bytes", plan.process_bytes},
      {"load_peak_bytes", plan.load_peak_bytes},
      {"kv_memory_bytes", plan.kv_memory_bytes},
      {"tier_usable_bytes", plan.tier_usable_bytes},
      {"block_bytes", plan.block_bytes},
      {"block_tokens", plan.block_tokens},
      {"num_blocks", plan.num_blocks},
      {"kv_bytes_per_token", plan.kv_bytes_per_token},
      {"max_tokens", plan.max_tokens},
      {"groups", std::move(groups)},
      {"sequence_tokens", plan.sequence_tokens},
      {"sequence_bytes", plan.sequence_bytes},
      {"sequences", plan.sequences},
      {"ctx_size", plan.ctx_size},
      {"parallel", plan.parallel},
      {"kv_format", plan.kv_format},
      {"eviction", plan.eviction},
      {"retention", plan.retention},
      {"retention_bytes", plan.retention_bytes},
      {"retained_sequence_bytes", plan.retained_sequence_bytes},
      {"weights", plan.weights},
      {"weights_assumed", plan.weights_assumed},
      {"context_kv_memory_bytes", plan.context_kv_memory_bytes
                                      ? nlohmann::ordered_json(*plan.context_kv_memory_bytes)
                                      : nullptr},
  };
}

}  // namespace kvasir
