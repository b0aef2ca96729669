// The endpoints around generating: models, cache, state.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "api/logprobs_json.h"
#include "base/hex.h"
#include "base/log.h"
#include "http/json_fields.h"
#include "kvasir/session_file.h"
#include "observe/metrics.h"
#include "plan/plan_json.h"
#include "server/service_routes.h"

namespace kvasir {
namespace {

using nlohmann::json;

json ModelEntry(const std::string& name, const std::vector<std::string>& names,
                const std::vector<std::string>& tags, const ModelCard& card, int64_t created) {
  return {{"id", name},
          {"aliases", names},
          {"tags", tags},
          {"object", "model"},
          {"created", created},
          {"owned_by", "kvasir"},
          {"kind", card.decoder_start ? "translation" : "text"},
          {"max_model_len", card.ctx_size},
          {"meta",
           {{"architecture", card.architecture},
            {"dtype", card.dtype},
            {"n_vocab", card.vocab_size},
            {"n_ctx", card.ctx_size},
            {"n_ctx_train", card.max_positions},
            {"n_params", card.parameters}}}};
}

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
            {"recomputed", stats.recomputed_tokens},
            {"generated", stats.generated_tokens}}},
          {"cursors", stats.cursors},
          {"cursor_hits", stats.cursor_hits},
          {"waste", stats.waste},
          {"worst_waste", stats.worst_waste}};
}

// Milliseconds of a step by its rows, and what each GiB of KV that they see adds.
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
            {"generated", own.generated}}}};
}

