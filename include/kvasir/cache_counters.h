// CacheCounters: what a KV cache has done since it was made.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kvasir/receipt.h"

namespace kvasir {

// Monotonic counters, in tokens unless named otherwise. A prompt counts when its match is fetched:
// one that waits for admission and is matched again counts once.
struct CacheCounters {
  uint64_t prompt_tokens = 0;
  uint64_t reused_pool = 0, reused_partial = 0, reused_disk = 0,
           reused_remote = 0;  // as in Receipt
  uint64_t cursor_hits = 0;    // prompts
  uint64_t committed_blocks = 0, evicted_blocks = 0, copied_blocks = 0 /* copy on write */,
           deduplicated_blocks = 0;
  uint64_t misses[kNumMissReasons] = {};         // prompts, by MissReason
  uint64_t missed_tokens[kNumMissReasons] = {};  // of those prompts: not reused
  uint64_t evicted_tokens = 0;                   // of evicted_blocks
  // Part of evicted_blocks: evicted to make room for a sequence of the same namespace.
  uint64_t evicted_own_blocks = 0;
  // Parts of evicted_blocks and evicted_tokens: an account took its own, because of a quota.
  uint64_t quota_evicted_blocks = 0, quota_evicted_tokens = 0;

  uint64_t reused_tokens() const {
    return reused_pool + reused_partial + reused_disk + reused_remote;
  }

  // Counts a prompt of which `num_tokens` tokens were not reused.
  void CountMiss(MissReason reason, uint32_t num_tokens) {
    ++misses[static_cast<size_t>(reason)];
    missed_tokens[static_cast<size_t>(reason)] += num_tokens;
  }
  // Counts a block with so many tokens that left the pool.
  void CountEvicted(uint32_t num_tokens, bool is_own, bool is_for_quota) {
    ++evicted_blocks;
    evicted_tokens += num_tokens;
    evicted_own_blocks += is_own;
    if (!is_for_quota) return;
    ++quota_evicted_blocks;
    quota_evicted_tokens += num_tokens;
  }
};

}  // namespace kvasir
