// Plan: the memory of an engine, from the exact config, before anything is allocated. The allocator
// uses the same arithmetic: planned bytes == allocated bytes.
#pragma once

#include <cstdint>
#include <string>

namespace kvasir {

// `plan --json` and `GET /v1/cache` show every figure under its name, in this order
// (plan/plan_json.h).
struct MemoryPlan {
  uint64_t weights_bytes = 0;  // packed weights, norms, biases: anonymous memory
  uint64_t mapped_bytes = 0;   // weight files used in place (embedding)
  uint64_t kv_bytes = 0;       // block pool
  uint64_t index_bytes = 0;    // prefix index and policy
  uint64_t cursor_bytes = 0;
  uint64_t scratch_bytes = 0;  // activations, logits, attention partials of one step
  uint64_t request_bytes = 0;  // of requests being read, waiting, running: a cap
  uint64_t total_bytes = 0;    // all of the above but mapped_bytes
  // The program, its libraries and stacks, beside the total: at most. And the tokenizer, five times
  // the bytes of its file (measured: 1.3 to 4.7 times, vocabularies of 65,000 to 262,000).
  uint64_t process_bytes = uint64_t{48} << 20;
  // Total, and what a start needs at once beside it: file pages while weights are packed, and the
  // tokenizer's file while it is parsed (ten times its bytes).
  uint64_t load_peak_bytes = 0;
  uint64_t kv_memory_bytes = 0;  // the cap: kv + index + cursors stay within it
  uint64_t block_bytes = 0;
  uint32_t block_tokens = 0;
  uint64_t num_blocks = 0;
  uint64_t kv_bytes_per_token = 0;
  uint64_t max_tokens = 0;  // that the pool holds
  uint32_t ctx_size = 0;
  uint32_t parallel = 0;
  std::string model;      // its name: of its folder or file
  std::string kv_format;  // "int8", "k=int8,v=f16", "int8; f16 in layers 0, 15"
  std::string eviction;   // the policy's name: "lru"
};

}  // namespace kvasir
