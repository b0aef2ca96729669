// CallerCounts: what an engine's callers count, beside what its thread does.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "kvasir/engine_stats.h"
#include "kvasir/receipt.h"
#include "kvasir/request_stats.h"
#include "kvasir/tenant.h"

namespace kvasir {

// Requests that were refused, misses that callers explained (GenerateRequest::caller_explains), and
// tokens of volatile lines. Thread-compatible.
class CallerCounts {
 public:
  // Refusals are counted for at most this many tenants; those of all others together.
  explicit CallerCounts(uint32_t max_tenants) : max_tenants_(max_tenants) {}

  // `tenant`: absent where no key was valid.
  void CountRefusal(RejectReason reason, const std::optional<std::string>& tenant);
  void CountMiss(MissReason reason, uint32_t computed_tokens);
  void CountVolatile(uint32_t tokens) { volatile_tokens_ += tokens; }
  // Counts refusals of tenants that are not among these any more as of those without a name.
  void KeepTenants(const TenantTable& tenants);
  // Adds all to the figures of an engine.
  void AddTo(EngineStats* stats) const;

 private:
  const uint32_t max_tenants_;
  RejectCounts refused_{};
  std::map<std::string, uint64_t> refused_of_;
  uint64_t refused_of_others_ = 0;  // of tenants without a place there
  std::array<uint64_t, kNumMissReasons> misses_{}, missed_tokens_{};  // by MissReason
  uint64_t volatile_tokens_ = 0;
};

}  // namespace kvasir
