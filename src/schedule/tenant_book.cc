#include "schedule/tenant_book.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace kvasir {

TenantBook::TenantBook(KvCache& cache, std::vector<TenantStats>& stats, uint32_t max_tenants,
                       uint32_t unknown_answer_tokens)
    : cache_(cache),
      stats_(stats),
      max_tenants_(max_tenants),
      views_(1),
      rules_of_(1),
      lengths_(max_tenants + 1, unknown_answer_tokens),
      drafts_(max_tenants + 1) {
  views_.reserve(max_tenants + 1);
  rules_of_.reserve(max_tenants + 1);
}

uint32_t TenantBook::NumberOf(const std::string& name, const RequestQueues& requests) {
  const auto found = numbers_.find(name);
  if (found != numbers_.end()) return found->second;
  uint32_t number = size();
  if (numbers_.size() < max_tenants_) {
    views_.emplace_back();
    rules_of_.emplace_back();
    stats_.emplace_back();
  } else {
    number = FreeNumber(requests);
    if (number == 0) return 0;
  }
  stats_[number].name = name;
  numbers_.emplace(name, number);
  const auto rules = rules_.find(name);
  if (rules != rules_.end()) UseRules(number, rules->second);
  return number;
}

// Takes the number of a tenant that has no rules and no requests, and returns it; 0 when there is
// none. What was counted for the tenant counts for those without a number.
uint32_t TenantBook::FreeNumber(const RequestQueues& requests) {
  const auto idle = std::ranges::find_if(numbers_, [&](const auto& tenant) {
    return !rules_.contains(tenant.first) && !requests.HasRequestOf(tenant.second);
  });
  if (idle == numbers_.end()) return 0;
  const uint32_t number = idle->second;
  numbers_.erase(idle);
  stats_[0].Add(stats_[number]);
  stats_[number] = {};
  views_[number] = {};
  rules_of_[number] = {};
  lengths_.Forget(number);
  drafts_[number] = {};
  return number;
}

void TenantBook::SetRules(const TenantTable& rules) {
  rules_ = rules;
  KvQuotas quotas = QuotasOf(rules, cache_.layout());
  for (const auto& [owner, quota] : quotas_) {
    if (!quotas.contains(owner)) SetQuota(owner, {});
  }
  quotas_ = std::move(quotas);
  for (const auto& [owner, quota] : quotas_) SetQuota(owner, quota);
  for (const auto& [name, number] : numbers_) {
    const auto found = rules_.find(name);
    UseRules(number, found == rules_.end() ? TenantRules() : found->second);
  }
}

void TenantBook::UseRules(uint32_t tenant, const TenantRules& rules) {
  rules_of_[tenant] = rules;
  views_[tenant].max_running = rules.max_running;
}

void TenantBook::SetQuota(const std::string& owner, const KvQuota& quota) {
  const bool has_quota = quota != KvQuota{};
  const AccountId account = has_quota ? cache_.MakeAccount(owner) : cache_.EnterAccount(owner);
  if (account != kNobody) cache_.SetQuota(account, quota);
}

// Returns the owner's account with its quota: no account may have been free when the quota was set.
AccountId TenantBook::AccountOf(const std::string& owner) {
  const auto quota = quotas_.find(owner);
  if (quota == quotas_.end()) return cache_.EnterAccount(owner);
  const AccountId account = cache_.MakeAccount(owner);
  if (account != kNobody && cache_.accounts().of(account).quota != quota->second) {
    cache_.SetQuota(account, quota->second);
  }
  return account;
}

uint32_t TenantBook::MostBlocksOf(const std::string& owner) const {
  return MostBlocks(quotas_, owner, cache_.plan().num_blocks);
}

void TenantBook::Activate(uint32_t tenant, const RequestQueues& requests) {
  std::optional<double> least;
  const auto look = [&](const auto& queue) {
    for (const auto& request : queue) {
      if (request->tenant == tenant) return true;
      const double charge = views_[request->tenant].charge_ns;
      least = std::min(least.value_or(charge), charge);
    }
    return false;
  };
  if (look(requests.running) || look(requests.waiting)) return;  // it is active
  if (!least) least = std::ranges::max_element(views_, {}, &TenantView::charge_ns)->charge_ns;
  views_[tenant].charge_ns = std::max(views_[tenant].charge_ns, *least);
}

void TenantBook::Charge(uint32_t tenant, double service_ns) {
  views_[tenant].charge_ns += service_ns / weight(tenant);
  stats_[tenant].service_ns += service_ns;
}

void TenantBook::CountRunning(const RequestQueues& requests) {
  for (TenantView& view : views_) view.running = 0;
  for (const auto& request : requests.running)
    views_[request->tenant].running += request->num_live();
}

}  // namespace kvasir
