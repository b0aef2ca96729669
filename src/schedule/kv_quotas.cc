#include "schedule/kv_quotas.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/result.h"
#include "base/sizes.h"

namespace kvasir {

KvQuotas QuotasOf(const TenantTable& tenants, const KvLayout& layout) {
  const uint64_t block_bytes = layout.block_bytes();
  KvQuotas quotas;
  for (const auto& [name, rules] : tenants) {
    if (rules.kv_guaranteed == 0 && !rules.kv_max) continue;
    quotas[rules.cache_owner.value_or(name)] = {.guaranteed = 0, .max = 0};
  }
  const auto add = [](uint32_t& sum, uint64_t blocks) {
    sum = static_cast<uint32_t>(std::min<uint64_t>(KvQuota::kNoLimit, sum + blocks));
  };
  for (const auto& [name, rules] : tenants) {
    const auto quota = quotas.find(rules.cache_owner.value_or(name));
    if (quota == quotas.end()) continue;
    if (rules.kv_guaranteed > 0 && quota->second.guaranteed == 0) {
      add(quota->second.guaranteed, layout.num_own_groups() - 1);
    }
    add(quota->second.guaranteed, CeilDiv(rules.kv_guaranteed, block_bytes));
    add(quota->second.max, rules.kv_max ? *rules.kv_max / block_bytes : KvQuota::kNoLimit);
  }
  return quotas;
}

Status CheckQuotas(const KvQuotas& quotas, uint32_t num_blocks, uint32_t headroom_blocks,
                   uint64_t block_bytes) {
  uint64_t guaranteed = 0;
  for (const auto& [owner, quota] : quotas) {
    guaranteed += quota.guaranteed;
    if (quota.max >= 2) continue;
    return FailField(Code::kInvalidArgument, "keys",
                     "kv_max of '{}' is less than two blocks; give at least {}", owner,
                     FormatBytes(2 * block_bytes));
  }
  const uint64_t most = num_blocks - headroom_blocks;
  if (guaranteed <= most) return {};
  return FailField(Code::kInvalidArgument, "keys",
                   "kv_guaranteed of all tenants is {} blocks, {}, and the cache less its headroom "
                   "has {}, {}; lower the guarantees or raise --kv-memory",
                   guaranteed, FormatBytes(guaranteed * block_bytes), most,
                   FormatBytes(most * block_bytes));
}

uint32_t MostBlocks(const KvQuotas& quotas, const std::string& owner, uint32_t num_blocks) {
  uint64_t guaranteed = 0, most = num_blocks;
  for (const auto& [name, quota] : quotas) {
    if (name == owner) {
      most = std::min<uint64_t>(most, quota.max);
    } else {
      guaranteed += quota.guaranteed;
    }
  }
  return static_cast<uint32_t>(
      std::min(most, num_blocks - std::min<uint64_t>(num_blocks, guaranteed)));
}

}  // namespace kvasir
