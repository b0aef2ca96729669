// Anthropic's paths: of /v1/messages this version counts tokens alone.
#pragma once

#include "server/route_table.h"

namespace kvasir {

void AddAnthropicRoutes(RouteTable* table);

}  // namespace kvasir
