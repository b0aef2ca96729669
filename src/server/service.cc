#include "server/service.h"

#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <array>
#include <bit>
#include <filesystem>

#include "base/log.h"
#include "base/random_bytes.h"
#include "base/result.h"
#include "http/errors.h"
#include "http/request_memory.h"

namespace kvasir {
namespace {

constexpr uint64_t kTrimBytes = 4 << 20;
constexpr uint64_t kPieceShare = 4;  // pieces of text have a quarter of the sessions' memory

// Returns the memory of what the slots hold, a part of that of sessions.
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

SessionLimits SessionLimitsOf(const ServerOptions& options, const Engine& engine) {
  const uint64_t bytes = engine.options().session_memory_bytes;
  return {.max_sessions = options.max_sessions,
          .max_responses = options.max_responses,
          .memory_bytes = bytes - bytes / kPieceShare - SlotsBytes(options, engine),
          .ttl_ns = options.session_ttl_hours * uint64_t{3'600'000'000'000}};
}

}  // namespace

namespace {

// Refuses an adapter with a name of the model: it could not be chosen.
Status CheckAdapterNames(const Engine& engine, const std::vector<std::string>& names) {
  for (const AdapterCard& card : engine.Adapters()) {
    if (!card.is_model || std::ranges::find(names, card.name) == names.end()) continue;
    return FailField(Code::kInvalidArgument, "lora",
                     "the name '{}' is taken by the model; give the adapter another one",
                     card.name);
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Service>> Service::Make(const ServerOptions& options, Engine& engine) {
  KV_TRY(CheckSlots(options, engine));
  KV_ASSIGN(ServedModel model, ServedModel::Make(options, engine));
  KV_TRY(CheckAdapterNames(engine, model.view().names));
  std::array<uint8_t, 8> random;
  KV_TRY(FillRandom(random));
  std::shared_ptr<SpanExporter> spans;
  if (options.otlp_traces_endpoint) {
    KV_ASSIGN(CollectorAddress address, ParseCollectorAddress(*options.otlp_traces_endpoint));
    address.headers = options.otlp_headers;
    KV_ASSIGN(spans, SpanExporter::Start(address, {options.otel_service_name, options.version,
                                                   options.otel_attributes}));
  }
  std::unique_ptr<Service> service(new Service(options, engine, std::move(model),
                                               std::bit_cast<uint64_t>(random), std::move(spans)));
  KV_TRY(service->keys_.Use(options.keys));
  service->session_disk_.Open();
  KV_TRY(service->AddRoutes());
  return service;
}

Service::Service(const ServerOptions& options, Engine& engine, ServedModel model, uint64_t hash_key,
                 std::shared_ptr<SpanExporter> spans)
    : options_(options),
      engine_(engine),
      model_(std::move(model)),
      browser_rules_(options.cors_origins, options.allowed_hosts),
      keys_(options.api_keys, options.admin_key, engine.options().max_tenants,
            [this](const TenantTable& tenants) { return UseTenants(tenants); }),
      preparer_(engine),
      sessions_(SessionLimitsOf(options, engine)),
      responses_(sessions_.Responses()),
      session_disk_(engine, sessions_),
      texts_(engine.options().session_memory_bytes / kPieceShare,
             engine.options().head_memory_bytes, hash_key),
      slots_(model_.view().num_slots),
      spans_(std::move(spans)),
      generations_(options_, engine, model_.view(), slots_, spans_) {}

Status Service::UseTenants(const TenantTable& tenants) {
  KV_TRY(engine_.SetTenants(tenants));
  sessions_.SetTenants(tenants);
  if (options_.max_sessions > 0 && tenants.size() > options_.max_sessions) {
    Log(LogLevel::kWarning,
        "there are more tenants than sessions, so that not each of them has a place for one",
        LogField("tenants", tenants.size()), LogField("sessions", options_.max_sessions));
  }
  return {};
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

bool Service::WaitsForDisk(const HttpRequest& request) const {
  const Route* route = routes_.Find(request);
  if (route == nullptr || route->files == Route::kNoFiles) return false;
  if (route->files == Route::kSessionFile) return sessions_.file() != nullptr;
  return engine_.DiskStats().has_value();
}

namespace {

// Tells whether a body may have a field of this name, which JSON may also write with escapes.
bool MayHave(const HttpRequest& request, std::string_view quoted_name) {
  return request.body.find(quoted_name) != std::string::npos ||
         request.body.find("\\u") != std::string::npos;
}

}  // namespace

size_t Service::WorkBytes(const HttpRequest& request) {
  // A session that is in the file alone is read first, and may be long.
  constexpr size_t kUnknown = kSmallBodyBytes + 1;
  const size_t bytes = request.body.size();
  const Route* route = routes_.Find(request);
  if (route == nullptr || route->reads == Route::kNoSession) return bytes;
  if (route->reads == Route::kPreviousResponse) {
    const bool goes_on = MayHave(request, "\"previous_response_id\"");
    return goes_on ? std::max(bytes, kUnknown) : bytes;
  }
  if (route->reads == Route::kAllIfForgets && !MayHave(request, "\"forget\"")) return bytes;
  const auto caller = keys_.CallerOf(request);
  if (!caller || !caller->tenant) return bytes;
  if (route->reads == Route::kListedSessions) {
    return sessions_.BytesOf(*caller->tenant) ? bytes : std::max(bytes, kUnknown);
  }
  const std::string_view id = SegmentOf(PathOf(request.target), 2);
  const auto entry = StoreOf(*route).FindLoaded(*caller->tenant, id);
  if (!entry) return sessions_.file() ? std::max(bytes, kUnknown) : bytes;
  if (route->reads == Route::kAllSessions || route->reads == Route::kAllIfForgets) {
    return bytes + sessions_.BytesOf(*caller->tenant).value_or(kUnknown);
  }
  size_t text = 0;
  for (const auto& message : entry->state->messages) text += message->HeldBytes();
  return bytes + text;
}

std::string Service::TenantOf(const HttpRequest& request) const {
  const auto caller = keys_.CallerOf(request);
  return caller ? caller->tenant.value_or("") : "";
}

template <typename Work>
std::optional<Outcome> Service::Metered(MemoryQuota& quota, QuotaShare* share, bool* never_fits,
                                        const Work& work) {
  MemoryMeter meter(quota);
  std::optional<Outcome> outcome;
  try {
    outcome = Guarded(work);
  } catch (const QuotaSpent&) {
    outcome.reset();
  }
  const uint64_t peak_bytes = meter.peak_bytes();
  *never_fits = meter.never_fits();
  *share = meter.Stop();
  // Returns freed memory to the system; this thread's heap may not need it again.
  if (peak_bytes > kTrimBytes) malloc_trim(0);
  return outcome;
}

Outcome Service::Prepare(const HttpRequest& request, MemoryQuota& quota, QuotaShare* share,
                         const SessionTurn& turn) {
  bool never_fits = false;
  auto outcome =
      Metered(quota, share, &never_fits, [&] { return Dispatch(request, turn, Uses::kHandler); });
  if (outcome) return std::move(*outcome);
  const Route* route = routes_.Find(request);
  if (route != nullptr && route->when_spent) {
    // Memory that other calls have comes back, and then the handler takes no more than was asked:
    // unless it has removed its session before the memory ended.
    const auto again = AwaitTurn(request, [] {});
    const bool is_gone = !again && again.error().code != Code::kExhausted;
    if (never_fits || is_gone) {
      return Guarded([&] { return Dispatch(request, turn, Uses::kWhenSpent); });
    }
  }
  return ErrorResponse(SpentError(never_fits, quota));
}

Outcome Service::Handle(const HttpRequest& request, const SessionTurn& turn) {
  return Guarded([&] { return Dispatch(request, turn, Uses::kHandler); });
}

Result<Service::SessionTurn> Service::AwaitTurn(const HttpRequest& request,
                                                std::function<void()> on_turn) {
  const Route* route = routes_.Find(request);
  if (route == nullptr || route->also != Route::kQueues) return SessionTurn();
  const auto caller = keys_.CallerOf(request);
  if (!caller || !caller->tenant) return tl::unexpected(KeyRevoked());
  const std::string_view id = SegmentOf(PathOf(request.target), 2);
  return StoreOf(*route).Queue(*caller->tenant, id, std::move(on_turn));
}

Outcome Service::Dispatch(const HttpRequest& request, const SessionTurn& turn, Uses uses) {
  if (request.method == "OPTIONS") return Preflight(request);
  const Route* route = routes_.Find(request);
  if (route == nullptr) return ErrorResponse(NotFound("not found"));
  const auto caller = keys_.CallerOf(request);
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
            HeadSpace(),
            engine_,
            options_,
            model_.view()};
  const bool encodes = route->work != Route::kSmall && route->access == Access::kTenant;
  if (encodes) {
    call.pieces = texts_.pieces.SpaceOf(call.tenant());
    call.heads = texts_.heads.SpaceOf(call.tenant());
  }
  return uses == Uses::kWhenSpent ? route->when_spent(call) : route->handler(call);
}

}  // namespace kvasir
