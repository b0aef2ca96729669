#include "server/cache_routes.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/parts.h"
#include "http/errors.h"
#include "http/json_body.h"
#include "plan/plan_json.h"
#include "server/prefix_list.h"

namespace kvasir {
namespace {

using nlohmann::json;

json CacheJson(const EngineStats& stats, const char* mode) {
  return {{"mode", mode},
          {"blocks",
           {{"free", stats.free_blocks},
            {"idle", stats.idle_blocks},
            {"pinned", stats.pinned_blocks},
            {"committed", stats.committed_blocks},
            {"evicted", stats.evicted_blocks},
            {"copied", stats.copied_blocks},
            {"deduplicated", stats.deduplicated_blocks}}},
          {"tokens",
           {{"cached", stats.cached_tokens},
            {"live", stats.live_tokens},
            {"prompt", stats.prompt_tokens},
            {"computed", stats.computed_tokens},
            {"reused_pool", stats.reused_pool},
            {"reused_partial", stats.reused_partial},
            {"reused_disk", stats.reused_disk},
            {"reused_remote", stats.reused_remote},
            {"recomputed", stats.recomputed_tokens},
            {"generated", stats.generated_tokens}}},
          {"cursors", stats.cursors},
          {"cursor_hits", stats.cursor_hits},
          {"waste", stats.waste},
          {"worst_waste", stats.worst_waste}};
}

// Shows the milliseconds of a step by its rows, and what each GiB of KV that they see adds.
json CostJson(const StepCostStats& cost) {
  constexpr double kMs = 1e-6, kGiB = 1 << 30;
  constexpr size_t kShown = 11;  // up to 1,024 rows: few steps are longer
  json rows = json::array();
  for (size_t i = 0; i < kShown; ++i) {
    rows.push_back({{"rows", 1u << i}, {"ms", cost.ns_of_rows[i] * kMs}});
  }
  return {{"steps", cost.steps},
          {"step_ms", rows},
          {"prefill_ms_per_kv_gib", cost.prefill_ns_per_kv_byte * kGiB * kMs},
          {"decode_ms_per_kv_gib", cost.decode_ns_per_kv_byte * kGiB * kMs}};
}

json SequenceJson(const SequenceState& state, uint32_t ctx_size) {
  return {{"id", state.id ? json(*state.id) : json()},
          {"choice", state.choice},
          {"tenant", state.tenant},
          {"state", state.state},
          {"tokens", state.tokens},
          {"computed", state.computed},
          {"blocks", state.blocks},
          {"shared_blocks", state.shared_blocks},
          {"context_ratio", static_cast<double>(state.tokens) / ctx_size},
          {"priority", state.priority},
          {"age_ms", std::floor(static_cast<double>(state.age_ns) / 1e3) / 1e3},
          {"preemptions", state.preemptions}};
}

// {"object": "list", "data": [...]}
Parts SequencesText(std::vector<SequenceState> states, uint32_t ctx_size) {
  std::string out = R"({"object":"list","data":[)";
  for (size_t i = 0; i < states.size(); ++i) {
    if (i > 0) out += ',';
    out += Dump(SequenceJson(states[i], ctx_size));
    if (out.size() >= kPartBytes) co_yield out;
  }
  out += "]}";
  co_yield out;
}

json OwnJson(const TenantActivity& own, const char* mode) {
  return {{"mode", mode},
          {"answers", own.answers},
          {"tokens",
           {{"prompt", own.prompt},
            {"computed", own.computed},
            {"reused_pool", own.reused_pool},
            {"reused_partial", own.reused_partial},
            {"reused_disk", own.reused_disk},
            {"reused_remote", own.reused_remote},
            {"generated", own.generated}}}};
}

json HourJson(const LastHour& hour) {
  json minutes = json::array();
  for (const auto& minute : hour.minutes) minutes.push_back({minute.prompt, minute.reused});
  return {{"answers", hour.sums.answers},
          {"prompt", hour.sums.prompt},
          {"computed", hour.sums.computed},
          {"reused_pool", hour.sums.reused_pool},
          {"reused_partial", hour.sums.reused_partial},
          {"reused_disk", hour.sums.reused_disk},
          {"reused_remote", hour.sums.reused_remote},
          {"minutes", std::move(minutes)}};
}

json DiskJson(const std::optional<TierStats>& disk) {
  if (!disk) return json();
  return {{"state", ToString(disk->state)},
          {"reason", disk->reason.empty() ? json() : json(disk->reason)},
          {"missing_bytes", disk->missing_bytes},
          {"folder", disk->folder},
          {"durable", disk->durable},
          {"cap_bytes", disk->cap_bytes},
          {"used_bytes", disk->used_bytes},
          {"blocks", disk->blocks},
          {"pending_blocks", disk->pending_blocks},
          {"written_today_bytes", disk->written_today_bytes},
          {"budget_bytes", disk->budget_bytes},
          {"load_bytes_s", disk->load_bytes_per_s}};
}

json RemoteJson(const std::optional<RemoteStats>& remote) {
  if (!remote) return json();
  return {{"state", ToString(remote->state)},
          {"reason", remote->reason.empty() ? json() : json(remote->reason)},
          {"kind", remote->kind},
          {"host", remote->host},
          {"rtt_ms", remote->rtt_ms},
          {"load_bytes_s", remote->load_bytes_per_s},
          {"pending_blocks", remote->pending_blocks},
          {"read_bytes", remote->read_bytes},
          {"written_bytes", remote->written_bytes},
          {"written_today_bytes", remote->written_today_bytes},
          {"daily_bytes", remote->daily_bytes ? json(*remote->daily_bytes) : json()}};
}

json LimitJson(uint64_t limit, uint64_t none) { return limit == none ? json() : json(limit); }

json TenantJson(const TenantEntry& entry, const EngineStats& stats) {
  const TenantRules& rules = entry.rules;
  const auto tenant = std::ranges::find(stats.tenants, entry.name, &TenantStats::name);
  const TenantStats use = tenant == stats.tenants.end() ? TenantStats() : *tenant;
  const auto owner = std::ranges::find(stats.cache_owners, rules.cache_owner.value_or(entry.name),
                                       &CacheOwnerStats::name);
  const CacheOwnerStats blocks = owner == stats.cache_owners.end() ? CacheOwnerStats() : *owner;
  return {{"tenant", entry.name},
          {"weight", rules.weight},
          {"share_group", entry.share_group ? json(*entry.share_group) : json()},
          {"max_running", LimitJson(rules.max_running, TenantRules::kNoLimit)},
          {"max_queued", LimitJson(rules.max_queued, TenantRules::kNoLimit)},
          {"requests_per_minute", LimitJson(entry.requests_per_minute, 0)},
          {"tokens_per_minute", LimitJson(entry.tokens_per_minute, 0)},
          {"kv_guaranteed", rules.kv_guaranteed},
          {"kv_max", rules.kv_max ? json(*rules.kv_max) : json()},
          {"blocks",
           {{"pinned", blocks.pinned_blocks},
            {"idle", blocks.idle_blocks},
            {"reserved", blocks.reserved_blocks}}},
          {"running", use.running},
          {"waiting", use.waiting}};
}

const char* ModeName(CacheMode mode) {
  switch (mode) {
    case CacheMode::kPrefix:
      return "prefix";
    case CacheMode::kSequence:
      return "sequence";
    case CacheMode::kNone:
      return "none";
  }
  return "";
}

class CacheHandlers {
 public:
  CacheHandlers(Engine& engine, const KeyRing& keys, const Activity& activity,
                const TenantStores& stores)
      : keys_(keys),
        activity_(activity),
        sessions_(stores.sessions),
        eraser_(engine, keys, stores) {}

