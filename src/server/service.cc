#include "server/service.h"

#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <random>

#include "base/random.h"
#include "server/request_memory.h"
#include "server/service_routes.h"

namespace kvasir {
namespace {

ApiError NotFound(std::string message) { return ApiError{Code::kNotFound, std::move(message)}; }

std::string_view PathOf(std::string_view target) {
  std::string_view path = target.substr(0, target.find_first_of("?#"));
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  return path;
}

bool Matches(std::string_view pattern, std::string_view path) {
  if (!pattern.ends_with('*')) return pattern == path;
  pattern.remove_suffix(1);
  return path.size() > pattern.size() && path.starts_with(pattern);
}

constexpr uint64_t kMaxOpenBodyBytes = 64 << 10;
constexpr uint64_t kTrimBytes = 4 << 20;

HttpResponse BodyTooLarge(uint64_t bytes, uint64_t max_bytes) {
  ApiError error{Code::kInvalidArgument,
                 fmt::format("the body has {} bytes; at most {} are taken", bytes, max_bytes)};
  error.status = 413;
  error.name = "body_too_large";
  return ErrorResponse(error);
}

}  // namespace

const Service::Route Service::kRoutes[] = {
    {"/v1/chat/completions", "POST", &Service::Chat, false, true, true},
    {"/chat/completions", "POST", &Service::Chat, false, true, true},
    {"/v1/completions", "POST", &Service::Complete, false, true, true},
    {"/completions", "POST", &Service::Complete, false, true, true},
    {"/v1/models", "GET", &Service::Models},
    {"/models", "GET", &Service::Models},
    {"/v1/models/*", "GET", &Service::OneModel},
    {"/v1/cache", "GET", &Service::CacheState},
    {"/v1/cache", "DELETE", &Service::EraseCache},
    {"/v1/cache/flush", "POST", &Service::FlushCache},
    {"/tokenize", "POST", &Service::Tokenize, false, false, true},
    {"/detokenize", "POST", &Service::Detokenize, false, false, true},
    {"/apply-template", "POST", &Service::ApplyTemplate, false, false, true},
    {"/props", "GET", &Service::Props},
    {"/health", "GET", &Service::Health, true},
    {"/v1/health", "GET", &Service::Health, true},
    {"/ready", "GET", &Service::Ready, true},
    {"/metrics", "GET", &Service::Metrics},
    {"/", "GET", &Service::Home},
    {"/v1/embeddings", "", &Service::NotYet},
    {"/v1/responses", "", &Service::NotYet},
    {"/v1/responses/*", "", &Service::NotYet},
    {"/v1/messages", "", &Service::NotYet},
    {"/v1/messages/*", "", &Service::NotYet},
    {"/v1/sessions", "", &Service::NotYet},
    {"/v1/sessions/*", "", &Service::NotYet},
};

Result<std::unique_ptr<Service>> Service::Make(const ServerOptions& options, Engine& engine) {
  std::unique_ptr<ChatTemplate> own_template;
  if (!options.chat_template.empty()) {
    KV_ASSIGN(own_template, ChatTemplate::Parse(options.chat_template));
  }
  return std::unique_ptr<Service>(new Service(options, engine, std::move(own_template)));
}

Service::Service(const ServerOptions& options, Engine& engine,
                 std::unique_ptr<ChatTemplate> own_template)
    : options_(options),
      engine_(engine),
      max_answer_bytes_(Divide(engine.options().request_memory_bytes, options).answers_bytes),
      own_template_(std::move(own_template)),
      credentials_(options.api_keys),
      started_(std::chrono::duration_cast<std::chrono::seconds>(
                   std::chrono::system_clock::now().time_since_epoch())
                   .count()),
      id_salt_(uint64_t{std::random_device{}()} << 32 | std::random_device{}()) {
  model_.names = options.aliases;
  model_.names.push_back(engine.card().id);
  model_.tokenizer = engine.tokenizer();
  model_.chat_template = own_template_ ? own_template_.get() : engine.chat_template();
  model_.vocab_size = engine.card().vocab_size;
  model_.ctx_size = engine.card().ctx_size;
  model_.max_decoded_bytes = options.max_body_bytes;
  model_.max_prompts = engine.options().parallel + engine.options().max_queued;
  if (model_.chat_template != nullptr) template_text_ = model_.chat_template->source();
  model_.uses_tools = template_text_.empty() || template_text_.find("tools") != std::string::npos;
  model_.knows_developer = template_text_.find("developer") != std::string::npos;
}

const Service::Route* Service::FindRoute(std::string_view path) {
  const auto* route = std::find_if(std::begin(kRoutes), std::end(kRoutes),
                                   [path](const Route& r) { return Matches(r.path, path); });
  return route == std::end(kRoutes) ? nullptr : route;
}

std::vector<std::string> Service::Endpoints() {
  std::vector<std::string> endpoints;
  for (const Route& route : kRoutes) {
    if (!route.method.empty()) endpoints.push_back(fmt::format("{} {}", route.method, route.path));
  }
  return endpoints;
}

bool Service::IsOpen(std::string_view method, const Route* route) {
  return method == "OPTIONS" || (route != nullptr && route->open);
}

uint64_t Service::MaxBodyBytes(const HttpRequest& head) const {
  const bool open = IsOpen(head.method, FindRoute(PathOf(head.target)));
  return open ? std::min(kMaxOpenBodyBytes, options_.max_body_bytes) : options_.max_body_bytes;
}

std::optional<HttpResponse> Service::CheckHead(const HttpRequest& head,
                                               std::optional<uint64_t> body_bytes) const {
  const std::string_view path = PathOf(head.target);
  const Route* route = FindRoute(path);
  const bool open = IsOpen(head.method, route);
  const uint64_t max_bytes = MaxBodyBytes(head);
  if (open && body_bytes && *body_bytes > max_bytes) return BodyTooLarge(*body_bytes, max_bytes);
  if (head.method == "OPTIONS") return std::nullopt;
  if (!open && !credentials_.TenantOf(head.authorization, head.api_key)) {
    ApiError error{Code::kPermissionDenied,
                   "no valid API key; send \"Authorization: Bearer KEY\" or \"x-api-key: KEY\""};
    error.name = "invalid_api_key";
    return ErrorResponse(error);
  }
  if (!route) {
    return ErrorResponse(NotFound(fmt::format("{} is not here; GET / lists what is", path)));
  }
  std::string allowed;
  const Route* match = nullptr;
  for (const Route& r : kRoutes) {
    if (!Matches(r.path, path)) continue;
    if (r.method.empty() || r.method == head.method) match = match ? match : &r;
    allowed += fmt::format("{}{}", allowed.empty() ? "" : ", ", r.method);
  }
  if (!match) {
    ApiError error{Code::kInvalidArgument,
                   fmt::format("{} takes {}, not {}", path, allowed, head.method)};
    error.status = 405;
    error.name = "method_not_allowed";
    HttpResponse response = ErrorResponse(error);
    response.headers.emplace_back("Allow", allowed);
    return response;
  }
  if (body_bytes && *body_bytes > max_bytes) return BodyTooLarge(*body_bytes, max_bytes);
  if (match->generates && draining_.load(std::memory_order_relaxed)) {
    return ErrorResponse({Code::kUnavailable, "the server is stopping; ask another one"});
  }
  return std::nullopt;
}

namespace {

// What no request may do is to end the server: whatever a library throws is an answer.
template <typename Make>
Outcome Guarded(const Make& make) {
  try {
    return make();
  } catch (const QuotaSpent&) {
    throw;
  } catch (const std::bad_alloc&) {
    return ErrorResponse({Code::kUnavailable, "the system gives no memory now; try again"});
  } catch (const std::exception&) {
    return ErrorResponse({Code::kCorruption, "the server failed on this request"});
  }
}

ApiError SpentError(uint64_t peak_bytes, const MemoryQuota& quota) {
  // With most of the quota for itself it will never fit.
  if (peak_bytes > quota.max_bytes() / 2) {
    return {Code::kInvalidArgument,
            fmt::format("reading, rendering and tokenizing this request takes more than the {} "
                        "bytes that there are for it; send less, or start the server with a larger "
                        "--request-memory",
                        quota.max_bytes())};
  }
  return {Code::kUnavailable, "too many large requests are being read; try again"};
}

}  // namespace

const Service::Route* Service::RouteOf(const HttpRequest& request) {
  const std::string_view path = PathOf(request.target);
  const auto* route = std::ranges::find_if(kRoutes, [&](const Route& r) {
    return Matches(r.path, path) && (r.method.empty() || r.method == request.method);
  });
  return route == std::end(kRoutes) ? nullptr : route;
}

bool Service::NeedsPreparing(const HttpRequest& request) {
  const Route* route = RouteOf(request);
  return route != nullptr && route->prepares;
}

bool Service::Generates(const HttpRequest& request) {
  const Route* route = RouteOf(request);
  return route != nullptr && route->generates;
}

std::string Service::TenantOf(const HttpRequest& request) const {
  return credentials_.TenantOf(request.authorization, request.api_key).value_or("");
}

Outcome Service::Prepare(const HttpRequest& request, MemoryQuota& quota, QuotaShare* share) {
  MemoryMeter meter(quota);
  Outcome outcome;
  bool spent = false;
  try {
    outcome = Guarded([&] { return Dispatch(request); });
  } catch (const QuotaSpent&) {
    spent = true;
  }
  const uint64_t peak_bytes = meter.peak_bytes();
  *share = meter.Stop();
  // What was freed goes back to the system, not to the heap of a thread that may not need it again.
  if (peak_bytes > kTrimBytes) malloc_trim(0);
  if (spent) return ErrorResponse(SpentError(peak_bytes, quota));
  return outcome;
}

Outcome Service::Handle(const HttpRequest& request) {
  return Guarded([&] { return Dispatch(request); });
}

Outcome Service::Dispatch(const HttpRequest& request) {
  if (request.method == "OPTIONS") return Preflight(request);
  const Route* route = RouteOf(request);
  if (route == nullptr) return ErrorResponse(NotFound("not here"));
  return (this->*route->handler)(Call{request, PathOf(request.target), TenantOf(request)});
}

Outcome Service::Preflight(const HttpRequest& request) const {
  HttpResponse response;
  const std::string_view path = PathOf(request.target);
  std::string allowed = "OPTIONS";
  for (const Route& route : kRoutes) {
    if (!Matches(route.path, path) || route.method.empty()) continue;
    allowed += fmt::format(", {}{}", route.method, route.method == "GET" ? ", HEAD" : "");
  }
  response.headers.emplace_back("Allow", allowed);
  if (!request.origin.empty() && !request.requested_headers.empty()) {
    response.headers.emplace_back("Access-Control-Allow-Headers", request.requested_headers);
  }
  if (!request.origin.empty()) {
    // Without a key any page that somebody visits could erase their cache: reading is enough there.
    response.headers.emplace_back("Access-Control-Allow-Methods",
                                  credentials_.required() ? "GET, POST, DELETE" : "GET, POST");
    response.headers.emplace_back("Access-Control-Max-Age", "86400");
  }
  response.body = "{}";
  return response;
}

std::vector<std::pair<std::string, std::string>> Service::CommonHeaders(
    const HttpRequest& request) const {
  std::vector<std::pair<std::string, std::string>> headers = {
      {"Server", "kvasir/" + options_.version}};
  if (request.origin.empty()) return headers;
  const std::vector<std::string>& origins = options_.cors_origins;
  const auto has = [&origins](std::string_view origin) {
    return std::find(origins.begin(), origins.end(), origin) != origins.end();
  };
  if (origins.empty() || has("*")) {
    headers.emplace_back("Access-Control-Allow-Origin", "*");
  } else {
    headers.emplace_back("Vary", "Origin");
    if (has(request.origin)) headers.emplace_back("Access-Control-Allow-Origin", request.origin);
  }
  return headers;
}

Outcome Service::Start(ApiResult<GenerationCall> call, const Call& from, std::string prompt_param) {
  if (!call) return ErrorResponse(call.error());
  GenerationStart start;
  start.requests = std::move(call->requests);
  for (GenerateRequest& request : start.requests) request.tenant = from.tenant;
  start.prompt_param = std::move(prompt_param);
  start.tenant = from.tenant;
  const uint64_t number = num_answers_.fetch_add(1, std::memory_order_relaxed);
  const std::string id =
      fmt::format("{:016x}{:016x}", Mix64(id_salt_ ^ number), Mix64(~id_salt_ ^ number));
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  start.answer = std::make_unique<Answer>(
      std::move(call->spec), start.requests.size(), id,
      std::chrono::duration_cast<std::chrono::seconds>(now).count(), model_.tokenizer);
  uint64_t num_choices = 0, tokens = 0;
  for (const GenerateRequest& request : start.requests) {
    const uint64_t context = std::min<uint64_t>(model_.ctx_size, engine_.plan().max_tokens + 1);
    const uint64_t room = context - std::min<uint64_t>(context, request.prompt.size());
    num_choices += request.n;
    tokens += request.n * std::min<uint64_t>(request.max_tokens, room);
  }
  start.answer_bytes = start.answer->ExpectedBytes(start.answer->streams() ? 0 : tokens);
  if (start.answer_bytes <= max_answer_bytes_) return start;
  constexpr const char* kField = "max_tokens";
  return ErrorResponse(
      {Code::kInvalidArgument,
       fmt::format(
           "{}: up to {} tokens in {} answers may take {} bytes until they are sent, and {} "
           "are there for all answers (--request-memory); ask for fewer tokens, answers or "
           "logprobs, or stream them",
           kField, tokens, num_choices, start.answer_bytes, max_answer_bytes_),
       kField});
}

Outcome Service::Chat(const Call& call) {
  return Start(ParseChatRequest(call.request.body, model_), call, "messages");
}

Outcome Service::Complete(const Call& call) {
  return Start(ParseCompletionRequest(call.request.body, model_), call, "prompt");
}

Outcome Service::NotYet(const Call& call) {
  return ErrorResponse(NotFound(fmt::format("{} is not available in this version", call.path)));
}

}  // namespace kvasir
