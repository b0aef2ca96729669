// Activity: sums over each tenant's answers, which only that tenant may read.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "kvasir/receipt.h"

namespace kvasir {

// Sums over a tenant's answers, in tokens unless named otherwise.
struct TenantActivity {
  uint64_t answers = 0;  // answers
  uint64_t prompt = 0, computed = 0, reused_pool = 0, reused_partial = 0, reused_disk = 0,
           reused_remote = 0, generated = 0;

  TenantActivity& operator+=(const TenantActivity& other);
};

inline constexpr size_t kHourMinutes = 60;

// What ended within the last 60 minutes, the current one among them.
struct LastHour {
  struct Minute {
    uint64_t prompt = 0, reused = 0;  // tokens
  };
  TenantActivity sums;
  std::array<Minute, kHourMinutes> minutes{};  // the current one is the last
};

// Thread-safe. Has at most as many entries as there are API keys.
class Activity {
 public:
  void Add(const std::string& tenant, const Receipt& receipt, uint64_t generated_tokens);
  TenantActivity Of(const std::string& tenant) const;
  // Returns the last hour of a tenant, or of all.
  LastHour HourOf(const std::optional<std::string_view>& tenant) const;

 private:
  struct Minute {
    uint64_t number = 0;  // of MonotonicNs
    TenantActivity sums;
  };
  struct Entry {
    TenantActivity sums;
    std::vector<Minute> minutes;  // those with answers, ascending; at most kHourMinutes
  };

  mutable Mutex mutex_;
  std::unordered_map<std::string, Entry> tenants_ KV_GUARDED_BY(mutex_);
};

}  // namespace kvasir
