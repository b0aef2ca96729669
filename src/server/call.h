// Call: a routed request, and what every handler may use to answer it.
#pragma once

#include <initializer_list>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "access/credentials.h"
#include "api/model_view.h"
#include "http/http_message.h"
#include "kvasir/engine.h"
#include "kvasir/session.h"
#include "server/server.h"
#include "text/piece_store.h"

namespace kvasir {

// One thread; the engine, the options and the model outlive it and what it begins.
struct Call {
  const HttpRequest& request;
  std::string_view path;  // PathOf the request's target
  Caller caller;          // open paths too; a caller without a key is not a tenant there
  std::shared_ptr<SessionStore::Turn> turn;  // where the route takes one; it has come
  PieceSpace pieces;                         // the tenant's, from before it reads anything
  HeadSpace heads;                           // the same
  Engine& engine;
  const ServerOptions& options;
  const ModelView& model;

  const std::string& tenant() const { return *caller.tenant; }  // REQUIRES: Access::kTenant
  // Returns the namespace of the cache that the tenant's prompts are in. REQUIRES: Access::kTenant.
  std::string cache_owner() const;
  // Returns the model as the tenant encodes with it: with `pieces` and `heads`.
  ModelView own_model() const;
};

// Returns the target without its query and the slashes at its end.
std::string_view PathOf(std::string_view target);
// Returns the segment `index` of a path: 0 is the one after the first slash.
std::string_view SegmentOf(std::string_view path, size_t index);
// Returns the value of a field in a target's query; absent: not there.
std::optional<std::string> QueryValue(std::string_view target, std::string_view name);
// Returns the first name in a target's query that is not one of `known`; absent: all are.
std::optional<std::string> UnknownQuery(std::string_view target,
                                        std::initializer_list<std::string_view> known);
// Returns the text of a path segment: "%2F" is "/".
std::string PercentDecoded(std::string_view text);

HttpResponse JsonResponse(const nlohmann::json& body);
Error NotFound(std::string message);

}  // namespace kvasir
