// What a tenant may take of an Engine, and what it has taken.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>

namespace kvasir {

struct TenantRules {
  static constexpr uint32_t kNoLimit = std::numeric_limits<uint32_t>::max();
  static constexpr uint64_t kAllBytes = std::numeric_limits<uint64_t>::max();

  double weight = 1;                // of its share of the machine's time, against other tenants
  uint32_t max_running = kNoLimit;  // answers (choices) that run at once
  uint32_t max_queued = kNoLimit;   // requests beside those; one more gets kExhausted
  // Of the KV cache, in whole blocks: others do not evict this much of it, and it gets this much
  // although others run; more than the maximum it never has.
  uint64_t kv_guaranteed_bytes = 0;
  uint64_t kv_max_bytes = kAllBytes;
};

// What a tenant has now.
struct TenantUse {
  std::string name;
  uint32_t running = 0, waiting = 0;  // choices; requests
  // Blocks of the KV cache that it took: those that sequences use, those promised to its requests
  // and not taken yet, and those that are kept for later prompts.
  uint64_t pinned_blocks = 0, reserved_blocks = 0, idle_blocks = 0;
};

// By name. Tenants without a row have the default rules.
using TenantTable = std::map<std::string, TenantRules>;

}  // namespace kvasir
