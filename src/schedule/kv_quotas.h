// What the owners of caches may take of a pool, by the rules of their tenants.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "block/kv_layout.h"
#include "cache/kv_accounts.h"
#include "kvasir/status.h"
#include "kvasir/tenant.h"

namespace kvasir {

using KvQuotas = std::map<std::string, KvQuota>;  // by cache owner; only those that have one

// Rounds guarantees up to blocks, and by what KvCache::SetQuota may take of them; maxima down.
KvQuotas QuotasOf(const TenantTable& tenants, const KvLayout& layout);

// Returns the blocks that admission leaves to those that run, of EngineOptions::kv_headroom.
inline uint32_t HeadroomBlocks(double share, uint64_t num_blocks) {
  return static_cast<uint32_t>(share * static_cast<double>(num_blocks));
}

// kInvalidArgument (field "keys") when the guarantees are more than the pool less its headroom, or
// when a maximum is less than two blocks.
Status CheckQuotas(const KvQuotas& quotas, uint32_t num_blocks, uint32_t headroom_blocks,
                   uint64_t block_bytes);

// Returns the blocks that one request of the owner may have at most: its maximum, and what the
// others' guarantees leave of the pool. So each accepted request fits some time.
uint32_t MostBlocks(const KvQuotas& quotas, const std::string& owner, uint32_t num_blocks);

}  // namespace kvasir
