// The list of models, which has one.
#pragma once

#include "server/route_table.h"

namespace kvasir {

void AddModelRoutes(RouteTable* table);

}  // namespace kvasir
