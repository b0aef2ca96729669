// Paths that read and write text without generating: tokens and templates.
#pragma once

#include "server/route_table.h"

namespace kvasir {

void AddTextRoutes(RouteTable* table);

}  // namespace kvasir
