// What a tenant may take of an Engine, and what it has taken.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>

namespace kvasir {

struct TenantRules {
  static constexpr uint32_t kNoLimit = std::numeric_limits<uint32_t>::max();

  double weight = 1;                // of its share of the machine's time, against other tenants
  uint32_t max_running = kNoLimit;  // answers (choices) that run at once
  uint32_t max_queued = kNoLimit;   // requests beside those; one more gets kExhausted
};

// What a tenant has now.
struct TenantUse {
  std::string name;
  uint32_t running = 0, waiting = 0;  // choices; requests
};

// By name. Tenants without a row have the default rules.
using TenantTable = std::map<std::string, TenantRules>;

}  // namespace kvasir