// `shows_sizes`: with several tenants, the disk's figures would tell of others' keys.
json ErasureJson(const Erasure& erasure, size_t sessions, bool has_disk, bool shows_sizes) {
  json body = {
      {"erased", true},           {"tiers", json::array({"pool"})}, {"tokens", erasure.tokens},
      {"blocks", erasure.blocks}, {"cursors", erasure.cursors},     {"sessions", sessions}};
  if (!has_disk) return body;
  body["tiers"].push_back("disk");
  if (shows_sizes) {
    body["disk_blocks"] = erasure.disk_blocks;
    body["disk_bytes"] = erasure.disk_bytes;
  }
  body["locked_stores"] = erasure.locked_stores;
  return body;
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

// Says for callers why kept sessions stay that this server has not opened: without their place.
std::string WhyNotErased(const Error& error) {
  Log(LogLevel::kWarning, "kept sessions cannot be erased", LogField("why", error.message));
  return error.code == Code::kUnavailable ? "another server has their file"
                                          : "the disk that has them fails";
}

// What an erase could not reach; "": nothing.
std::string WhatStays(const std::string& sessions, uint32_t locked_stores) {
  if (locked_stores == 0) return sessions;
  return fmt::format(
      "{}{}{} open in other servers, which must be asked too", sessions,
      sessions.empty() ? "" : "; ",
      locked_stores == 1 ? "a store that is" : fmt::format("{} stores that are", locked_stores));
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

}  // namespace

Outcome Service::Models(const Call&) {
  const json entry =
      ModelEntry(model_.names.front(), model_.names, options_.tags, engine_.card(), started_);
  return JsonResponse({{"object", "list"}, {"data", json::array({entry})}});
}

Outcome Service::OneModel(const Call& call) {
  const auto name =
      CheckModel(PercentDecoded(call.path.substr(call.path.find("models/") + 7)), model_);
  if (!name) return ErrorResponse(name.error());
  return JsonResponse(ModelEntry(*name, model_.names, options_.tags, engine_.card(), started_));
}

// With several keys a tenant sees only sums over its own requests.
Outcome Service::CacheState(const Call& call) {
  json body = PlanJson(engine_.plan());
  const char* mode = ModeName(engine_.options().cache_mode);
  const bool all = call.caller.is_admin || credentials()->num_tenants() <= 1;
  body["cache"] =
      all ? CacheJson(engine_.Stats(), mode) : OwnJson(activity_.Of(call.tenant()), mode);
  if (all) body["cache"]["disk"] = DiskJson(engine_.DiskStats());
  // Why sessions are not kept there; it tells nothing about others.
  if (const auto why = sessions_.no_file()) body["cache"]["disk"]["no_sessions"] = why->message;
  if (all) body["cost"] = CostJson(engine_.Stats().cost);
  body["model"] = model_.names.front();
  body["target"] = engine_.target();
  return JsonResponse(body);
}

// Whether the caller may name another one whose cache is erased, and whether that is a name.
std::optional<HttpResponse> Service::CheckOther(const std::string& field,
                                                const std::optional<std::string>& name,
                                                const Caller& caller) const {
  if (!name) return std::nullopt;
  if (auto refused = CheckAdmin(fmt::format("?{}=", field), caller)) return refused;
  if (IsTenantName(*name)) return std::nullopt;
  return ErrorResponse({.code = Code::kInvalidArgument,
                        .message = fmt::format("'{}' {}", *name, kTenantNameRule),
                        .field = field});
}

// The caller's own sessions, its cache and its share group's. With ?tenant=T those of T; with
// ?share_group=G that of G. The file of --keys need not have them any more: what is stored stays
// when it changes.
Outcome Service::EraseCache(const Call& call) {
  auto tenant = QueryValue(call.request.target, "tenant");
  const auto group = QueryValue(call.request.target, "share_group");
  if (!tenant && !group && !call.caller.tenant) return NoTenant();
  if (tenant != call.caller.tenant) {
    if (auto refused = CheckOther("tenant", tenant, call.caller)) return std::move(*refused);
  }
  if (auto refused = CheckOther("share_group", group, call.caller)) return std::move(*refused);
  if (!tenant && !group) tenant = call.caller.tenant;
  std::vector<std::string> owners;
  if (tenant) {
    owners.push_back(*tenant);
    const auto entry = credentials()->Find(*tenant);
    if (entry && entry->rules.cache_owner) owners.push_back(*entry->rules.cache_owner);
  }
  if (group) owners.push_back(OwnerOfGroup(*group));
  const bool has_disk = engine_.DiskStats().has_value();
  const bool shows_sizes = credentials()->num_tenants() <= 1;
  Result<size_t> removed = 0;
  if (tenant) removed = sessions_.RemoveAll(*tenant);
  const size_t sessions = removed.value_or(0);
  std::string stays;
  if (!removed) stays = "kept sessions: " + removed.error().message;
  if (tenant && has_disk && !sessions_.file()) {  // also where this server keeps no sessions
    const Status erased = EraseUnopened(SessionFileOptionsOf(engine_), SessionOwnerOf(*tenant));
    const auto no_file = sessions_.no_file();
    if (!erased) {
      stays = "kept sessions: " + (no_file ? no_file->message : WhyNotErased(erased.error()));
    }
    // It was opened meanwhile: with all that it has.
    if (sessions_.file()) {
      const Result<size_t> others = sessions_.RemoveAll(*tenant);
      stays = others ? "" : "kept sessions: " + others.error().message;
    }
  }
  preparer_.CancelAll();
  slots_.ForgetAll();
  if (tenant) pieces_.Erase(*tenant);
  if (group) pieces_.EraseAll();  // of any tenant in it
  return LaterAnswer{[this, sessions, has_disk, shows_sizes, stays = std::move(stays),
                      owners = std::move(owners)](LaterAnswer::Reply reply) {
    erase_queue_.EraseAll(owners, [=, reply = std::move(reply)](const Erasure& erasure) {
      const std::string kept = WhatStays(stays, erasure.locked_stores);
      if (!kept.empty()) {
        return reply(ErrorResponse(
            {Code::kUnavailable,
             fmt::format("memory is erased, but this stays on the disk: {}{}{}", kept,
                         erasure.error ? "; " : "", erasure.error ? erasure.error->message : "")}));
      }
      reply(erasure.error ? ErrorResponse(*erasure.error)
                          : JsonResponse(ErasureJson(erasure, sessions, has_disk, shows_sizes)));
    });
  }};
}

// The caller's own sequences; the operator's key shows all.
Outcome Service::ListSequences(const Call& call) {
  std::optional<std::string> tenant;
  if (!call.caller.is_admin) tenant = call.tenant();
  return LaterAnswer{[this, tenant = std::move(tenant)](LaterAnswer::Reply reply) {
    const uint32_t ctx_size = engine_.card().ctx_size;
    engine_.ListSequences(tenant, [ctx_size, reply](std::vector<SequenceState> states) {
      HttpResponse response;
      response.rest_bytes = states.size() * sizeof(SequenceState);
      response.rest = SequencesText(std::move(states), ctx_size);  // not on the engine's thread
      reply(std::move(response));
    });
  }};
}

Outcome Service::ListTenants(const Call&) {
  const EngineStats stats = engine_.Stats();
  const auto keys = credentials();
  json data = json::array();
  for (const TenantStats& tenant : stats.tenants) {
    if (tenant.name.empty() || keys->Find(tenant.name)) continue;
    data.push_back(TenantJson({.name = tenant.name}, stats));
  }
  for (const auto& entry : keys->tenants()) data.push_back(TenantJson(*entry, stats));
  return JsonResponse(
      {{"object", "list"}, {"block_bytes", engine_.plan().block_bytes}, {"data", std::move(data)}});
}

Outcome Service::FlushCache(const Call&) {
  if (!engine_.DiskStats()) {
    return ErrorResponse(
        {Code::kUnsupported, "there is nothing to flush: this server has no disk tier (--disk)"});
  }
  const bool shows_sizes = credentials()->num_tenants() <= 1;
  return LaterAnswer{[this, shows_sizes](LaterAnswer::Reply reply) {
    engine_.Flush([shows_sizes, reply = std::move(reply)](const Result<TierFlushed>& flushed) {
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

namespace {

// What the template shows of a chat with tools, by llama-server's names; and ours.
json CapsJson(const ChatTemplate& chat_template) {
  const TemplateForm& form = chat_template.form();
  static constexpr const char* kForms[] = {"object", "text", "content"};
  return {{"supports_tools", form.shows_tools},
          {"supports_tool_calls", form.shows_calls},
          {"supports_parallel_tool_calls", form.shows_several_calls},
          {"supports_object_arguments", form.calls == TemplateForm::Calls::kObjectArguments},
          {"supports_system_role", form.shows_system},
          {"supports_string_content", true},
          {"supports_typed_content", false},
          {"supports_tool_results", form.shows_results},
          {"supports_late_system", form.shows_late_system},
          {"tool_call_arguments", kForms[static_cast<size_t>(form.calls)]},
          {"tool_call_content", form.null_content ? "null" : "text"}};
}

}  // namespace

Outcome Service::Props(const Call&) {
  const ModelCard& card = engine_.card();
  GenerateRequest defaults;
  defaults.sampling = model_.sampling;
  defaults.max_tokens = model_.max_tokens.value_or(defaults.max_tokens);
  const json params = LlamaSettings(defaults, {}, {});
  json body = {
      {"default_generation_settings", {{"n_ctx", card.ctx_size}, {"params", params}}},
      {"total_slots", engine_.options().parallel},
      {"model_alias", model_.names.front()},
      {"model_path", card.path},
      {"model_ftype", card.dtype},
      {"endpoint_slots", options_.has_slots},
      {"endpoint_props", false},
      {"endpoint_metrics", true},
      {"modalities", {{"vision", false}, {"audio", false}}},
      {"chat_template", template_text_},
      {"prefix_stable", prefix_stable_ ? json(*prefix_stable_) : json()},
      {"bos_token", model_.tokenizer ? model_.tokenizer->bos_text() : ""},
      {"eos_token", model_.tokenizer ? model_.tokenizer->eos_text() : ""},
      {"build_info", "kvasir " + options_.version},
      {"target", engine_.target()},
  };
  if (model_.chat_template != nullptr) {
    body["chat_template_caps"] = CapsJson(*model_.chat_template->Choose(std::nullopt, true));
    const ChatTemplate* with_tools = model_.chat_template->Choose("tool_use", /*has_tools=*/true);
    if (with_tools) body["chat_template_tool_use"] = with_tools->source();
  }
  return JsonResponse(body);
}

Outcome Service::Health(const Call&) { return JsonResponse({{"status", "ok"}}); }

// Shows the model's name only to callers with a valid key.
Outcome Service::Ready(const Call& call) {
  if (draining_.load(std::memory_order_relaxed) || leaving_.load(std::memory_order_relaxed)) {
    return ErrorResponse({Code::kUnavailable, "the server is stopping"});
  }
  if (const Status model = engine_.CheckModel(); !model) {
    // Without the path, because callers without a key get this answer too.
    return ErrorResponse({model.error().code,
                          "a file of the model was changed while the model is served: restart the "
                          "server (its log names the file)"});
  }
  json body = {{"status", "ready"}};
  if (call.caller.tenant || call.caller.is_admin) body["model"] = model_.names.front();
  return JsonResponse(body);
}

Outcome Service::Metrics(const Call&) {
  HttpResponse response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  const EngineStats stats = engine_.Stats();
  const SessionCounts sessions = sessions_.counts();
  MetricsView view{.stats = stats,
                   .card = engine_.card(),
                   .plan = engine_.plan(),
                   .options = engine_.options(),
                   .target = engine_.target(),
                   .version = options_.version,
                   .model_name = model_.names.front(),
                   .by_tenant = credentials()->num_tenants() > 1,
                   .grammar_bytes = engine_.GrammarBytes(),
                   .sessions = sessions.sessions,
                   .session_bytes = sessions.bytes,
                   .sessions_expired = sessions.expired,
                   .process = ReadProcessUsage(),
                   .disk = engine_.DiskStats(),
                   .read_limit = options_.read_limit};
  if (spans_) view.spans = spans_->counts();
  view.reloads_done = reloads_done_.load(std::memory_order_relaxed);
  view.reloads_refused = reloads_refused_.load(std::memory_order_relaxed);
  response.body = PrometheusText(view);
  response.is_metrics = true;
  // As llama.cpp's server says when its counters began.
  response.headers.emplace_back("Process-Start-Time-Unix",
                                fmt::format("{:.0f}", view.process.start_seconds));
  return response;
}

Outcome Service::Home(const Call&) {
  return JsonResponse({{"name", "kvasir"},
                       {"version", options_.version},
                       {"model", model_.names.front()},
                       {"openai_base_url_path", "/v1"},
                       {"endpoints", Endpoints()}});
}

}  // namespace kvasir
