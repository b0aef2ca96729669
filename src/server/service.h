// Service: what each path answers, without knowing of sockets.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/memory_meter.h"
#include "kvasir/engine.h"
#include "server/activity.h"
#include "server/browser_rules.h"
#include "server/credentials.h"
#include "server/erase_queue.h"
#include "server/openai_request.h"
#include "server/openai_response.h"
#include "server/server.h"

namespace kvasir {

struct HttpRequest {
  std::string method;               // HEAD arrives as GET
  std::string target;               // path and query, as sent
  std::optional<std::string> host;  // of an absolute target, or the header; absent: HTTP/1.0
  std::string authorization, api_key, requested_headers;
  std::string origin;  // more than one header: joined, which is no origin
  std::string body;
};

// A generation to start, and the answer that its events make.
struct GenerationStart {
  std::vector<GenerateRequest> requests;
  std::unique_ptr<Answer> answer;
  std::string prompt_field;  // what the request calls its prompt
  std::string tenant;
  uint64_t answer_bytes;  // to keep for the answer until it is sent
};

// An answer that comes when the engine has done something.
struct LaterAnswer {
  using Reply = std::function<void(HttpResponse)>;
  // REQUIRES: called once. Calls `reply` once, now or later, on any thread: it must not block.
  std::function<void(Reply reply)> begin;
};

using Outcome = std::variant<HttpResponse, GenerationStart, LaterAnswer>;

// Thread-safe. Nothing waits for the engine.
class Service {
 public:
  // kInvalidArgument: options.chat_template cannot be parsed. `engine` must outlive the service.
  static Result<std::unique_ptr<Service>> Make(const ServerOptions& options, Engine& engine);

  // Refuses what a request's head already decides (another host, a page that may not call, no such
  // path, method or key, body too large, draining), before its body is read. nullopt: go on.
  // `body_bytes` is what Content-Length says.
  std::optional<HttpResponse> CheckHead(const HttpRequest& head,
                                        std::optional<uint64_t> body_bytes) const;
  // The largest body that a request with this head may have.
  uint64_t MaxBodyBytes(const HttpRequest& head) const;
  // Answers a request whose work does not grow with its body. REQUIRES: CheckHead let it pass.
  Outcome Handle(const HttpRequest& request);
  // Whether a body is read, rendered or tokenized for the answer: then Prepare makes it, on a
  // thread where that may take its time (PreparePool).
  static bool NeedsPreparing(const HttpRequest& request);
  static bool Generates(const HttpRequest& request);  // and then the engine works for it
  // The same as Handle, with the memory that it takes from `quota`; *share is what the outcome
  // still holds of it. Where the quota is spent: 400 if the request alone needs more
  // than all of it, else 503.
  Outcome Prepare(const HttpRequest& request, MemoryQuota& quota, QuotaShare* share);
  // Whom PreparePool takes in turn.
  std::string TenantOf(const HttpRequest& request) const;

  // Headers of every answer to this request: who made it, and who may read it (CORS).
  std::vector<std::pair<std::string, std::string>> CommonHeaders(const HttpRequest& request) const;

  // A generation of the tenant has been answered.
  void Count(const std::string& tenant, const Answer& answer) {
    activity_.Add(tenant, answer.receipt(), answer.completion_tokens());
  }
  // REQUIRES: no request has come yet.
  void ListensOnLoopback() { browser_rules_.ListensOnLoopback(); }
  void BeginDrain() { draining_.store(true, std::memory_order_relaxed); }  // a flag, nothing behind
  Engine& engine() { return engine_; }

 private:
  struct Call;  // a request that was routed
  struct Route;
  static const Route kRoutes[];
  static std::span<const Route> Routes();

  Service(const ServerOptions& options, Engine& engine, std::unique_ptr<ChatTemplate> own_template);
  static const Route* FindRoute(std::string_view path);
  static const Route* RouteOf(const HttpRequest& request);
  static HttpResponse NoSuchRoute(const HttpRequest& head);         // 404, or 405: another method
  static bool IsOpen(std::string_view method, const Route* route);  // needs no key
  std::optional<HttpResponse> CheckAccess(const Route& route, const Caller& caller) const;
  static std::vector<std::string> Endpoints();  // "GET /v1/models"
  Outcome Dispatch(const HttpRequest& request);
  Outcome Preflight(const HttpRequest& request) const;
  Outcome Start(Result<GenerationCall> call, const Call& from, std::string prompt_field);

  Outcome Chat(const Call& call);
  Outcome Complete(const Call& call);
  Outcome Models(const Call& call);
  Outcome OneModel(const Call& call);
  Outcome CacheState(const Call& call);
  Outcome EraseCache(const Call& call);
  Outcome FlushCache(const Call& call);
  Outcome Tokenize(const Call& call);
  Outcome Detokenize(const Call& call);
  Outcome ApplyTemplate(const Call& call);
  Outcome Props(const Call& call);
  Outcome Health(const Call& call);
  Outcome Ready(const Call& call);
  Outcome Metrics(const Call& call);
  Outcome Home(const Call& call);
  Outcome NotYet(const Call& call);

  const ServerOptions options_;
  Engine& engine_;
  const uint64_t max_answer_bytes_;
  const std::unique_ptr<ChatTemplate> own_template_;
  const Credentials credentials_;
  BrowserRules browser_rules_;
  const int64_t started_;  // seconds since 1970
  std::atomic<bool> draining_{false};
  Activity activity_;
  EraseQueue erase_queue_;
  ModelView model_;
  std::string template_text_;
};

}  // namespace kvasir
