// Anthropic's paths. This version only counts the tokens of /v1/messages.
#pragma once

#include "server/route_table.h"

namespace kvasir {

void AddAnthropicRoutes(RouteTable* table);

}  // namespace kvasir
