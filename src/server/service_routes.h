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

HttpResponse JsonResponse(const nlohmann::json& body);

}  // namespace kvasir
