// Plan: the memory that an engine with these options will take, known before anything is allocated.
// The allocators use the same arithmetic: planned bytes == allocated bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kvasir {

// Layers whose KV has the same reach: all tokens (`full`), the last `window` ones, or the source of
// an encoder-decoder model (`cross`).
struct KvGroupPlan {
  std::string group;  // "full", "window", "cross"
  uint32_t layers = 0;
  std::optional<uint32_t> window;
  uint64_t block_bytes = 0;         // of each of its blocks
  uint64_t kv_bytes_per_token = 0;  // of a token in these layers
  uint64_t sequence_blocks = 0;     // of a sequence (a source) of sequence_tokens, at most
};

// `plan --json` and `GET /v1/cache` show every figure under its name, in this order
// (plan/plan_json.h).
struct MemoryPlan {
  uint64_t weights_bytes = 0;  // packed weights, norms, biases: anonymous memory
  uint64_t mapped_bytes = 0;   // weight files used in place (embedding)
  uint64_t kv_bytes = 0;       // block pool
  uint64_t index_bytes = 0;    // prefix index and policy
  uint64_t cursor_bytes = 0;
  uint64_t scratch_bytes = 0;  // activations, logits, attention partials of one step
  uint64_t request_bytes = 0;  // limit of requests that are read, wait or run
  uint64_t session_bytes = 0;  // limit of what sessions say
  uint64_t head_bytes = 0;     // limit of what names lines of chats that change
  uint64_t grammar_bytes = 0;  // limit of what formats of answers take
  uint64_t adapter_bytes = 0;  // limit of adapters that are loaded
  // The disk tier: what it knows of its records, and buffers of sealed ones. 0: there is none.
  uint64_t tier_index_bytes = 0, tier_buffer_bytes = 0;
  // The remote tier: what it knows of the store, and buffers of values. 0: no remote tier.
  uint64_t remote_index_bytes = 0, remote_buffer_bytes = 0;
  // KV events: their ring, what the publisher knows of the index, and messages that are kept or on
  // their way, at most. 0: none are published.
  uint64_t events_bytes = 0;
  // The draft model's: as weights_bytes; as kv, index and cursors together; as scratch_bytes. 0
  // without a draft model.
  uint64_t draft_weights_bytes = 0, draft_kv_bytes = 0, draft_scratch_bytes = 0;
  uint64_t total_bytes = 0;  // all of the above except mapped_bytes
  // Not in the total, and an upper bound: the program, its libraries and stacks, and the tokenizer,
  // counted as five times its file (measured: 1.3 to 4.7 times, vocabularies of 65,000 to 262,000).
  uint64_t process_bytes = uint64_t{48} << 20;
  // The total and what only a start needs: file pages while weights are packed, rows of an adapter
  // while it is packed, and the parsed tokenizer file (ten times its bytes).
  uint64_t load_peak_bytes = 0;
  uint64_t kv_memory_bytes = 0;  // limit of kv + index + cursors
  // What of the disk's cap (20 GiB where none is given) can be used: blocks on it are at most 2^18.
  uint64_t tier_usable_bytes = 0;
  uint64_t block_bytes = 0;
  uint32_t block_tokens = 0;
  uint64_t num_blocks = 0;
  uint64_t kv_bytes_per_token = 0;
  uint64_t max_tokens = 0;  // the longest sequence that the pool could hold
  std::vector<KvGroupPlan> groups;
  // A sequence of sequence_tokens (ctx_size, or as asked), with a source of as many tokens where
  // the model has an encoder: the bytes of its blocks, and how many such sequences the pool holds
  // if they share nothing.
  uint64_t sequence_tokens = 0, sequence_bytes = 0, sequences = 0;
  uint32_t ctx_size = 0;
  uint32_t parallel = 0;
  std::string model;      // the name of its folder or file
  std::string kv_format;  // "int8", "k=int8,v=f16", "int8; f16 in layers 0, 15"
  std::string eviction;   // the policy's name: "lru"
  // What sequences keep where a request does not say: "full", "sinks+window:budget=2048,sinks=4";
  // memory for that beside the pool; the bytes of the blocks of a sequence that keeps no more than
  // that from its first token on, however long it gets (0: it keeps all).
  std::string retention = "full";
  uint64_t retention_bytes = 0, retained_sequence_bytes = 0;
  std::string weights;           // the format that computes: "bf16", "q8_0"
  bool weights_assumed = false;  // only a config.json is there, and it says the stored type
  // Where max_tokens is less than ctx_size: the least kv_memory_bytes whose pool holds a context.
  std::optional<uint64_t> context_kv_memory_bytes;
};

// Returns what EngineOptions::kv_format may name, in the order of tables: "f32", "f16", ...
std::vector<std::string> KvFormatList();

}  // namespace kvasir
