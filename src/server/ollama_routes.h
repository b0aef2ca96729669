// Ollama's paths: /api/chat, /api/generate, and what says which model there is.
#pragma once

#include "api/turn_preparer.h"
#include "server/generation_starter.h"
#include "server/route_table.h"

namespace kvasir {

// Adds the paths. REQUIRES: the others outlive the table.
void AddOllamaRoutes(GenerationStarter& generations, TurnPreparer& preparer, RouteTable* table);

}  // namespace kvasir
