// The paths that show, load and unload adapters: llama.cpp's and vLLM's.
#pragma once

#include "access/key_ring.h"
#include "server/route_table.h"

namespace kvasir {

// `keys` must outlive the table.
void AddAdapterRoutes(const KeyRing& keys, RouteTable* table);

}  // namespace kvasir
