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
  std::string tenant;
};

struct Service::Route {
  std::string_view path;    // a trailing "*" takes any rest
  std::string_view method;  // "": any
  Outcome (Service::*handler)(const Call&);
  bool open = false;       // needs no key
  bool generates = false;  // refused while draining
  bool prepares = false;   // takes time and memory that grow with the body
};

HttpResponse JsonResponse(const nlohmann::json& body);

}  // namespace kvasir
