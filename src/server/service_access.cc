// Access: refusals that a request's head decides, and what pages get (CORS).
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/json_writer.h"
#include "base/sizes.h"
#include "http/errors.h"
#include "server/refusals.h"
#include "server/service.h"

namespace kvasir {
namespace {

constexpr uint64_t kMaxOpenBodyBytes = 64 << 10;
constexpr uint64_t kMaxHeaderTimeoutMs = 86'400'000;  // a day

HttpResponse BodyTooLarge(uint64_t bytes, uint64_t max_bytes) {
  return ErrorResponse({Code::kExhausted,
                        fmt::format("has {} bytes; at most {} are taken", bytes, max_bytes),
                        "body"});
}

}  // namespace

// Tells whether the path needs no key, whatever the method. A page is open, even if the other
// answer of its path needs a key.
bool Service::IsOpen(const HttpRequest& head) const {
  const auto is_open = [](const Route* route) {
    return route != nullptr && route->access == Access::kOpen;
  };
  return head.method == "OPTIONS" || is_open(routes_.FindPath(PathOf(head.target))) ||
         is_open(routes_.Find(head));
}

uint64_t Service::MaxBodyBytes(const HttpRequest& head) const {
  const bool open = IsOpen(head) || AwaitsKey(head);
  return open ? std::min(kMaxOpenBodyBytes, options_.max_body_bytes) : options_.max_body_bytes;
}

std::optional<HttpResponse> Service::CheckHead(const HttpRequest& head,
                                               std::optional<uint64_t> body_bytes) const {
  if (auto refusal = browser_rules_.Check(head.host, head.origin)) return ErrorResponse(*refusal);
  const bool awaits_key = AwaitsKey(head);
  const bool open = IsOpen(head) || awaits_key;
  const uint64_t max_bytes = MaxBodyBytes(head);
  if (open && body_bytes && *body_bytes > max_bytes) return BodyTooLarge(*body_bytes, max_bytes);
  if (head.method == "OPTIONS" || awaits_key) return std::nullopt;
  const std::optional<Caller> caller = keys_.CallerOf(head);
  if (!open && !caller) return NoValidKey();
  const Route* route = routes_.Find(head);
  if (!route) return NoSuchRoute(head);
  if (auto refused = CheckAccess(*route, caller ? *caller : Caller())) return refused;
  if (body_bytes && *body_bytes > max_bytes) return BodyTooLarge(*body_bytes, max_bytes);
  const bool drains = route->also == Route::kDrains || route->work == Route::kGeneration;
  if (drains && draining_.load(std::memory_order_relaxed)) {
    CountRejection(RejectReason::kDraining, caller ? caller->tenant : std::nullopt);
    return ErrorResponse({Code::kUnavailable, "the server is stopping; ask another one"});
  }
  if (route->work != Route::kGeneration) return std::nullopt;
  const std::optional<Error> error = CheckLoad(head, *caller);
  return error ? std::optional(ErrorResponse(*error)) : std::nullopt;
}

// Checks a generation's time limit, the room in the queue and the tenant's rates, before its body
// is read in vain.
std::optional<Error> Service::CheckLoad(const HttpRequest& head, const Caller& caller) const {
  if (!head.timeout_ms.empty()) {
    const auto ms = ParseUint(head.timeout_ms);
    if (!ms || *ms == 0 || *ms > kMaxHeaderTimeoutMs) {
      return Error{
          Code::kInvalidArgument,
          fmt::format("is not a number of milliseconds between 1 and {}", kMaxHeaderTimeoutMs),
          "x-request-timeout-ms"};
    }
  }
  if (const Status room = engine_.CheckRoom(*caller.tenant); !room) {
    CountRejection(QueueReason(room.error()), caller.tenant);
    return room.error();
  }
  auto refused = caller.entry ? rates_->TakeRequest(*caller.entry) : std::nullopt;
  if (refused) CountRejection(RejectReason::kRate, caller.tenant);
  return refused;
}

HttpResponse Service::NoSuchRoute(const HttpRequest& head) const {
  const std::string_view path = PathOf(head.target);
  std::string allowed;
  for (const Route& route : routes_.all()) {
    if (!routes_.Takes(route, path)) continue;
    // /v1/responses/compact names no response.
    const bool is_one = route.names == SessionKind::kResponse;
    if (is_one && KindOfId(SegmentOf(path, 2)) != SessionKind::kResponse) continue;
    allowed += fmt::format("{}{}", allowed.empty() ? "" : ", ", route.method);
  }
  if (allowed.empty()) {
    const UnknownPaths* const unknown = routes_.FindUnknown(path);
    return ErrorResponse(NotFound(fmt::format("unknown path {}{}; GET / lists all paths", path,
                                              unknown != nullptr ? unknown->hint : "")));
  }
  HttpResponse response =
      ErrorResponse({Code::kUnsupported,
                     fmt::format("{} takes {}, not {}", path, allowed, head.method), "method"});
  response.headers.emplace_back("Allow", allowed);
  return response;
}

std::optional<HttpResponse> Service::CheckAccess(const Route& route, const Caller& caller) const {
  if (route.access == Access::kTenant && !caller.tenant) return NoTenant();
  if (route.access != Access::kSums) return std::nullopt;
  return CheckAdmin(*keys_.current(), route.path, caller);
}

Outcome Service::Preflight(const HttpRequest& request) const {
  HttpResponse response;
  const std::string_view path = PathOf(request.target);
  std::string allowed = "OPTIONS", for_pages;
  for (const Route& route : routes_.all()) {
    if (!routes_.Takes(route, path) || route.method.empty()) continue;
    allowed += fmt::format(", {}{}", route.method, route.method == "GET" ? ", HEAD" : "");
    // Without a key any page that a user visits could erase the user's cache: pages may only read.
    if (route.method == "DELETE" && !keys_.current()->required()) continue;
    for_pages += fmt::format("{}{}", for_pages.empty() ? "" : ", ", route.method);
  }
  response.headers.emplace_back("Allow", allowed);
  if (!request.origin.empty() && !request.requested_headers.empty()) {
    response.headers.emplace_back("Access-Control-Allow-Headers", request.requested_headers);
  }
  if (!request.origin.empty()) {
    if (!for_pages.empty()) {
      response.headers.emplace_back("Access-Control-Allow-Methods", for_pages);
    }
    response.headers.emplace_back("Access-Control-Max-Age", "86400");
  }
  response.body = "{}";
  return response;
}

std::vector<std::pair<std::string, std::string>> Service::CommonHeaders(
    const HttpRequest& request) const {
  std::vector<std::pair<std::string, std::string>> headers = {
      {"Server", "kvasir/" + options_.version}};
  if (!request.id.empty()) headers.emplace_back("x-request-id", request.id);
  if (const auto caller = keys_.CallerOf(request); caller && caller->entry) {
    for (auto& header : rates_->HeadersFor(*caller->entry)) headers.push_back(std::move(header));
  }
  if (request.origin.empty()) return headers;
  if (!browser_rules_.any_origin()) headers.emplace_back("Vary", "Origin");
  std::string allowed = browser_rules_.AllowedOrigin(request.origin);
  if (!allowed.empty()) {
    headers.emplace_back("Access-Control-Allow-Origin", std::move(allowed));
  }
  return headers;
}

// Refuses a path that is for another kind of model.
std::optional<HttpResponse> Service::CheckKind(const Route& route) const {
  const bool translates = engine_.card().decoder_start.has_value();
  if (route.for_model == Route::kAnyModel) return {};
  if (translates == (route.for_model == Route::kTranslator)) return {};
  return ErrorResponse({Code::kInvalidArgument,
                        translates ? "this one translates; use POST /v1/translations"
                                   : "this one does not translate; use POST /v1/chat/completions",
                        "model"});
}

bool Service::AwaitsKey(const HttpRequest& head) const {
  const Route* route = routes_.Find(head);
  return route != nullptr && route->key_in_body != nullptr && head.authorization.empty() &&
         head.api_key.empty() && keys_.current()->required();
}

std::optional<HttpResponse> Service::TakeKey(HttpRequest* request) const {
  if (!AwaitsKey(*request)) return {};
  request->api_key = routes_.Find(*request)->key_in_body(request->body, request->content_type);
  if (request->api_key.empty()) return NoValidKey();
  return CheckHead(*request, request->body.size());
}

void Service::ShapeError(const HttpRequest& request, HttpResponse* response) const {
  if (!response->refusal) return;
  const std::string_view path = PathOf(request.target);
  const ErrorShape* errors = &kOpenAiErrors;
  if (const Route* route = routes_.FindPath(path)) {
    errors = route->errors;
  } else if (const UnknownPaths* unknown = routes_.FindUnknown(path)) {
    errors = unknown->errors;
  }
  if (errors->reshape == nullptr) return;
  nlohmann::json body = nlohmann::json::parse(response->body, nullptr, false);
  errors->reshape(request, response->status, &body);
  response->body = Dump(body);
}

}  // namespace kvasir
