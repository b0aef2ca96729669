#include "access/rate_limits.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kvasir {
namespace {

constexpr double kMinuteNs = 60e9;

// Returns the seconds until the bucket holds `wanted`.
double WaitS(double level, double wanted, uint32_t limit) {
  return std::max(0.0, wanted - level) * 60 / limit;
}

Error UsedUp(const char* what, uint32_t limit, double wait_s) {
  Error error{
      Code::kExhausted,
      fmt::format("rate: this API key's tenant may take {} {} a minute, and these are used up; "
                  "try again in {:.1f} s",
                  limit, what, wait_s)};
  error.cause = Cause::kRate;
  error.retry_ms = static_cast<uint64_t>(std::ceil(wait_s * 1000));
  return error;
}

void AddHeaders(const char* what, double level, uint32_t limit, RateLimits::Headers* headers) {
  const auto add = [&](const char* part, std::string value) {
    headers->emplace_back(fmt::format("x-ratelimit-{}-{}", part, what), std::move(value));
  };
  add("limit", std::to_string(limit));
  add("remaining", fmt::format("{:.0f}", std::floor(std::max(level, 0.0))));
  add("reset", fmt::format("{:.3f}s", WaitS(level, limit, limit)));
}

}  // namespace

// Fills a bucket for the time that passed. A new limit keeps what was used of the old one.
void RateLimits::Fill(Bucket& bucket, uint32_t limit, double minutes) {
  bucket.level += static_cast<double>(limit) - bucket.limit;
  bucket.limit = limit;
  bucket.level = std::min<double>(limit, bucket.level + minutes * limit);
}

RateLimits::Tenant& RateLimits::Fill(const TenantEntry& entry) {
  Tenant& tenant = tenants_[entry.name];
  const uint64_t now = now_ns_();
  const double minutes = static_cast<double>(now - tenant.filled_ns) / kMinuteNs;
  tenant.filled_ns = now;
  Fill(tenant.requests, entry.requests_per_minute, minutes);
  Fill(tenant.tokens, entry.tokens_per_minute, minutes);
  return tenant;
}

std::optional<Error> RateLimits::TakeRequest(const TenantEntry& entry) {
  const uint32_t requests = entry.requests_per_minute, tokens = entry.tokens_per_minute;
  if (requests == 0 && tokens == 0) return std::nullopt;
  const MutexLock lock(mutex_);
  Tenant& tenant = Fill(entry);
  if (requests > 0 && tenant.requests.level < 1) {
    return UsedUp("requests", requests, WaitS(tenant.requests.level, 1, requests));
  }
  if (tokens > 0 && tenant.tokens.level < 1) {
    return UsedUp("tokens", tokens, WaitS(tenant.tokens.level, 1, tokens));
  }
  tenant.requests.level -= requests > 0 ? 1 : 0;
  return std::nullopt;
}

void RateLimits::TakeTokens(const std::string& tenant, uint64_t tokens) {
  const MutexLock lock(mutex_);
  const auto found = tenants_.find(tenant);
  if (found == tenants_.end() || found->second.tokens.limit == 0) return;
  found->second.tokens.level -= static_cast<double>(tokens);
}

RateLimits::Headers RateLimits::HeadersFor(const TenantEntry& entry) {
  Headers headers;
  if (entry.requests_per_minute == 0 && entry.tokens_per_minute == 0) return headers;
  const MutexLock lock(mutex_);
  const Tenant& tenant = Fill(entry);
  if (entry.requests_per_minute > 0) {
    AddHeaders("requests", tenant.requests.level, entry.requests_per_minute, &headers);
  }
  if (entry.tokens_per_minute > 0) {
    AddHeaders("tokens", tenant.tokens.level, entry.tokens_per_minute, &headers);
  }
  return headers;
}

}  // namespace kvasir
