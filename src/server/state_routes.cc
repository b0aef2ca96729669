#include "server/state_routes.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "api/llama_request.h"
#include "api/rewritten_history.h"
#include "http/errors.h"
#include "observe/metrics.h"

namespace kvasir {
namespace {

using nlohmann::json;

// Says what the template shows of a chat with tools, by llama-server's names and ours.
json CapsJson(const ChatTemplate& chat_template) {
  const TemplateForm& form = chat_template.form();
  static constexpr const char* kForms[] = {"object", "text", "content"};
  return {{"supports_tools", form.shows_tools},
          {"supports_tool_calls", form.shows_calls},
          {"supports_parallel_tool_calls", form.shows_several_calls},
          {"supports_object_arguments", form.calls == TemplateForm::Calls::kObjectArguments},
          {"supports_system_role", form.shows_system},
          {"supports_string_content", !form.content_parts},
          {"supports_typed_content", form.content_parts},
          {"supports_tool_results", form.shows_results},
          {"supports_late_system", form.shows_late_system},
          {"tool_call_arguments", kForms[static_cast<size_t>(form.calls)]},
          {"tool_call_content", form.null_content ? "null" : "text"}};
}

class StateHandlers {
 public:
  StateHandlers(StateSources from, const ModelView& model)
      : from_(std::move(from)), prefix_stable_(IsPrefixStable(model)) {}

  Outcome Props(const Call& call);
  Outcome Ready(const Call& call);
  Outcome Metrics(const Call& call);

 private:
  const StateSources from_;
  const std::optional<bool> prefix_stable_;
};

Outcome Health(const Call&) { return JsonResponse({{"status", "ok"}}); }

Outcome StateHandlers::Props(const Call& call) {
  const ModelCard& card = call.engine.card();
  GenerateRequest defaults;
  defaults.sampling = call.model.sampling;
  defaults.max_tokens = call.model.max_tokens.value_or(defaults.max_tokens);
  const json params = LlamaSettings(defaults, {}, {});
  const ChatTemplate* chat_template = call.model.chat_template;
  json body = {
      {"default_generation_settings", {{"n_ctx", card.ctx_size}, {"params", params}}},
      {"total_slots", call.engine.options().parallel},
      {"model_alias", call.model.names.front()},
      {"model_path", card.path},
      {"model_ftype", card.dtype},
      {"endpoint_slots", call.options.has_slots},
      {"endpoint_props", false},
      {"endpoint_metrics", true},
      {"modalities", {{"vision", false}, {"audio", false}}},
      {"chat_template", chat_template ? chat_template->source() : ""},
      {"prefix_stable", prefix_stable_ ? json(*prefix_stable_) : json()},
      {"bos_token", call.model.tokenizer ? call.model.tokenizer->bos_text() : ""},
      {"eos_token", call.model.tokenizer ? call.model.tokenizer->eos_text() : ""},
      {"build_info", "kvasir " + call.options.version},
      {"target", call.engine.target()},
  };
  if (chat_template != nullptr) {
    const ChatTemplate& chosen = *chat_template->Choose(std::nullopt, /*has_tools=*/true);
    body["chat_template_caps"] = CapsJson(chosen);
    body["late_system"] = chosen.form().takes_late_system;
    body["same_role_twice"] = chosen.form().takes_same_role_twice;
    const ChatTemplate* with_tools = chat_template->Choose("tool_use", /*has_tools=*/true);
    if (with_tools) body["chat_template_tool_use"] = with_tools->source();
  }
  return JsonResponse(body);
}

// Shows the model's name only to callers with a valid key.
Outcome StateHandlers::Ready(const Call& call) {
  if (from_.is_stopping()) {
    return ErrorResponse({Code::kUnavailable, "the server is stopping"});
  }
  if (const Status model = call.engine.CheckModel(); !model) {
    // Without the path, because callers without a key get this answer too.
    return ErrorResponse({model.error().code,
                          "a file of the model was changed while the model is served: restart the "
                          "server (its log names the file)"});
  }
  json body = {{"status", "ready"}};
  if (call.caller.tenant || call.caller.is_admin) body["model"] = call.model.names.front();
  return JsonResponse(body);
}

Outcome StateHandlers::Metrics(const Call& call) {
  HttpResponse response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  const EngineStats stats = call.engine.Stats();
  const SessionCounts sessions = from_.sessions.counts();
  MetricsView view{.stats = stats,
                   .card = call.engine.card(),
                   .plan = call.engine.plan(),
                   .options = call.engine.options(),
                   .target = call.engine.target(),
                   .version = call.options.version,
                   .model_name = call.model.names.front(),
                   .by_tenant = from_.keys.current()->num_tenants() > 1,
                   .grammar_bytes = call.engine.GrammarBytes(),
                   .sessions = sessions.sessions,
                   .session_bytes = sessions.bytes,
                   .sessions_expired = sessions.expired,
                   .stored_responses = sessions.responses,
                   .stored_response_bytes = sessions.response_bytes,
                   .process = ReadProcessUsage(),
                   .adapters = call.engine.Adapters(),
                   .disk = call.engine.DiskStats(),
                   .remote = call.engine.RemoteState(),
                   .events = call.engine.EventStats(),
                   .read_limit = call.options.read_limit};
  if (call.options.tls) view.tls_ends_unix_s = call.options.tls->ends_unix_s();
  if (from_.spans) view.spans = from_.spans->counts();
  const KeyRing::Reloads reloads = from_.keys.reloads();
  view.reloads_done = reloads.done;
  view.reloads_refused = reloads.refused;
  response.body = PrometheusText(view);
  response.is_metrics = true;
  // As llama.cpp's server says when its counters began.
  response.headers.emplace_back("Process-Start-Time-Unix",
                                fmt::format("{:.0f}", view.process.start_seconds));
  return response;
}

}  // namespace

void AddStateRoutes(StateSources from, const ModelView& model, RouteTable* table) {
  const auto own = std::make_shared<StateHandlers>(std::move(from), model);
  table->Add({.path = "/props",
              .method = "GET",
              .handler = std::bind_front(&StateHandlers::Props, own),
              .description = {.summary = "Context, template and special tokens."}});
  const Route health{.path = "/health",
                     .method = "GET",
                     .handler = Health,
                     .access = Access::kOpen,
                     .description = {.summary = "200 while the process lives."}};
  table->Add(health);
  table->Add(At("/v1/health", health));
  table->Add({.path = "/ready",
              .method = "GET",
              .handler = std::bind_front(&StateHandlers::Ready, own),
              .access = Access::kOpen,
              .description = {.summary = "200 while the server takes requests."}});
  table->Add({.path = "/metrics",
              .method = "GET",
              .handler = std::bind_front(&StateHandlers::Metrics, own),
              .access = Access::kSums,
              .description = {.summary = "Prometheus text.", .content_type = "text/plain"}});
}

}  // namespace kvasir
