// Routed calls and the table of routes, shared by the source files of Service.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "server/service.h"

namespace kvasir {

struct Service::Call {
  const HttpRequest& request;
  std::string_view path;  // without the query
  Caller caller;          // open paths too; a caller without a key is not a tenant there
  std::shared_ptr<SessionStore::Turn> turn;  // where the route takes one; it has come
  PieceSpace pieces;                         // the tenant's, from before it reads anything

  const std::string& tenant() const { return *caller.tenant; }  // REQUIRES: Access::kTenant
};

// Who may use a path: everybody; callers with a valid key, including the admin key; tenants;
// callers that may read sums over all tenants.
enum class Access { kOpen, kKey, kTenant, kSums };

struct Service::Route {
  std::string_view path;    // "{name}" matches one segment, a trailing "*" any rest
  std::string_view method;  // "": any
  Outcome (Service::*handler)(const Call&);
  Access access;
  enum Work { kSmall, kPrepared, kGeneration };
  Work work = kSmall;  // its work is bounded; grows with the body; also needs the engine
  // Refused while draining, like every generation; waits for its turn in the session that the path
  // names.
  enum Also { kNothing, kDrains, kQueues };
  Also also = kNothing;
};

// A target without its query and the slashes at its end.
std::string_view PathOf(std::string_view target);
// Whether a Route::path takes `path`.
bool PathMatches(std::string_view pattern, std::string_view path);

// Segment `index` of a path: 0 is the one after the first slash.
std::string_view SegmentOf(std::string_view path, size_t index);
// The value of a field in a target's query; absent: not there.
std::optional<std::string> QueryValue(std::string_view target, std::string_view name);

Error NotFound(std::string message);
HttpResponse NoValidKey();
HttpResponse JsonResponse(const nlohmann::json& body);

}  // namespace kvasir
