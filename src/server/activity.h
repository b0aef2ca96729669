// Activity: sums over each tenant's answers, which only that tenant may read.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>

#include "base/mutex.h"
#include "kvasir/receipt.h"

namespace kvasir {

// Sums over a tenant's answers, in tokens unless named otherwise.
struct TenantActivity {
  uint64_t answers = 0;  // answers
  uint64_t prompt = 0, computed = 0, reused_pool = 0, reused_partial = 0, reused_disk = 0,
           reused_remote = 0, generated = 0;
};

// Thread-safe. Has at most as many entries as there are API keys.
class Activity {
 public:
  void Add(const std::string& tenant, const Receipt& receipt, uint64_t generated_tokens) {
    const MutexLock lock(mutex_);
    TenantActivity& sums = tenants_[tenant];
    ++sums.answers;
    sums.prompt += receipt.prompt_tokens;
    sums.computed += receipt.computed;
    sums.reused_pool += receipt.reused_pool;
    sums.reused_partial += receipt.reused_partial;
    sums.reused_disk += receipt.reused_disk;
    sums.reused_remote += receipt.reused_remote;
    sums.generated += generated_tokens;
  }
  TenantActivity Of(const std::string& tenant) const {
    const MutexLock lock(mutex_);
    const auto it = tenants_.find(tenant);
    return it == tenants_.end() ? TenantActivity() : it->second;
  }

 private:
  mutable Mutex mutex_;
  std::unordered_map<std::string, TenantActivity> tenants_ KV_GUARDED_BY(mutex_);
};

}  // namespace kvasir
