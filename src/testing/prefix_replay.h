// PrefixReplay: what prompts of a recording would find in a KvCache, without a model.
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

// Sends the prompts, each a list of block numbers, one after another through a cache of
// `num_blocks`: match, compute what is missing, publish it, release it. Each block of a prompt,
// whatever its size and whether it is full, becomes one full block of 16 tokens. kInvalidArgument
// when num_blocks is below 2, kExhausted when a prompt has more blocks than that.
Result<PrefixReplay> ReplayPrefixes(std::span<const std::vector<uint32_t>> prompts,
                                    uint32_t num_blocks, const EvictionChoice& eviction);

}  // namespace kvasir
