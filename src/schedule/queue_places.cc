#include "schedule/queue_places.h"

#include <algorithm>

namespace kvasir {
namespace {

double WeightOf(const TenantTable& rules, const std::string& tenant) {
  const auto found = rules.find(tenant);
  return found == rules.end() ? TenantRules().weight : found->second.weight;
}

}  // namespace

void QueuePlaces::Take(const std::string& tenant, uint64_t requests, uint64_t bytes) {
  Tenant& own = tenants_[tenant];
  own.requests += requests;
  own.bytes += bytes;
  own.wanted_until_ns = 0;
  requests_ += requests;
  bytes_ += bytes;
}

void QueuePlaces::Give(const std::string& tenant, uint64_t bytes) {
  const auto own = tenants_.find(tenant);
  --own->second.requests;
  own->second.bytes -= bytes;
  --requests_;
  bytes_ -= bytes;
  if (own->second.requests == 0 && own->second.wanted_until_ns == 0) tenants_.erase(own);
}

void QueuePlaces::NoteRefusal(const std::string& tenant, uint64_t now_ns) {
  std::erase_if(tenants_, [&](const auto& each) {
    return each.second.requests == 0 && each.second.wanted_until_ns <= now_ns;
  });
  tenants_[tenant].wanted_until_ns = now_ns + kWantedNs;
}

uint64_t QueuePlaces::requests_of(const std::string& tenant) const {
  const auto found = tenants_.find(tenant);
  return found == tenants_.end() ? 0 : found->second.requests;
}

bool QueuePlaces::ExceedsShare(const std::string& tenant, uint64_t requests, uint64_t bytes,
                               const TenantTable& rules, uint64_t now_ns) const {
  const bool few_places = 2 * (requests_ + requests) > max_requests_;
  const bool few_bytes = 2 * (bytes_ + bytes) > max_bytes_;
  const auto own = tenants_.find(tenant);
  if ((!few_places && !few_bytes) || own == tenants_.end() || own->second.requests == 0) {
    return false;
  }
  const double weight = WeightOf(rules, tenant);
  double sum = weight;
  for (const auto& [name, other] : tenants_) {
    const bool is_there = other.requests > 0 || other.wanted_until_ns > now_ns;
    if (name != tenant && is_there) sum += WeightOf(rules, name);
  }
  if (sum == weight) return false;  // no other tenant is there
  const auto exceeds = [&](uint64_t count, uint64_t most) {
    return static_cast<double>(count) > static_cast<double>(most) * weight / sum;
  };
  return (few_places && exceeds(own->second.requests + requests, max_requests_)) ||
         (few_bytes && exceeds(own->second.bytes + bytes, max_bytes_));
}

}  // namespace kvasir
