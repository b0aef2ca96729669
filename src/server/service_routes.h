// What the parts of Service share: routed calls and the table of routes.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "server/service.h"

namespace kvasir {

struct Service::Call {
  const HttpRequest& request;
  std::string_view path;  // without the query
  Caller caller;          // of an open path too: whoever has no key is no tenant there

  const std::string& tenant() const { return *caller.tenant; }  // REQUIRES: an Access of kTenant
};

// Who may ask for a path: anybody; whoever has a valid key, the admin's included; tenants; whoever
// may read sums over all tenants.
enum class Access { kOpen, kKey, kTenant, kSums };

struct Service::Route {
  std::string_view path;    // a trailing "*" takes any rest
  std::string_view method;  // "": any
  Outcome (Service::*handler)(const Call&);
  Access access;
  enum Work { kSmall, kPrepared, kGeneration };
  Work work = kSmall;  // time and memory: bounded; growing with the body; the same, then the engine
  bool drains = false;  // refused while draining, as every generation is
};

// A target without its query and the slashes at its end.
std::string_view PathOf(std::string_view target);
// Whether a Route::path takes `path`.
bool PathMatches(std::string_view pattern, std::string_view path);

Error NotFound(std::string message);
HttpResponse JsonResponse(const nlohmann::json& body);

}  // namespace kvasir
