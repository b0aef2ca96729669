// The page for browsers at /, and its files.
#pragma once

#include "server/route_table.h"

namespace kvasir {

// Without options.has_page browsers get what others get at /, and the files are 404.
void AddPageRoutes(const ServerOptions& options, RouteTable* table);

}  // namespace kvasir
