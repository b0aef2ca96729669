// EvictionChoice: the eviction policies by name.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "policy/eviction_policy.h"

namespace kvasir {

struct EvictionChoice {
  const char* name;                                     // for --eviction
  const char* evicts_first;                             // "used longest ago"
  uint64_t (*bytes_for)(const EvictionLimits& limits);  // the bytes that `make` allocates
  std::unique_ptr<EvictionPolicy> (*make)(const EvictionLimits& limits);
};

std::span<const EvictionChoice> EvictionChoices();
// Returns the policy with the most hits in a replay of Mooncake's conversation recording with
// 10,000 blocks of 512 tokens (docs/decisions/0010-eviction.md).
const EvictionChoice& DefaultEvictionChoice();
const EvictionChoice* FindEvictionChoice(std::string_view name);  // nullptr: unknown name
std::string EvictionNames();                                      // "lru, s3fifo"

}  // namespace kvasir
