// TenantBook: the tenants of a scheduler: their numbers, rules, charges, quotas and answers'
// lengths.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "cache/kv_cache.h"
#include "kvasir/request_stats.h"
#include "kvasir/tenant.h"
#include "schedule/answer_lengths.h"
#include "schedule/draft_pace.h"
#include "schedule/kv_quotas.h"
#include "schedule/request_queues.h"
#include "schedule/scheduling_policy.h"

namespace kvasir {

// Tenants are numbered from 1; all that have no number share 0. A tenant that has neither rules nor
// requests gives its number up when another one needs it. Engine thread only.
class TenantBook {
 public:
  // `max_tenants`: how many have a number. `unknown_answer_tokens`: AnswerLengths'. `stats` has the
  // row of 0, and gets one for each number. Cache and stats must outlive this.
  TenantBook(KvCache& cache, std::vector<TenantStats>& stats, uint32_t max_tenants,
             uint32_t unknown_answer_tokens);

  // Returns the tenant's number, giving it one if there is one left: else 0. O(requests + tenants)
  // for a new tenant, when all numbers are in use.
  uint32_t NumberOf(const std::string& name, const RequestQueues& requests);
  uint32_t size() const { return static_cast<uint32_t>(views_.size()); }  // numbers, and 0
  double weight(uint32_t tenant) const { return rules_of_[tenant].weight; }
  std::span<const TenantView> views() const { return views_; }
  AnswerLengths& lengths() { return lengths_; }
  const AnswerLengths& lengths() const { return lengths_; }
  DraftMeans& drafts(uint32_t tenant) { return drafts_[tenant]; }

  // Uses these rules from now on; tenants that have none in the table have the default ones.
  void SetRules(const TenantTable& rules);
  // Returns the account of an owner of a cache, with its quota; kNobody: no account is free.
  AccountId AccountOf(const std::string& owner);
  bool HasQuota(const std::string& owner) const { return quotas_.contains(owner); }
  // Returns how many blocks one request of the owner may have.
  uint32_t MostBlocksOf(const std::string& owner) const;

  // Lets a tenant that has a new request begin without savings: at the least charge of the tenants
  // that have requests, or at the largest charge of all where none has (as in start-time fair
  // queueing, Goyal, Vin, Cheng, SIGCOMM 1996): else a tenant that used an idle machine would wait
  // for tenants that did not.
  void Activate(uint32_t tenant, const RequestQueues& requests);
  // Adds the machine's time to what the tenant was given.
  void Charge(uint32_t tenant, double service_ns);
  // Fills in the choices that each tenant has running.
  void CountRunning(const RequestQueues& requests);

 private:
  uint32_t FreeNumber(const RequestQueues& requests);
  void UseRules(uint32_t tenant, const TenantRules& rules);
  void SetQuota(const std::string& owner, const KvQuota& quota);

  KvCache& cache_;
  std::vector<TenantStats>& stats_;  // [views_]
  const uint32_t max_tenants_;
  std::map<std::string, uint32_t> numbers_;
  std::vector<TenantView> views_;
  std::vector<TenantRules> rules_of_;  // [views_]
  TenantTable rules_;                  // of tenants without a number too
  KvQuotas quotas_;
  AnswerLengths lengths_;           // [views_]
  std::vector<DraftMeans> drafts_;  // [max_tenants_ + 1]
};

}  // namespace kvasir
