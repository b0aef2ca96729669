// Anthropic's paths: /v1/messages and the count of its tokens.
#pragma once

#include "api/turn_preparer.h"
#include "server/generation_starter.h"
#include "server/route_table.h"

namespace kvasir {

// Adds the paths. REQUIRES: the others outlive the table.
void AddAnthropicRoutes(GenerationStarter& generations, TurnPreparer& preparer, RouteTable* table);

}  // namespace kvasir
