// The page for browsers at /, and its files.
#pragma once

#include "server/route_table.h"

namespace kvasir {

// Adds the page. Without options.has_page browsers get the answer of other clients at /, and the
// files are 404.
void AddPageRoutes(const ServerOptions& options, RouteTable* table);

}  // namespace kvasir
