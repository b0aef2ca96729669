// Service: answers the requests of each path; it does not know about sockets.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "access/browser_rules.h"
#include "access/credentials.h"
#include "access/rate_limits.h"
#include "api/llama_request.h"
#include "api/openai_request.h"
#include "api/translation_request.h"
#include "api/turn_preparer.h"
#include "base/memory_meter.h"
#include "base/mutex.h"
#include "http/http_message.h"
#include "kvasir/engine.h"
#include "kvasir/session.h"
#include "observe/span_exporter.h"
#include "server/activity.h"
#include "server/call.h"
#include "server/erase_queue.h"
#include "server/outcome.h"
#include "server/route_table.h"
#include "server/server.h"
#include "server/slots.h"
#include "text/piece_store.h"

namespace kvasir {

struct ForgetScope;

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
  // Takes the key that a client of LibreTranslate sends in its body, and then checks the head as
  // CheckHead does, which did not where the key was still to come. nullopt: the request may
  // continue. REQUIRES: CheckHead returned nullopt, and the body was read.
  std::optional<HttpResponse> TakeKey(HttpRequest* request) const;
  // Gives an error the form that clients of the request's path expect.
  void ShapeError(const HttpRequest& request, HttpResponse* response) const;
  // The largest body that a request with this head may have.
  uint64_t MaxBodyBytes(const HttpRequest& head) const;
  // Answers a request whose work does not grow with its body. REQUIRES: CheckHead returned nullopt.
  // `turn` is that of AwaitTurn.
  using SessionTurn = std::shared_ptr<SessionStore::Turn>;
  Outcome Handle(const HttpRequest& request, const SessionTurn& turn = nullptr);
  // Bytes of text that Prepare works on: of the body, and of the session that it renders.
  size_t WorkBytes(const HttpRequest& request);
  // Takes a turn in the session that the request is about. Null: it needs none. If the turn has not
  // come yet, `on_turn` is called once when it comes, by any thread; it must not block. kNotFound:
  // the caller has no such session; kExhausted: too many calls of it wait.
  Result<SessionTurn> AwaitTurn(const HttpRequest& request, std::function<void()> on_turn);
  // Whether the answer needs the body parsed, rendered or tokenized. Then Prepare makes it, on a
  // thread where that may take long (PreparePool).
  bool NeedsPreparing(const HttpRequest& request) const;
  bool Generates(const HttpRequest& request) const;  // also needs the engine
  // Whether Prepare waits for the disk of the tier or of sessions.
  bool WaitsForDisk(const HttpRequest& request) const;
  // The same as Handle, but takes its memory from `quota`; *share is the part that the outcome
  // still holds. When the quota is used up: 400 if the request alone needs more than all of it,
  // else 503.
  Outcome Prepare(const HttpRequest& request, MemoryQuota& quota, QuotaShare* share,
                  const SessionTurn& turn = nullptr);
  // The tenant whose turn it is in PreparePool; "": the request has no tenant's key.
  std::string TenantOf(const HttpRequest& request) const;
  // Reads the file of --keys again. If anything is wrong with it, nothing changes. From then on
  // keys that it lacks are refused; TenantOf says so of requests that came before.
  Status ReloadKeys();

  // Headers of every answer to this request: Server, and who may read the answer (CORS).
  std::vector<std::pair<std::string, std::string>> CommonHeaders(const HttpRequest& request) const;

  // Where the tokens of a request are charged; it may outlive the service.
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
  // GET /ready says no; requests are still taken.
  void EndReadiness() { leaving_.store(true, std::memory_order_relaxed); }
  void BeginDrain() {
    draining_.store(true, std::memory_order_relaxed);
  }  // relaxed: it publishes no data
  // Removes sessions that nobody has used for long, and opens their file where that failed before.
  // Call it now and then, one call at a time; it waits for the disk.
  void SweepSessions();
  bool waits_for_session_file() const {  // another process has it
    return waits_for_session_file_.load(std::memory_order_relaxed);
  }
  Engine& engine() { return engine_; }

 private:
  Service(const ServerOptions& options, Engine& engine, std::unique_ptr<ChatTemplate> own_template,
          uint64_t hash_key);
  Status UseKeys(const KeysFile& file);
  void SetTemplateVariables(JsonTree tree, const JsonValue& variables);
  // Where there is a disk tier. Without the file sessions are kept in memory, and the log says why.
  void OpenSessionFile();
  std::shared_ptr<const Credentials> credentials() const {
    const MutexLock lock(credentials_mutex_);
    return credentials_;
  }
  std::optional<Caller> CallerOf(const HttpRequest& request) const {
    return credentials()->CallerOf(request.authorization, request.api_key);
  }
  void AddRoutes();
  HttpResponse NoSuchRoute(const HttpRequest& head) const;  // 404, or 405: another method
  bool IsOpen(const HttpRequest& head) const;               // needs no key
  bool AwaitsKey(const HttpRequest& head) const;            // its body may have it
  std::optional<HttpResponse> CheckAccess(const Route& route, const Caller& caller) const;
  // Whether a caller may ask about other tenants.
  std::optional<HttpResponse> CheckAdmin(std::string_view path, const Caller& caller) const;
  static HttpResponse NoTenant();
  std::optional<Error> CheckLoad(const HttpRequest& head, const Caller& caller) const;
  void LimitTime(const HttpRequest& head, GenerateRequest* request) const;
  std::vector<std::string> Endpoints() const;  // "GET /v1/models"
  Outcome Dispatch(const HttpRequest& request, const SessionTurn& turn);
  Outcome Preflight(const HttpRequest& request) const;
  Status Trace(std::string_view traceparent, const std::string& id, GenerateRequest& request) const;
  Outcome Start(Result<GenerationCall> call, const Call& from, std::string prompt_field);
  void NoteUnseen(std::span<const std::string> names);

