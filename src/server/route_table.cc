#include "server/route_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "http/errors.h"

namespace kvasir {

Route At(std::string_view path, Route route) {
  route.path = path;
  return route;
}

Route NotYet(std::string_view path) {
  return {.path = path, .method = "", .handler = [](const Call& call) -> Outcome {
            return ErrorResponse(
                NotFound(fmt::format("{} is not available in this version", call.path)));
          }};
}

bool PathMatches(std::string_view pattern, std::string_view path) {
  while (!pattern.empty()) {
    if (pattern == "*") return !path.empty();
    if (pattern.front() == '{') {
      const size_t segment = std::min(path.find('/'), path.size());
      if (segment == 0) return false;
      path.remove_prefix(segment);
      pattern.remove_prefix(pattern.find('}') + 1);
      continue;
    }
    if (path.empty() || path.front() != pattern.front()) return false;
    path.remove_prefix(1);
    pattern.remove_prefix(1);
  }
  return path.empty();
}

void RouteTable::Add(Route route) {
  if (route.path.find_first_of("{*") == route.path.npos) plain_.insert(route.path);
  (route.is_page ? pages_ : routes_).push_back(std::move(route));
}

bool RouteTable::Takes(const Route& route, std::string_view path) const {
  return plain_.contains(path) ? route.path == path : PathMatches(route.path, path);
}

const Route* RouteTable::Find(const HttpRequest& request) const {
  const std::string_view path = PathOf(request.target);
  const auto in = [&](const std::vector<Route>& routes) {
    const auto found = std::ranges::find_if(routes, [&](const Route& route) {
      return Takes(route, path) && (route.method.empty() || route.method == request.method);
    });
    return found == routes.end() ? nullptr : &*found;
  };
  const Route* page = request.accepts_html ? in(pages_) : nullptr;
  return page ? page : in(routes_);
}

const Route* RouteTable::FindPath(std::string_view path) const {
  const auto found =
      std::ranges::find_if(routes_, [&](const Route& route) { return Takes(route, path); });
  return found == routes_.end() ? nullptr : &*found;
}

const UnknownPaths* RouteTable::FindUnknown(std::string_view path) const {
  const auto found = std::ranges::find_if(unknown_, [&](const UnknownPaths& paths) {
    if (!path.starts_with(paths.prefix)) return false;
    return path.size() == paths.prefix.size() || path[paths.prefix.size()] == '/';
  });
  return found == unknown_.end() ? nullptr : &*found;
}

}  // namespace kvasir
