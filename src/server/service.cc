#include "server/service.h"

#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <array>
#include <bit>
#include <filesystem>
#include <functional>

#include "api/model_view.h"
#include "api/rewritten_history.h"
#include "base/clock.h"
#include "base/digest.h"
#include "base/hex.h"
#include "base/log.h"
#include "base/random_bytes.h"
#include "base/result.h"
#include "http/request_memory.h"
#include "server/service_routes.h"

namespace kvasir {
namespace {

constexpr uint64_t kTrimBytes = 4 << 20;
constexpr uint64_t kPieceShare = 4;  // pieces of text have a quarter of the sessions' memory

// Of what decides the bits of an answer, the request apart: weights, config, tokenizer, numerics
// version (ModelCard::content), and the format of KV. 15 characters.
std::string FingerprintOf(const Engine& engine) {
  const EngineOptions& options = engine.options();
  const std::string whole = fmt::format("{} {} {}", engine.card().content, options.kv_format,
                                        fmt::join(options.kv_skip_layers, ","));
  return "fp_" + ToHex(Sha256Of(whole)).substr(0, 12);
}

}  // namespace

namespace {

// Memory of what the slots have, which is that of sessions.
uint64_t SlotsBytes(const ServerOptions& options, const Engine& engine) {
  if (!options.slot_save_path) return 0;
  return uint64_t{engine.options().parallel} * engine.card().ctx_size * sizeof(TokenId);
}

Status CheckSlots(const ServerOptions& options, const Engine& engine) {
  if (!options.slot_save_path) return {};
  if (engine.options().cache_mode != CacheMode::kPrefix) {
    return FailField(Code::kInvalidArgument, "slot_save_path",
                     "needs --cache prefix: otherwise nothing outlives its request");
  }
  if (!std::filesystem::is_directory(*options.slot_save_path)) {
    return FailField(Code::kInvalidArgument, "slot_save_path", "{} is not a folder; make it first",
                     *options.slot_save_path);
  }
  const uint64_t bytes = SlotsBytes(options, engine);
  const uint64_t least = bytes * 2 * kPieceShare / (kPieceShare - 1);
  if (engine.options().session_memory_bytes >= least) return {};
  return FailField(Code::kInvalidArgument, "slot_save_path",
                   "what {} slots remember takes {} bytes of the {} for sessions; give "
                   "--session-memory {} or more",
                   engine.options().parallel, bytes, engine.options().session_memory_bytes, least);
}

}  // namespace

Result<std::unique_ptr<Service>> Service::Make(const ServerOptions& options, Engine& engine) {
  KV_TRY(CheckSlots(options, engine));
  std::unique_ptr<ChatTemplate> own_template;
  if (options.chat_template) {
    KV_ASSIGN(own_template, ChatTemplate::Parse(*options.chat_template));
  }
  JsonTree tree;
  KV_ASSIGN(const JsonValue variables, ParseVariables(options.chat_template_kwargs, &tree));
  std::array<uint8_t, 8> random;
  KV_TRY(FillRandom(random));
  std::unique_ptr<Service> service(
      new Service(options, engine, std::move(own_template), std::bit_cast<uint64_t>(random)));
  service->SetTemplateVariables(std::move(tree), variables);
  if (options.otlp_traces_endpoint) {
    KV_ASSIGN(const CollectorAddress address, ParseCollectorAddress(*options.otlp_traces_endpoint));
    KV_ASSIGN(service->spans_, SpanExporter::Start(address, options.version));
  }
  KV_TRY(service->UseKeys(options.keys));
  service->OpenSessionFile();
  if (engine.card().decoder_start) {
    KV_ASSIGN(service->translation_, TranslationModelOf(engine));
  }
  return service;
}

Status Service::UseKeys(const KeysFile& file) {
  KV_TRY(Credentials::Check(options_.api_keys, options_.admin_key, file));
  KV_TRY(Credentials::CheckCount(options_.api_keys, file, engine_.options().max_tenants));
  auto next = std::make_shared<const Credentials>(options_.api_keys, options_.admin_key, file);
  const TenantTable tenants = next->Table();
  KV_TRY(engine_.SetTenants(tenants));
  sessions_.SetTenants(tenants);
  if (options_.max_sessions > 0 && tenants.size() > options_.max_sessions) {
    Log(LogLevel::kWarning,
        "there are more tenants than sessions, so that not each of them has a place for one",
        LogField("tenants", tenants.size()), LogField("sessions", options_.max_sessions));
  }
  const MutexLock lock(credentials_mutex_);
  credentials_ = std::move(next);
  return {};
}

Status Service::ReloadKeys() {
  const Result<KeysFile> file = ReadKeysFile(*options_.keys_path);
  Status used = file ? UseKeys(*file) : tl::unexpected(file.error());
  (used ? reloads_done_ : reloads_refused_).fetch_add(1, std::memory_order_relaxed);
  return used;
}

Service::Service(const ServerOptions& options, Engine& engine,
                 std::unique_ptr<ChatTemplate> own_template, uint64_t hash_key)
    : options_(options),
      engine_(engine),
      max_answer_bytes_(Divide(engine.options().request_memory_bytes, options.max_body_bytes,
                               options.max_connections)
                            .answers_bytes),
      own_template_(std::move(own_template)),
      browser_rules_(options.cors_origins, options.allowed_hosts),
      started_(UnixS()),
      erase_queue_(engine),
      preparer_(engine),
      sessions_({.max_sessions = options.max_sessions,
                 .memory_bytes = engine.options().session_memory_bytes -
                                 engine.options().session_memory_bytes / kPieceShare -
                                 SlotsBytes(options, engine),
                 .ttl_ns = options.session_ttl_hours * uint64_t{3'600'000'000'000}}),
      pieces_(engine.options().session_memory_bytes / kPieceShare, hash_key),
      slots_(options.slot_save_path ? engine.options().parallel : 0) {
  model_ = ViewOf(engine, own_template_.get());
  model_.names.insert(model_.names.begin(), options.aliases.begin(), options.aliases.end());
  model_.takes_any_name = std::erase(model_.names, "*") > 0;
  model_.sampling = options.defaults.Over(model_.sampling);
  model_.max_tokens = options.defaults.max_tokens;
  model_.template_now_unix_s = options.template_now_unix_s;
  model_.max_thought_tokens = options.defaults.max_thought_tokens;
  model_.thoughts = options.defaults.thoughts;
  model_.verbose = options.defaults.verbose;
  llama_sampling_ = options.defaults.Over(llama_sampling_);
  model_.max_decoded_bytes = options.max_body_bytes;
  model_.num_slots = static_cast<uint32_t>(slots_.size());
  model_.max_prompts = engine.options().parallel + engine.options().max_queued;
  if (model_.chat_template != nullptr) template_text_ = model_.chat_template->source();
  fingerprint_ = FingerprintOf(engine);
  AddRoutes();
  openapi_text_ = OpenApiText();
}

void Service::SetTemplateVariables(JsonTree tree, const JsonValue& variables) {
  template_tree_ = std::move(tree);
  model_.template_variables = variables;
  prefix_stable_ = IsPrefixStable(model_);
}

void Service::AddRoutes() {
  const auto own = [this](Outcome (Service::*handler)(const Call&)) {
    return std::bind_front(handler, this);
  };
  routes_.Add({.path = "/v1/chat/completions",
               .method = "POST",
               .handler = own(&Service::Chat),
               .access = Access::kTenant,
               .work = Route::kGeneration,
               .for_model = Route::kTextModel});
  routes_.Add({.path = "/chat/completions",
               .method = "POST",
               .handler = own(&Service::Chat),
               .access = Access::kTenant,
               .work = Route::kGeneration,
               .for_model = Route::kTextModel});
  routes_.Add({.path = "/v1/chat/completions/input_tokens",
               .method = "POST",
               .handler = own(&Service::CountChat),
               .access = Access::kTenant,
               .work = Route::kPrepared});
  routes_.Add({.path = "/chat/completions/input_tokens",
               .method = "POST",
               .handler = own(&Service::CountChat),
               .access = Access::kTenant,
               .work = Route::kPrepared});
  routes_.Add({.path = "/v1/completions",
               .method = "POST",
               .handler = own(&Service::Complete),
               .access = Access::kTenant,
               .work = Route::kGeneration,
               .for_model = Route::kTextModel});
  routes_.Add({.path = "/v1/translations",
               .method = "POST",
               .handler = own(&Service::Translate),
               .access = Access::kTenant,
               .work = Route::kGeneration,
               .for_model = Route::kTranslator});
  routes_.Add({.path = "/translate",
               .method = "POST",
               .handler = own(&Service::TranslateAsLibre),
               .access = Access::kTenant,
               .work = Route::kGeneration,
               .for_model = Route::kTranslator,
               .plain_errors = true,
               .key_in_body = KeyInLibreBody});
  routes_.Add({.path = "/languages",
               .method = "GET",
               .handler = own(&Service::ListLanguages),
               .access = Access::kOpen,
               .for_model = Route::kTranslator,
               .plain_errors = true});
  routes_.Add({.path = "/completion",
               .method = "POST",
               .handler = own(&Service::CompleteAsLlama),
               .access = Access::kTenant,
               .work = Route::kGeneration,
               .for_model = Route::kTextModel});
  routes_.Add({.path = "/completions",
               .method = "POST",
               .handler = own(&Service::CompleteAsLlama),
               .access = Access::kTenant,
               .work = Route::kGeneration,
               .for_model = Route::kTextModel});
  routes_.Add({.path = "/infill",
               .method = "POST",
               .handler = own(&Service::Infill),
               .access = Access::kTenant,
               .work = Route::kGeneration,
               .for_model = Route::kTextModel});
  routes_.Add({.path = "/v1/sessions",
               .method = "POST",
               .handler = own(&Service::CreateSession),
               .access = Access::kTenant,
               .work = Route::kPrepared,
               .for_model = Route::kTextModel,
               .files = Route::kSessionFile});
  routes_.Add({.path = "/v1/sessions",
               .method = "GET",
               .handler = own(&Service::ListSessions),
               .access = Access::kTenant,
               .work = Route::kPrepared,
               .files = Route::kSessionFile});
  routes_.Add({.path = "/v1/sessions/{id}",
               .method = "GET",
               .handler = own(&Service::ShowSession),
               .access = Access::kTenant,
               .work = Route::kPrepared,
               .files = Route::kSessionFile,
               .renders_session = true});
  routes_.Add({.path = "/v1/sessions/{id}",
               .method = "DELETE",
               .handler = own(&Service::DeleteSession),
               .access = Access::kTenant,
               .work = Route::kPrepared,
               .also = Route::kQueues,
               .files = Route::kSessionFile});
  routes_.Add({.path = "/v1/sessions/{id}/messages",
               .method = "POST",
               .handler = own(&Service::AppendMessages),
               .access = Access::kTenant,
               .work = Route::kPrepared,
               .also = Route::kQueues,
               .files = Route::kSessionFile});
  routes_.Add({.path = "/v1/sessions/{id}/messages/{index}",
               .method = "PUT",
               .handler = own(&Service::EditMessage),
               .access = Access::kTenant,
               .work = Route::kPrepared,
               .also = Route::kQueues,
               .files = Route::kSessionFile});
  routes_.Add({.path = "/v1/sessions/{id}/system",
               .method = "PUT",
               .handler = own(&Service::EditSystem),
               .access = Access::kTenant,
               .work = Route::kPrepared,
               .also = Route::kQueues,
               .files = Route::kSessionFile});
  routes_.Add({.path = "/v1/sessions/{id}/generate",
               .method = "POST",
               .handler = own(&Service::GenerateInSession),
               .access = Access::kTenant,
               .work = Route::kGeneration,
               .also = Route::kQueues,
               .for_model = Route::kTextModel,
               .files = Route::kSessionFile,
               .renders_session = true});
  routes_.Add({.path = "/v1/sessions/{id}/fork",
               .method = "POST",
               .handler = own(&Service::ForkSession),
               .access = Access::kTenant,
               .work = Route::kPrepared,
               .also = Route::kQueues,
               .files = Route::kSessionFile});
  routes_.Add({.path = "/v1/sessions/{id}/truncate",
               .method = "POST",
               .handler = own(&Service::TruncateSession),
               .access = Access::kTenant,
               .work = Route::kPrepared,
               .also = Route::kQueues,
               .files = Route::kSessionFile});
  routes_.Add({.path = "/v1/sessions/{id}/forget",
               .method = "POST",
               .handler = own(&Service::ForgetPart),
               .access = Access::kTenant,
               .work = Route::kPrepared,
               .also = Route::kQueues,
               .files = Route::kSessionFile,
               .renders_session = true});
  routes_.Add({.path = "/v1/models", .method = "GET", .handler = own(&Service::Models)});
  routes_.Add({.path = "/models", .method = "GET", .handler = own(&Service::Models)});
  routes_.Add({.path = "/v1/models/*", .method = "GET", .handler = own(&Service::OneModel)});
  routes_.Add({.path = "/v1/cache", .method = "GET", .handler = own(&Service::CacheState)});
  routes_.Add(
      {.path = "/v1/cache/sequences", .method = "GET", .handler = own(&Service::ListSequences)});
  routes_.Add({.path = "/v1/cache/prefixes",
               .method = "GET",
               .handler = own(&Service::ListPrefixes),
               .access = Access::kTenant});
  routes_.Add({.path = "/v1/cache",
               .method = "DELETE",
               .handler = own(&Service::EraseCache),
               .work = Route::kPrepared,
               .also = Route::kDrains,
               .files = Route::kOtherFiles});
  routes_.Add({.path = "/v1/cache/tenants",
               .method = "GET",
               .handler = own(&Service::ListTenants),
               .access = Access::kSums});
  routes_.Add({.path = "/v1/cache/flush",
               .method = "POST",
               .handler = own(&Service::FlushCache),
               .access = Access::kTenant});
  routes_.Add({.path = "/slots", .method = "GET", .handler = own(&Service::ListSlots)});
  routes_.Add({.path = "/slots/{id}",
               .method = "POST",
               .handler = own(&Service::ActOnSlot),
               .access = Access::kTenant,
               .work = Route::kPrepared,
               .files = Route::kOtherFiles});
  routes_.Add({.path = "/tokenize",
               .method = "POST",
               .handler = own(&Service::Tokenize),
               .access = Access::kTenant,
               .work = Route::kPrepared});
  routes_.Add({.path = "/detokenize",
               .method = "POST",
               .handler = own(&Service::Detokenize),
               .access = Access::kTenant,
               .work = Route::kPrepared});
  routes_.Add({.path = "/apply-template",
               .method = "POST",
               .handler = own(&Service::ApplyTemplate),
               .access = Access::kTenant,
               .work = Route::kPrepared});
  routes_.Add({.path = "/props", .method = "GET", .handler = own(&Service::Props)});
  routes_.Add({.path = "/health",
               .method = "GET",
               .handler = own(&Service::Health),
               .access = Access::kOpen});
  routes_.Add({.path = "/v1/health",
               .method = "GET",
               .handler = own(&Service::Health),
               .access = Access::kOpen});
  routes_.Add({.path = "/ready",
               .method = "GET",
               .handler = own(&Service::Ready),
               .access = Access::kOpen});
  routes_.Add({.path = "/metrics",
               .method = "GET",
               .handler = own(&Service::Metrics),
               .access = Access::kSums});
  routes_.Add({.path = "/openapi.json", .method = "GET", .handler = own(&Service::OpenApi)});
  routes_.Add({.path = "/", .method = "GET", .handler = own(&Service::Home)});
  if (options_.has_page) {
    routes_.Add({.path = "/",
                 .method = "GET",
                 .handler = own(&Service::Page),
                 .access = Access::kOpen,
                 .is_page = true});
  }
  routes_.Add({.path = "/page.css",
               .method = "GET",
               .handler = own(&Service::PageCss),
               .access = Access::kOpen});
  routes_.Add({.path = "/page.js",
               .method = "GET",
               .handler = own(&Service::PageJs),
               .access = Access::kOpen});
  routes_.Add({.path = "/page.svg",
               .method = "GET",
               .handler = own(&Service::PageSvg),
               .access = Access::kOpen});
  routes_.Add({.path = "/v1/embeddings", .method = "", .handler = own(&Service::NotYet)});
  routes_.Add({.path = "/v1/responses", .method = "", .handler = own(&Service::NotYet)});
  routes_.Add({.path = "/v1/responses/*", .method = "", .handler = own(&Service::NotYet)});
  routes_.Add({.path = "/v1/messages/count_tokens",
               .method = "POST",
               .handler = own(&Service::CountMessages),
               .access = Access::kTenant,
               .work = Route::kPrepared});
  routes_.Add({.path = "/v1/messages", .method = "", .handler = own(&Service::NotYet)});
  routes_.Add({.path = "/v1/messages/batches", .method = "", .handler = own(&Service::NotYet)});
  routes_.Add({.path = "/v1/messages/batches/*", .method = "", .handler = own(&Service::NotYet)});
}

std::vector<std::string> Service::Endpoints() const {
  std::vector<std::string> endpoints;
  for (const Route& route : routes_.all()) {
    if (!route.method.empty()) endpoints.push_back(fmt::format("{} {}", route.method, route.path));
  }
  return endpoints;
}

namespace {

// Turns exceptions of libraries into error answers, so that no request ends the server.
template <typename Make>
Outcome Guarded(const Make& make) {
  try {
    return make();
  } catch (const QuotaSpent&) {
    throw;
  } catch (const std::bad_alloc&) {
    return ErrorResponse({Code::kUnavailable, "the system is out of memory; try again"});
  } catch (const std::exception&) {
    return ErrorResponse({Code::kCorruption, "the server failed on this request"});
  }
}

Error SpentError(bool never_fits, const MemoryQuota& quota) {
  if (never_fits) {
    return {
        Code::kInvalidArgument,
        fmt::format("reading, rendering and tokenizing this request needs more than the limit of "
                    "{} bytes; send less, or start the server with a larger --request-memory",
                    quota.max_bytes())};
  }
  return {Code::kUnavailable, "too many large requests are being read; try again"};
}

}  // namespace

bool Service::NeedsPreparing(const HttpRequest& request) const {
  const Route* route = routes_.Find(request);
  return route != nullptr && route->work != Route::kSmall;
}

bool Service::Generates(const HttpRequest& request) const {
  const Route* route = routes_.Find(request);
  return route != nullptr && route->work == Route::kGeneration;
}

std::string Service::TenantOf(const HttpRequest& request) const {
  const auto caller = CallerOf(request);
  return caller ? caller->tenant.value_or("") : "";
}

Outcome Service::Prepare(const HttpRequest& request, MemoryQuota& quota, QuotaShare* share,
                         const SessionTurn& turn) {
  MemoryMeter meter(quota);
  Outcome outcome;
  bool spent = false;
  try {
    outcome = Guarded([&] { return Dispatch(request, turn); });
  } catch (const QuotaSpent&) {
    spent = true;
  }
  const uint64_t peak_bytes = meter.peak_bytes();
  const bool never_fits = meter.never_fits();
  *share = meter.Stop();
  // Returns freed memory to the system; this thread's heap may not need it again.
  if (peak_bytes > kTrimBytes) malloc_trim(0);
  if (spent) return ErrorResponse(SpentError(never_fits, quota));
  return outcome;
}

Outcome Service::Handle(const HttpRequest& request, const SessionTurn& turn) {
  return Guarded([&] { return Dispatch(request, turn); });
}

Result<Service::SessionTurn> Service::AwaitTurn(const HttpRequest& request,
                                                std::function<void()> on_turn) {
  const Route* route = routes_.Find(request);
  if (route == nullptr || route->also != Route::kQueues) return SessionTurn();
  const auto caller = CallerOf(request);
  if (!caller || !caller->tenant) return tl::unexpected(KeyRevoked());
  return sessions_.Queue(*caller->tenant, SegmentOf(PathOf(request.target), 2), std::move(on_turn));
}

Outcome Service::Dispatch(const HttpRequest& request, const SessionTurn& turn) {
  if (request.method == "OPTIONS") return Preflight(request);
  const Route* route = routes_.Find(request);
  if (route == nullptr) return ErrorResponse(NotFound("not found"));
  const auto caller = CallerOf(request);
  // The key may have been removed since CheckHead.
  if (!caller && route->access != Access::kOpen) return ErrorResponse(KeyRevoked());
  if (auto refused = CheckKind(*route)) return std::move(*refused);
  // A forget, above all, must not be followed by what was to be prepared before it.
  if (turn) preparer_.Cancel(turn->id());
  Call call{request,
            PathOf(request.target),
            caller.value_or(Caller()),
            turn,
            PieceSpace(),
            engine_,
            options_,
            model_};
  const bool encodes = route->work != Route::kSmall && route->access == Access::kTenant;
  if (encodes) call.pieces = pieces_.SpaceOf(call.tenant());
  return route->handler(call);
}

// Has the request traced, if it is sampled.
Status Service::Trace(std::string_view traceparent, const std::string& id,
                      GenerateRequest& request) const {
  if (!spans_) return {};
  KV_ASSIGN(const TraceContext context, ContextOf(traceparent, options_.trace_sample));
  if (!context.sampled) return {};
  SpanId root;
  KV_TRY(FillRandom(root));
  root[0] |= 1;  // not all zeros
  request.on_trace = [spans = spans_, context, root, id = id,
                      model = model_.names.front()](RequestTrace trace) mutable {
    spans->Add({std::move(trace), context, root, std::move(id), std::move(model)});
  };
  return {};
}

// Says in the log, once of each kind, what the chat template does not show of requests. The names
// are ours: those of fields that a client made up, which `ignored` has too, are not for the log.
void Service::NoteUnseen(std::span<const std::string> names) {
  for (const std::string& name : names) {
    const bool is_tools = name == "tools";
    std::atomic<bool>& noted = is_tools ? noted_tools_ : noted_messages_;
    if (noted.exchange(true, std::memory_order_relaxed)) continue;
    Log(LogLevel::kWarning,
        is_tools
            ? "the chat template does not show tools: the model does not see those of requests "
              "(\"ignored\" in their receipts; said once)"
            : "the chat template does not show all that messages say (\"ignored\" in the "
              "receipts of such requests; said once)",
        LogField("first", name));
  }
}

Outcome Service::Start(Result<GenerationCall> call, const Call& from, std::string prompt_field) {
  if (!call) return ErrorResponse(call.error());
  GenerationStart start;
  call->spec.fingerprint = fingerprint_;
  NoteUnseen(call->unseen);
  // A session's prompts are the session's, and what shares nothing is nobody's.
  const bool has_slot = call->requests.size() == 1 && !call->spec.session &&
                        call->requests.front().reuse != Reuse::kNothing;
  const std::optional<uint32_t> slot = has_slot ? call->slot : std::nullopt;
  start.requests = std::move(call->requests);
  start.prompt_field = std::move(prompt_field);
  start.tenant = from.tenant();
  std::array<uint8_t, 16> id;  // random, so that it shows nothing about other requests
  if (const Status drawn = FillRandom(id); !drawn) return ErrorResponse(drawn.error());
  start.answer =
      std::make_unique<WrittenAnswer>(std::move(call->spec), start.requests.size(), ToHex(id),
                                      UnixS(), model_.tokenizer, std::move(call->writer));
  for (GenerateRequest& request : start.requests) {
    request.tenant = from.tenant();
    request.id = start.answer->id();
    LimitTime(from.request, &request);
    if (from.caller.entry) {
      const TenantEntry& entry = *from.caller.entry;
      request.cache_owner = entry.rules.cache_owner;
      request.priority = std::clamp(request.priority, entry.least_priority, entry.most_priority);
    }
    if (const Status traced = Trace(from.request.traceparent, start.answer->id(), request);
        !traced) {
      return ErrorResponse(traced.error());
    }
  }
  uint64_t num_choices = 0, tokens = 0;
  for (const GenerateRequest& request : start.requests) {
    const uint64_t context = std::min<uint64_t>(model_.ctx_size, engine_.plan().max_tokens + 1);
    const uint64_t room = context - std::min<uint64_t>(context, request.prompt.size());
    num_choices += request.n;
    tokens += request.n * std::min<uint64_t>(request.max_tokens, room);
  }
  start.answer_bytes = start.answer->ExpectedBytes(start.answer->streams() ? 0 : tokens);
  if (slot) {
    auto keeper = std::make_unique<SlotKeeper>(slots_, *slot, start.requests.front());
    start.answer_bytes += keeper->held_bytes();
    start.answer->KeepIn(std::move(keeper));
  }
  if (start.answer_bytes <= max_answer_bytes_) return start;
  return ErrorResponse(
      {Code::kInvalidArgument,
       fmt::format("up to {} tokens in {} answers may take {} bytes until they are sent, and {} "
                   "are there for all answers (--request-memory); ask for fewer tokens, answers or "
                   "logprobs, or stream them",
                   tokens, num_choices, start.answer_bytes, max_answer_bytes_),
       "max_tokens"});
}

// Keeps the chat until its answer is there, if something follows from it.
void Service::Follow(std::shared_ptr<AskedChat> chat, bool explains, bool prepares,
                     GenerationStart* start) const {
  GenerateRequest& request = start->requests.front();
  const bool shares =
      engine_.options().cache_mode == CacheMode::kPrefix && request.reuse != Reuse::kNothing;
  if (!shares || !(explains || prepares)) return;
  request.caller_explains = explains;
  if (prepares) chat->PrepareAfter(request);
  // A prepared answer is kept too.
  const uint64_t bytes = chat->held_bytes() + (prepares ? start->answer_bytes : 0);
  start->answer->Hold(bytes);
  start->answer_bytes += bytes;
  start->chat = std::move(chat);
}

Outcome Service::Chat(const Call& call) {
  const std::string& body = call.request.body;
  Outcome outcome = Start(ParseChatRequest(body, call.own_model()), call, "messages");
  auto* start = std::get_if<GenerationStart>(&outcome);
  if (start && body.size() <= AskedChat::kMaxBodyBytes) {
    const bool has_answers = body.find("\"assistant\"") != body.npos;
    const GenerateRequest& request = start->requests.front();
    Follow(std::make_shared<AskedChat>(body, model_, preparer_), has_answers,
           options_.prepare && request.n == 1 && request.max_tokens > 0, start);
  }
  return outcome;
}

Outcome Service::Complete(const Call& call) {
  return Start(ParseCompletionRequest(call.request.body, model_), call, "prompt");
}

Outcome Service::NotYet(const Call& call) {
  return ErrorResponse(NotFound(fmt::format("{} is not available in this version", call.path)));
}

}  // namespace kvasir
