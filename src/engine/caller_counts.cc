#include "engine/caller_counts.h"

#include <cstddef>

namespace kvasir {

void CallerCounts::CountRefusal(RejectReason reason, const std::optional<std::string>& tenant) {
  ++refused_[static_cast<size_t>(reason)];
  if (!tenant) return;
  if (refused_of_.contains(*tenant) || refused_of_.size() < max_tenants_) {
    ++refused_of_[*tenant];
  } else {
    ++refused_of_others_;
  }
}

void CallerCounts::CountMiss(MissReason reason, uint32_t computed_tokens) {
  ++misses_[static_cast<size_t>(reason)];
  missed_tokens_[static_cast<size_t>(reason)] += computed_tokens;
}

void CallerCounts::KeepTenants(const TenantTable& tenants) {
  for (auto tenant = refused_of_.begin(); tenant != refused_of_.end();) {
    if (tenants.contains(tenant->first)) {
      ++tenant;
    } else {
      refused_of_others_ += tenant->second;
      tenant = refused_of_.erase(tenant);
    }
  }
}

void CallerCounts::AddTo(EngineStats* stats) const {
  stats->requests.rejected = refused_;
  stats->volatile_tokens = volatile_tokens_;
  for (size_t i = 0; i < kNumMissReasons; ++i) {
    stats->misses[i] += misses_[i];
    stats->missed_tokens[i] += missed_tokens_[i];
  }
  for (TenantStats& tenant : stats->tenants) {
    const auto found = refused_of_.find(tenant.name);
    if (found != refused_of_.end()) tenant.rejected = found->second;
  }
  if (!stats->tenants.empty()) stats->tenants[0].rejected += refused_of_others_;
}

}  // namespace kvasir
