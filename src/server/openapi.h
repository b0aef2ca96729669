// What says which paths there are: GET /openapi.json, for clients that are generated and for tests,
// and GET /.
#pragma once

#include <string>

#include "server/route_table.h"

namespace kvasir {

// The routes of a table in the form of OpenAPI 3.1. Those without a summary are left out.
std::string OpenApiText(const RouteTable& table, const std::string& version);

// Adds the paths that list the table's routes, of which the table may get more before the first
// call.
void AddListRoutes(RouteTable* table);

}  // namespace kvasir
