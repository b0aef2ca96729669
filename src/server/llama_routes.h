// Paths of llama.cpp's server that generate: /completion and /infill.
#pragma once

#include <string>

#include "server/generation_starter.h"
#include "server/route_table.h"

namespace kvasir {

// `generations` must outlive the table.
void AddLlamaRoutes(const ServerOptions& options, GenerationStarter& generations,
                    RouteTable* table);

}  // namespace kvasir
