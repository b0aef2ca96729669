// PrefixReplay: what prompts of a trace would find in a KvCache, without a model.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kvasir/status.h"
#include "policy/eviction_choice.h"

namespace kvasir {

struct PrefixReplay {
  uint64_t blocks = 0;  // of all prompts
  uint64_t hits = 0;    // blocks that a prompt found, all before them included
  uint64_t evictions = 0;
};

// Sends the prompts, each of them its blocks' numbers, through a cache of `num_blocks` one after
// another: match, compute what is missing, publish it, let go. A block of any size stands for the
// cache's own of 16 tokens, and a last block that is not full for a full one.
// kInvalidArgument when num_blocks is below 2, kExhausted when a prompt has more blocks than that.
Result<PrefixReplay> ReplayPrefixes(std::span<const std::vector<uint32_t>> prompts,
                                    uint32_t num_blocks, const EvictionChoice& eviction);

}  // namespace kvasir
