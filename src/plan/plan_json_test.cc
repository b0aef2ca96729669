#include "plan/plan_json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace kvasir {
namespace {

TEST(PlanJson, HoldsEveryFigureInOrder) {
  MemoryPlan plan;
  plan.weights_bytes = 1;
  plan.mapped_bytes = 2;
  plan.kv_bytes = 3;
  plan.index_bytes = 4;
  plan.cursor_bytes = 5;
  plan.scratch_bytes = 6;
  plan.request_bytes = 16;
  plan.session_bytes = 25;
  plan.head_bytes = 31;
  plan.grammar_bytes = 26;
  plan.adapter_bytes = 30;
  plan.tier_index_bytes = 22;
  plan.tier_buffer_bytes = 23;
  plan.remote_index_bytes = 31;
  plan.remote_buffer_bytes = 32;
  plan.events_bytes = 35;
  plan.draft_weights_bytes = 27;
  plan.draft_kv_bytes = 28;
  plan.draft_scratch_bytes = 29;
  plan.total_bytes = 7;
  plan.load_peak_bytes = 17;
  plan.kv_memory_bytes = 8;
  plan.tier_usable_bytes = 24;
  plan.block_bytes = 9;
  plan.block_tokens = 10;
  plan.num_blocks = 11;
  plan.kv_bytes_per_token = 12;
  plan.max_tokens = 13;
  plan.groups = {{"full", 4, std::nullopt, 100, 101, 102}, {"window", 22, 512, 100, 103, 104}};
  plan.sequence_tokens = 18;
  plan.sequence_bytes = 19;
  plan.sequences = 20;
  plan.ctx_size = 14;
  plan.parallel = 15;
  plan.kv_format = "bf16";
  plan.eviction = "s3fifo";
  plan.retention = "sinks+window";
  plan.retention_bytes = 33;
  plan.retained_sequence_bytes = 34;
  plan.weights = "q8_0";
  plan.context_kv_memory_bytes = 21;
  EXPECT_EQ(
      PlanJson(plan).dump(),
      R"({"weights_bytes":1,"mapped_bytes":2,"kv_bytes":3,"index_bytes":4,"cursor_bytes":5,)"
      R"("scratch_bytes":6,"request_bytes":16,"session_bytes":25,"head_bytes":31,"grammar_bytes":26,"adapter_bytes":30,"tier_index_bytes":22,"tier_buffer_bytes":23,)"
      R"("remote_index_bytes":31,"remote_buffer_bytes":32,"events_bytes":35,)"
      R"("draft_weights_bytes":27,"draft_kv_bytes":28,"draft_scratch_bytes":29,)"
      R"("total_bytes":7,"process_bytes":50331648,"load_peak_bytes":17,"kv_memory_bytes":8,)"
      R"("tier_usable_bytes":24,"block_bytes":9,"block_tokens":10,"num_blocks":11,"kv_bytes_per_token":12,)"
      R"("max_tokens":13,"groups":[{"group":"full","layers":4,"window":null,"block_bytes":100,)"
      R"("kv_bytes_per_token":101,"sequence_blocks":102},{"group":"window","layers":22,)"
      R"("window":512,"block_bytes":100,"kv_bytes_per_token":103,"sequence_blocks":104}],)"
      R"("sequence_tokens":18,"sequence_bytes":19,"sequences":20,"ctx_size":14,"parallel":15,"kv_format":"bf16","eviction":"s3fifo",)"
      R"("retention":"sinks+window","retention_bytes":33,"retained_sequence_bytes":34,)"
      R"("weights":"q8_0","weights_assumed":false,"context_kv_memory_bytes":21})");
}

}  // namespace
}  // namespace kvasir
