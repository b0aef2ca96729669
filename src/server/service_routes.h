// Routed calls and the table of routes, shared by the source files of Service.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "server/service.h"

namespace kvasir {

struct Service::Call {
  const HttpRequest& request;
  std::string_view path;  // without the query
  Caller caller;          // open paths too; a caller without a key is not a tenant there

  const std::string& tenant() const { return *caller.tenant; }  // REQUIRES: Access::kTenant
};

// Who may use a path: everybody; callers with a valid key, including the admin key; tenants;
// callers that may read sums over all tenants.
enum class Access { kOpen, kKey, kTenant, kSums };

struct Service::Route {
  std::string_view path;    // a trailing "*" matches any rest
  std::string_view method;  // "": any
  Outcome (Service::*handler)(const Call&);
  Access access;
  enum Work { kSmall, kPrepared, kGeneration };
  Work work = kSmall;   // its work is bounded; grows with the body; also needs the engine
  bool drains = false;  // refused while draining, like every generation
};

// A target without its query and the slashes at its end.
std::string_view PathOf(std::string_view target);
// Whether a Route::path takes `path`.
bool PathMatches(std::string_view pattern, std::string_view path);

Error NotFound(std::string message);
HttpResponse JsonResponse(const nlohmann::json& body);

}  // namespace kvasir
