// Paths of translation models: Kvasir's POST /v1/translations, and LibreTranslate's POST /translate
// and GET /languages.
#pragma once

#include "kvasir/engine.h"
#include "server/generation_starter.h"
#include "server/route_table.h"

namespace kvasir {

// Adds the paths. An error says that the engine's model lacks what translations need. The others
// must outlive the table.
Status AddTranslationRoutes(const Engine& engine, GenerationStarter& generations,
                            RouteTable* table);

}  // namespace kvasir