  Outcome State(const Call& call);
  Outcome Sequences(const Call& call);
  Outcome Prefixes(const Call& call) { return ListPrefixes(call, sessions_); }
  Outcome Erase(const Call& call) { return eraser_.Erase(call); }
  Outcome Tenants(const Call& call);
  Outcome Flush(const Call& call);

 private:
  const KeyRing& keys_;
  const Activity& activity_;
  SessionStore& sessions_;
  CacheEraser eraser_;
};

// Answers a tenant with sums over its own requests, if there are several keys.
Outcome CacheHandlers::State(const Call& call) {
  json body = PlanJson(call.engine.plan());
  const char* mode = ModeName(call.engine.options().cache_mode);
  const bool all = call.caller.is_admin || keys_.current()->num_tenants() <= 1;
  body["cache"] =
      all ? CacheJson(call.engine.Stats(), mode) : OwnJson(activity_.Of(call.tenant()), mode);
  std::optional<std::string> tenant;
  if (!all) tenant = call.tenant();
  body["cache"]["last_hour"] = HourJson(activity_.HourOf(tenant));
  if (all) body["cache"]["disk"] = DiskJson(call.engine.DiskStats());
  if (all) body["cache"]["remote"] = RemoteJson(call.engine.RemoteState());
  const SessionCounts kept = all ? sessions_.counts() : sessions_.ResponsesOf(call.tenant());
  body["cache"]["responses"] = {{"stored", kept.responses}, {"bytes", kept.response_bytes}};
  // Why sessions are not kept there; it tells nothing about others.
  if (const auto why = sessions_.no_file()) body["cache"]["disk"]["no_sessions"] = why->message;
  if (all) body["cost"] = CostJson(call.engine.Stats().cost);
  body["model"] = call.model.names.front();
  body["target"] = call.engine.target();
  return JsonResponse(body);
}

// Lists the caller's own sequences; the operator's key shows all.
Outcome CacheHandlers::Sequences(const Call& call) {
  std::optional<std::string> tenant;
  if (!call.caller.is_admin) tenant = call.tenant();
  return LaterAnswer{[&engine = call.engine, tenant = std::move(tenant)](LaterAnswer::Reply reply) {
    const uint32_t ctx_size = engine.card().ctx_size;
    engine.ListSequences(tenant, [ctx_size, reply](std::vector<SequenceState> states) {
      HttpResponse response;
      response.rest_bytes = states.size() * sizeof(SequenceState);
      response.rest = SequencesText(std::move(states), ctx_size);  // not on the engine's thread
      reply(std::move(response));
    });
  }};
}

Outcome CacheHandlers::Tenants(const Call& call) {
  const EngineStats stats = call.engine.Stats();
  const bool has_remote = call.engine.RemoteState().has_value();
  const auto row = [&](const TenantEntry& entry) {
    json tenant = TenantJson(entry, stats);
    if (!has_remote) return tenant;
    const auto epoch_of = [&](std::string_view owner) {
      const auto epoch = call.engine.RemoteEpochOf(owner);
      return epoch ? json(*epoch) : json();
    };
    tenant["remote_epoch"] = epoch_of(entry.name);
    if (entry.rules.cache_owner) {
      tenant["remote_group_epoch"] = epoch_of(*entry.rules.cache_owner);
    }
    return tenant;
  };
  const auto keys = keys_.current();
  json data = json::array();
  for (const TenantStats& tenant : stats.tenants) {
    if (tenant.name.empty() || keys->Find(tenant.name)) continue;
    data.push_back(row({.name = tenant.name}));
  }
  for (const auto& entry : keys->tenants()) data.push_back(row(*entry));
  return JsonResponse({{"object", "list"},
                       {"block_bytes", call.engine.plan().block_bytes},
                       {"data", std::move(data)}});
}

Outcome CacheHandlers::Flush(const Call& call) {
  if (!call.engine.DiskStats() && !call.engine.RemoteState()) {
    return ErrorResponse(
        {Code::kUnsupported, "there is nothing to flush: this server has no disk tier (--disk)"});
  }
  const bool shows_sizes = keys_.current()->num_tenants() <= 1;
  return LaterAnswer{[&engine = call.engine, shows_sizes](LaterAnswer::Reply reply) {
    engine.Flush([shows_sizes, reply = std::move(reply)](const Result<TierFlushed>& flushed) {
      if (!flushed) {
        return reply(ErrorResponse(
            shows_sizes ? flushed.error()
                        : Error{Code::kUnavailable, "the disk tier cannot be written now"}));
      }
      json body = {{"flushed", true}, {"durable", flushed->durable}};
      if (shows_sizes) {
        body["blocks"] = flushed->blocks;
        body["bytes"] = flushed->bytes;
      }
      reply(JsonResponse(body));
    });
  }};
}

}  // namespace

void AddCacheRoutes(Engine& engine, const KeyRing& keys, const Activity& activity,
                    const TenantStores& stores, RouteTable* table) {
  const auto own = std::make_shared<CacheHandlers>(engine, keys, activity, stores);
  using Handler = Outcome (CacheHandlers::*)(const Call&);
  const auto row = [&](std::string_view path, std::string_view method, Handler handler,
                       Access access, const char* summary) {
    return Route{.path = path,
                 .method = method,
                 .handler = std::bind_front(handler, own),
                 .access = access,
                 .description = {.summary = summary}};
  };
  table->Add(row("/v1/cache", "GET", &CacheHandlers::State, Access::kKey,
                 "The plan of the memory, and the state of the cache."));
  table->Add(row("/v1/cache/sequences", "GET", &CacheHandlers::Sequences, Access::kKey,
                 "The caller's requests that wait or run."));
  Route prefixes = row("/v1/cache/prefixes", "GET", &CacheHandlers::Prefixes, Access::kTenant,
                       "What the cache holds of the caller's prompts, as trees.");
  prefixes.description.parameters = {
      {"limit", fmt::format(R"({{"type":"integer","minimum":1,"maximum":{}}})", kMostPrefixRuns)}};
  table->Add(std::move(prefixes));
  Route erase = row("/v1/cache", "DELETE", &CacheHandlers::Erase, Access::kKey,
                    "Erases all that is cached for the caller, and the caller's sessions.");
  erase.work = Route::kPrepared;
  erase.also = Route::kDrains;
  erase.files = Route::kOtherFiles;
  table->Add(std::move(erase));
  table->Add(row("/v1/cache/tenants", "GET", &CacheHandlers::Tenants, Access::kSums,
                 "Tenants, their limits and requests; for the operator."));
  table->Add(row("/v1/cache/flush", "POST", &CacheHandlers::Flush, Access::kTenant,
                 "Answers when all that was cached before is on the disk."));
}

}  // namespace kvasir
