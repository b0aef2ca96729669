// What a tenant may take of an Engine.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>

namespace kvasir {

struct TenantRules {
  static constexpr uint32_t kNoLimit = std::numeric_limits<uint32_t>::max();

  double weight = 1;                // of its share of the machine's time, against other tenants
  uint32_t max_running = kNoLimit;  // answers (choices) that run at once
  uint32_t max_queued = kNoLimit;   // requests beside those; one more gets kExhausted
  // Bytes of KV. While its cache has no more than kv_guaranteed, no other tenant takes its idle
  // blocks; and running requests of others give way where it needs room up to there. It never has
  // more than kv_max: then its own idle blocks go, and its own requests wait. Tenants with one
  // cache have the sums together.
  uint64_t kv_guaranteed = 0;
  std::optional<uint64_t> kv_max;
  std::optional<std::string> cache_owner;  // as in GenerateRequest; absent: the tenant
};

// By name. Tenants without a row have the default rules.
using TenantTable = std::map<std::string, TenantRules>;

}  // namespace kvasir
