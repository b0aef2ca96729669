// RateLimits: how many requests and tokens a tenant may take in a minute.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "access/keys_file.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "kvasir/status.h"

namespace kvasir {

// Two buckets for each tenant with limits: each holds a minute's worth and fills evenly. A request
// takes one at its beginning. Tokens, computed and generated ones, are taken at its end, when they
// are known: they may take more than there is, and then the next request waits for that. Limits may
// change from call to call (a reload). Thread-safe.
class RateLimits {
 public:
  using Headers = std::vector<std::pair<std::string, std::string>>;

  explicit RateLimits(uint64_t (*now_ns)() = MonotonicNs) : now_ns_(now_ns) {}

  // Takes a request; otherwise says what is used up, and when there will be some.
  std::optional<Error> TakeRequest(const TenantEntry& tenant);
  void TakeTokens(const std::string& tenant, uint64_t tokens);
  // Returns x-ratelimit-{limit,remaining,reset}-{requests,tokens}, of the limits that the tenant
  // has.
  Headers HeadersFor(const TenantEntry& tenant);

 private:
  struct Bucket {
    double level = 0;
    uint32_t limit = 0;  // a minute's; 0: none yet
  };
  struct Tenant {
    Bucket requests, tokens;
    uint64_t filled_ns = 0;
  };
  static void Fill(Bucket& bucket, uint32_t limit, double minutes);
  Tenant& Fill(const TenantEntry& tenant) KV_REQUIRES(mutex_);

  uint64_t (*const now_ns_)();
  Mutex mutex_;
  std::unordered_map<std::string, Tenant> tenants_ KV_GUARDED_BY(mutex_);
};

}  // namespace kvasir