  void Follow(std::shared_ptr<AskedChat> chat, bool explains, bool prepares,
              GenerationStart* start) const;
  Outcome Chat(const Call& call);
  Outcome Complete(const Call& call);
  Outcome CompleteAsLlama(const Call& call);
  Outcome Translate(const Call& call);
  Outcome TranslateAsLibre(const Call& call);
  Outcome StartTranslation(Result<GenerationCall> parsed, const Call& call,
                           std::string texts_field);
  Outcome ListLanguages(const Call& call);
  std::optional<HttpResponse> CheckKind(const Route& route) const;
  Outcome Infill(const Call& call);
  Outcome Models(const Call& call);
  Outcome OneModel(const Call& call);
  Outcome CacheState(const Call& call);
  Outcome EraseCache(const Call& call);
  std::optional<HttpResponse> CheckOther(const std::string& field,
                                         const std::optional<std::string>& name,
                                         const Caller& caller) const;
  Outcome ListSequences(const Call& call);
  Outcome ListSlots(const Call& call);
  Outcome ActOnSlot(const Call& call);
  Outcome SaveSlot(const Call& call, uint32_t slot, const std::string& file);
  Outcome RestoreSlot(const Call& call, uint32_t slot, const std::string& file);
  Outcome EraseSlot(const Call& call, uint32_t slot);
  Outcome ListPrefixes(const Call& call);
  Outcome Page(const Call& call);
  Outcome PageCss(const Call& call);
  Outcome PageJs(const Call& call);
  Outcome PageSvg(const Call& call);
  Outcome ListTenants(const Call& call);
  Outcome FlushCache(const Call& call);
  Outcome CreateSession(const Call& call);
  Outcome ListSessions(const Call& call);
  Outcome ShowSession(const Call& call);
  Outcome DeleteSession(const Call& call);
  Outcome AppendMessages(const Call& call);
  void PrepareAppended(const Call& call);
  Outcome EditMessage(const Call& call);
  Outcome EditSystem(const Call& call);
  Outcome GenerateInSession(const Call& call);
  Outcome ForkSession(const Call& call);
  Outcome TruncateSession(const Call& call);
  Outcome ForgetPart(const Call& call);
  // Replaces the session's state and answers with it.
  Outcome Become(const Call& call, Result<SessionState> state,
                 const std::vector<std::string>& ignored);
  // Has the engine forget, then gives the answer `body` with the sums, or says why the disk still
  // has the session.
  Outcome ForgetLater(const Call& call, std::vector<ForgetRequest> requests, nlohmann::json body,
                      const Status& on_disk) const;
  ForgetScope ScopeOf(const Call& call) const;

  Outcome Tokenize(const Call& call);
  Outcome Detokenize(const Call& call);
  Outcome ApplyTemplate(const Call& call);
  Outcome CountChat(const Call& call);
  Outcome CountMessages(const Call& call);
  Result<size_t> CountPrompt(std::string_view body) const;
  Outcome Props(const Call& call);
  Outcome Health(const Call& call);
  Outcome Ready(const Call& call);
  Outcome Metrics(const Call& call);
  Outcome OpenApi(const Call& call);
  std::string OpenApiText() const;
  Outcome Home(const Call& call);
  Outcome NotYet(const Call& call);

  const ServerOptions options_;
  Engine& engine_;
  const uint64_t max_answer_bytes_;
  const std::unique_ptr<ChatTemplate> own_template_;
  mutable Mutex credentials_mutex_;
  std::shared_ptr<const Credentials> credentials_ KV_GUARDED_BY(credentials_mutex_);
  BrowserRules browser_rules_;
  const int64_t started_;  // seconds since 1970
  std::atomic<bool> draining_{false}, leaving_{false};
  std::atomic<bool> noted_tools_{false}, noted_messages_{false};
  // Relaxed: they publish no data.
  std::atomic<uint64_t> reloads_done_{0}, reloads_refused_{0};  // relaxed: counters
  Activity activity_;
  const std::shared_ptr<RateLimits> rates_ = std::make_shared<RateLimits>();
  EraseQueue erase_queue_;
  TurnPreparer preparer_;
  JsonTree template_tree_;  // of model_.template_variables
  ModelView model_;
  SamplingParams llama_sampling_ = LlamaSampling();  // the defaults of /completion and /infill
  std::optional<bool> prefix_stable_;                // IsPrefixStable
  std::optional<TranslationModel> translation_;      // absent: the model has no encoder
  SessionStore sessions_;
  PieceStore pieces_;
  Slots slots_;
  std::string no_session_file_;  // why, as it was logged last; of Make and SweepSessions
  std::atomic<bool> waits_for_session_file_{false};  // relaxed: it publishes no data
  std::string template_text_, fingerprint_, openapi_text_;
  std::shared_ptr<SpanExporter> spans_;  // absent: none are made. Requests share it until they end
  RouteTable routes_;
};

}  // namespace kvasir
