// The path of embeddings: POST /v1/embeddings.
#pragma once

#include "server/generation_starter.h"
#include "server/route_table.h"

namespace kvasir {

// `generations` must outlive the table.
void AddEmbeddingRoutes(GenerationStarter& generations, RouteTable* table);

}  // namespace kvasir
