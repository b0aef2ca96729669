// Service: finds what answers a request, and says who may ask; it does not know about sockets.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "access/browser_rules.h"
#include "access/key_ring.h"
#include "access/rate_limits.h"
#include "api/answer.h"
#include "api/turn_preparer.h"
#include "base/memory_meter.h"
#include "http/http_message.h"
#include "kvasir/engine.h"
#include "kvasir/session.h"
#include "observe/span_exporter.h"
#include "server/activity.h"
#include "server/generation_starter.h"
#include "server/kept_texts.h"
#include "server/outcome.h"
#include "server/route_table.h"
#include "server/served_model.h"
#include "server/server.h"
#include "server/session_disk.h"
#include "server/slots.h"

namespace kvasir {

// Thread-safe. No call waits for the engine.
class Service {
 public:
  // kInvalidArgument: options.chat_template cannot be parsed, or otlp_traces_endpoint has no such
  // host. kExhausted: no thread for spans. `engine` must outlive the service.
  static Result<std::unique_ptr<Service>> Make(const ServerOptions& options, Engine& engine);

  // Refuses a request by its headers before its body is read: wrong host, a page that may not call,
  // unknown path, method or key, a body that is too large, draining. nullopt: the request may
  // continue. `body_bytes` comes from Content-Length.
  std::optional<HttpResponse> CheckHead(const HttpRequest& head,
                                        std::optional<uint64_t> body_bytes) const;
  // Reads the API key from a LibreTranslate body, then does the checks that CheckHead had to
  // postpone. nullopt: the request may continue. REQUIRES: CheckHead returned nullopt, and the body
  // was read.
  std::optional<HttpResponse> TakeKey(HttpRequest* request) const;
  // Gives an error the form that clients of the request's path expect.
  void ShapeError(const HttpRequest& request, HttpResponse* response) const;
  // Returns the largest body that a request with this head may have.
  uint64_t MaxBodyBytes(const HttpRequest& head) const;
  // Answers a request whose work does not grow with its body. REQUIRES: CheckHead returned nullopt.
  // `turn` is that of AwaitTurn.
  using SessionTurn = std::shared_ptr<SessionStore::Turn>;
  Outcome Handle(const HttpRequest& request, const SessionTurn& turn = nullptr);
  // Counts the bytes of text that Prepare works on: of the body, and of the session that it
  // renders.
  size_t WorkBytes(const HttpRequest& request);
  // Takes a turn in the session that the request is about. Null: it needs none. If the turn has not
  // come yet, `on_turn` is called once when it comes, by any thread; it must not block. kNotFound:
  // the caller has no such session; kExhausted: too many calls of it wait.
  Result<SessionTurn> AwaitTurn(const HttpRequest& request, std::function<void()> on_turn);
  // Tells whether the answer needs the body parsed, rendered or tokenized. Then Prepare makes it,
  // on a thread where that may take long (PreparePool).
  bool NeedsPreparing(const HttpRequest& request) const;
  bool Generates(const HttpRequest& request) const;  // also needs the engine
  // Tells whether Prepare waits for the disk of the tier or of sessions.
  bool WaitsForDisk(const HttpRequest& request) const;
  // Answers as Handle does, but takes its memory from `quota`; *share is the part that the outcome
  // still holds. When the quota is used up: 400 if the request alone needs more than all of it,
  // else 503.
  Outcome Prepare(const HttpRequest& request, MemoryQuota& quota, QuotaShare* share,
                  const SessionTurn& turn = nullptr);
  // Returns the tenant whose turn in PreparePool the request takes; "": it has no tenant's key.
  std::string TenantOf(const HttpRequest& request) const;
  // Reads the file of --keys again. If anything is wrong with it, nothing changes. From then on
  // keys that it lacks are refused; TenantOf says so of requests that came before.
  Status ReloadKeys() { return keys_.Reload(*options_.keys_path); }

  // Returns the headers of every answer to this request: Server, and who may read it (CORS).
  std::vector<std::pair<std::string, std::string>> CommonHeaders(const HttpRequest& request) const;

  // Returns the limits that the tokens of a request are charged to; they may outlive the service.
  std::shared_ptr<RateLimits> rates() const { return rates_; }
  // Counts an answered generation of the tenant.
  void Count(const std::string& tenant, const Answer& answer) {
    activity_.Add(tenant, answer.receipt(), answer.completion_tokens());
  }
  // Counts a request that is refused because of load or limits before the engine gets it.
  void CountRejection(RejectReason reason,
                      const std::optional<std::string>& tenant = std::nullopt) const {
    engine_.CountRejection(reason, tenant);
  }
  // REQUIRES: no request has come yet.
  void ListensOnLoopback() { browser_rules_.ListensOnLoopback(); }
  // Has GET /ready say no; requests are still taken.
  void EndReadiness() { leaving_.store(true, std::memory_order_relaxed); }
  void BeginDrain() {
    draining_.store(true, std::memory_order_relaxed);
  }  // relaxed: it publishes no data
  // Removes sessions that were not used for long, and opens their file where that failed before.
  // Call it now and then, one call at a time; it waits for the disk.
  void SweepSessions() { session_disk_.Sweep(); }
  bool waits_for_session_file() const { return session_disk_.waits(); }  // another process has it
  Engine& engine() { return engine_; }

 private:
  Service(const ServerOptions& options, Engine& engine, ServedModel model, uint64_t hash_key,
          std::shared_ptr<SpanExporter> spans);
  // Adds the paths of every protocol.
  Status AddRoutes();
  Status UseTenants(const TenantTable& tenants);
  HttpResponse NoSuchRoute(const HttpRequest& head) const;  // 404, or 405: another method
  bool IsOpen(const HttpRequest& head) const;               // needs no key
  bool AwaitsKey(const HttpRequest& head) const;            // its body may have it
  std::optional<HttpResponse> CheckAccess(const Route& route, const Caller& caller) const;
  std::optional<HttpResponse> CheckKind(const Route& route) const;
  std::optional<Error> CheckLoad(const HttpRequest& head, const Caller& caller) const;
  enum class Uses : uint8_t { kHandler, kWhenSpent };  // of a Route
  Outcome Dispatch(const HttpRequest& request, const SessionTurn& turn, Uses uses);
  // Makes an answer within the quota. Absent: that is spent.
  template <typename Work>
  static std::optional<Outcome> Metered(MemoryQuota& quota, QuotaShare* share, bool* never_fits,
                                        const Work& work);
  Outcome Preflight(const HttpRequest& request) const;
  SessionStore& StoreOf(const Route& route) {
    return route.names == SessionKind::kResponse ? responses_ : sessions_;
  }

  const ServerOptions options_;
  Engine& engine_;
  const ServedModel model_;
  BrowserRules browser_rules_;
  KeyRing keys_;
  const std::shared_ptr<RateLimits> rates_ = std::make_shared<RateLimits>();
  std::atomic<bool> draining_{false}, leaving_{false};  // relaxed: they publish no data
  Activity activity_;
  TurnPreparer preparer_;
  SessionStore sessions_;
  SessionStore responses_;  // the same store
  SessionDisk session_disk_;
  KeptTexts texts_;
  Slots slots_;
  const std::shared_ptr<SpanExporter> spans_;  // null: none are made. Requests share it
  GenerationStarter generations_;
  RouteTable routes_;
};

}  // namespace kvasir
