// /v1/cache: what the cache holds, for whom, and how it is erased.
#pragma once

#include "access/key_ring.h"
#include "server/activity.h"
#include "server/cache_erase.h"
#include "server/route_table.h"

namespace kvasir {

// Adds the paths. REQUIRES: the others outlive the table.
void AddCacheRoutes(Engine& engine, const KeyRing& keys, const Activity& activity,
                    const TenantStores& stores, RouteTable* table);

}  // namespace kvasir
