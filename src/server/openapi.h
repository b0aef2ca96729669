// The lists of paths: GET /openapi.json, for generated clients and for tests, and GET /.
#pragma once

#include <string>

#include "server/route_table.h"

namespace kvasir {

// Describes the routes of a table in the form of OpenAPI 3.1, without those that have no summary.
std::string OpenApiText(const RouteTable& table, const std::string& version);

// Adds the paths that list the table's routes, of which the table may get more before the first
// call.
void AddListRoutes(RouteTable* table);

}  // namespace kvasir
