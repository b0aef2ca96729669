// OpenAI's /v1/responses. No response is stored in this version.
#pragma once

#include "api/turn_preparer.h"
#include "server/generation_starter.h"
#include "server/route_table.h"

namespace kvasir {

// Adds the paths. REQUIRES: the others outlive the table.
void AddResponsesRoutes(GenerationStarter& generations, TurnPreparer& preparer, RouteTable* table);

}  // namespace kvasir
