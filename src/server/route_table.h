// RouteTable: the paths of the server, who may use each, and what answers it.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "http/http_message.h"
#include "server/call.h"
#include "server/error_shape.h"
#include "server/outcome.h"

namespace kvasir {

// The callers that may use a path: all; callers with a valid key, including the admin key; tenants;
// callers that may read sums over all tenants.
enum class Access { kOpen, kKey, kTenant, kSums };

// The description of a route in /openapi.json. JSON stands here as text.
struct Description {
  const char* summary = nullptr;  // nullptr: the route is not described
  // Properties of the body, as JSON Schema without the braces; "": it takes no body. Fields that
  // are not named are taken too (docs/api.md has all of them).
  std::string properties = {};
  // An array of the fields that a body must have, or an object with another condition; nullptr: no
  // body will do too.
  const char* required = nullptr;
  // Parameters of the path, where it has {name}, and of the query. One of the path that is missing
  // here is any string.
  struct Parameter {
    const char* name;
    std::string schema;
  };
  std::vector<Parameter> parameters = {};
  const char* rest = "rest";  // the name of what a path's "*" stands for
  const char* status = "200";
  const char* answer = "Object";       // the schema of the answer: a name in `components`
  const char* content_type = nullptr;  // of an answer that is not JSON
  bool streams = false;                // the answer may be a stream of stream_type
  const char* stream_type = "text/event-stream";
  bool takes_form = false;  // the body may be a form
  bool takes_list = false;  // the body is a list of objects with these properties
  bool has_page = false;    // browsers get a page
};

// A path with a method, and how its requests are taken.
struct Route {
  std::string_view path;    // "{name}" matches one segment, a trailing "*" any rest
  std::string_view method;  // "": any
  std::function<Outcome(const Call&)> handler;
  // Answers instead where the handler needs more than the request memory, with little of it: for
  // what must not be refused. Empty: 400 or 503.
  std::function<Outcome(const Call&)> when_spent = {};
  Access access = Access::kKey;
  // How much the handler does: bounded work; work that grows with the body; also a generation.
  enum Work { kSmall, kPrepared, kGeneration };
  Work work = kSmall;
  // kDrains: refused while draining, like every generation. kQueues: waits for its turn in the
  // session or response that segment 2 of the path names.
  enum Also { kNothing, kDrains, kQueues };
  Also also = kNothing;
  SessionKind names = SessionKind::kSession;  // what segment 2 of the path names, if it does
  // The kind of model that the path is for.
  enum ForModel { kAnyModel, kTextModel, kTranslator };
  ForModel for_model = kAnyModel;
  // The files that the handler waits for: none; the file of kept sessions, where there is one;
  // other files of a server with a disk tier.
  enum Files { kNoFiles, kSessionFile, kOtherFiles };
  Files files = kNoFiles;
  // The sessions with whose text its work grows: none; that of the path; all of the tenant's, as a
  // forget compares it with the others; the same where the body has the field `forget`; those that
  // a list reads; the response that a body goes on from.
  enum Reads {
    kNoSession,
    kOneSession,
    kAllSessions,
    kAllIfForgets,
    kListedSessions,
    kPreviousResponse
  };
  Reads reads = kNoSession;
  bool is_page = false;  // only for browsers, which prefer it to the path's other route
  const ErrorShape* errors = &kOpenAiErrors;
  // Reads the key in a body, where the request's head may lack it; nullptr: keys are in heads.
  std::string (*key_in_body)(std::string_view body, std::string_view content_type) = nullptr;
  Description description = {};
};

// Paths below a protocol's prefix that no route takes, and how they are refused.
struct UnknownPaths {
  std::string_view prefix;  // "/api": that path, and all below it
  const ErrorShape* errors;
  const char* hint;  // follows "unknown path /api/x"
};

// Returns the same route at another path.
Route At(std::string_view path, Route route);
// Makes a route that answers 404 to all methods: a path of a protocol that this version lacks.
Route NotYet(std::string_view path);

// Tells whether a Route::path takes `path`.
bool PathMatches(std::string_view pattern, std::string_view path);

// Routes in the order that GET / and /openapi.json show them in. Every protocol adds its own
// before the first request; then it is thread-safe. Handlers may refer to the table.
class RouteTable {
 public:
  RouteTable() = default;
  RouteTable(const RouteTable&) = delete;
  RouteTable& operator=(const RouteTable&) = delete;

  void Add(Route route);
  void AddUnknown(const UnknownPaths& paths) { unknown_.push_back(paths); }
  // Tells whether a route takes the path. A path that some route has word for word is not for
  // patterns.
  bool Takes(const Route& route, std::string_view path) const;
  // Finds the route that answers the request; nullptr: none does.
  const Route* Find(const HttpRequest& request) const;
  // Finds the first route of the path, whatever the method, except pages; nullptr: unknown path.
  const Route* FindPath(std::string_view path) const;
  // Finds how a path is refused that no route takes; nullptr: no protocol says it.
  const UnknownPaths* FindUnknown(std::string_view path) const;
  std::span<const Route> all() const { return routes_; }  // except pages

 private:
  std::vector<Route> routes_, pages_;
  std::vector<UnknownPaths> unknown_;
  std::set<std::string_view> plain_;  // paths without a pattern
};

}  // namespace kvasir
