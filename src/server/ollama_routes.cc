#include "server/ollama_routes.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "api/ollama_request.h"
#include "api/openai_request.h"
#include "base/clock.h"
#include "http/errors.h"
#include "http/json_body.h"
#include "server/request_schema.h"

namespace kvasir {
namespace {

using nlohmann::json;

json DetailsOf(const ModelCard& card) {
  return {{"parent_model", ""},
          {"format", "gguf"},
          {"family", card.architecture},
          {"families", {card.architecture}},
          {"parameter_size", fmt::format("{:.1f}M", static_cast<double>(card.parameters) / 1e6)},
          {"quantization_level", card.dtype}};
}

// The model as /api/tags and /api/ps list it.
json OllamaEntry(const Call& call, std::string_view name, const std::string& since) {
  const ModelCard& card = call.engine.card();
  const std::string full = std::string(name) + ":latest";
  return {{"name", full},
          {"model", full},
          {"modified_at", since},
          {"size", call.engine.plan().weights_bytes + call.engine.plan().mapped_bytes},
          {"digest", card.content},
          {"details", DetailsOf(card)}};
}

Outcome ShowModel(const Call& call) {
  const auto body = ParseBody(call.request.body);
  if (!body) return ErrorResponse(body.error());
  JsonFields fields(body->fields);
  std::string_view name = "default";
  fields.Text("model", &name);
  if (!fields.Has("model")) fields.Text("name", &name);
  if (fields.error()) return ErrorResponse(*fields.error());
  const auto known = CheckModel(std::string(WithoutLatest(name)), call.model);
  if (!known) return ErrorResponse(known.error());
  const ModelCard& card = call.engine.card();
  json capabilities = {"completion"};
  const ChatTemplate* chat_template = call.model.chat_template;
  if (call.model.calls) capabilities.push_back("tools");
  if (call.model.think) capabilities.push_back("thinking");
  const json facts = {{"general.architecture", card.architecture},
                      {"general.parameter_count", card.parameters},
                      {card.architecture + ".context_length", card.ctx_size},
                      {card.architecture + ".vocab_size", card.vocab_size}};
  return JsonResponse({{"modelfile", ""},
                       {"parameters", ""},
                       {"template", chat_template ? chat_template->source() : ""},
                       {"details", DetailsOf(card)},
                       {"model_info", facts},
                       {"capabilities", std::move(capabilities)}});
}

std::string TimeText() {
  return fmt::format("{:%FT%TZ}", fmt::gmtime(static_cast<std::time_t>(UnixS())));
}

// Answers a request without a prompt, by which Ollama's clients load a model, or unload it with
// keep_alive 0; absent: it has a prompt. Here the model stays loaded.
std::optional<HttpResponse> AnswerLoad(const Call& call, const std::string& prompt_field) {
  constexpr size_t kMostBytes = 4096;  // a longer body has a prompt, and is parsed once
  if (call.request.body.size() > kMostBytes) return std::nullopt;
  const auto body = ParseBody(call.request.body);
  if (!body || !body->fields.is_object()) return std::nullopt;
  JsonFields fields(body->fields);
  const JsonValue* prompt = fields.Find(prompt_field);
  const bool is_chat = prompt_field == "messages";
  const bool is_empty = prompt == nullptr || (prompt->size() == 0 &&
                                              (is_chat ? prompt->is_array() : prompt->is_string()));
  if (!is_empty || fields.Has("system") || fields.Has("images") || fields.Has("suffix")) {
    return std::nullopt;
  }
  std::string_view name = "default";
  fields.Text("model", &name);
  if (fields.error()) return ErrorResponse(*fields.error());
  if (const auto known = CheckModel(std::string(WithoutLatest(name)), call.model); !known) {
    return ErrorResponse(known.error());
  }
  const JsonValue* keep = fields.Find("keep_alive");
  const bool unloads = keep && ((keep->is_number() && keep->number() == 0) ||
                                (keep->is_string() && keep->text() == "0"));
  json answer = {{"model", name},
                 {"created_at", TimeText()},
                 {"done", true},
                 {"done_reason", unloads ? "unload" : "load"}};
  if (is_chat) {
    answer["message"] = {{"role", "assistant"}, {"content", ""}};
  } else {
    answer["response"] = "";
  }
  return JsonResponse(answer);
}

Route OllamaAnswer(std::string_view path, const char* summary, std::string properties,
                   const char* required, GenerationStarter::ParseChat parse,
                   const char* prompt_field, GenerationStarter& generations,
                   TurnPreparer& preparer) {
  return {.path = path,
          .method = "POST",
          .handler = [parse, prompt_field, &generations, &preparer](const Call& call) -> Outcome {
            if (auto loads = AnswerLoad(call, prompt_field)) return std::move(*loads);
            return generations.StartChat(parse, call, prompt_field, preparer);
          },
          .access = Access::kTenant,
          .work = Route::kGeneration,
          .for_model = Route::kTextModel,
          .errors = Route::kPlainErrors,
          .description = {.summary = summary,
                          .properties = std::move(properties),
                          .required = required,
                          .streams = true,
                          .stream_type = "application/x-ndjson"}};
}

}  // namespace

void AddOllamaRoutes(GenerationStarter& generations, TurnPreparer& preparer, RouteTable* table) {
  table->Add(OllamaAnswer("/api/chat", "Answers a chat, as Ollama does.", OllamaSchema(),
                          R"(["messages"])", ParseOllamaChat, "messages", generations, preparer));
  table->Add(OllamaAnswer("/api/generate", "Answers a text, as Ollama does.", OllamaSchema(),
                          nullptr, ParseOllamaGenerate, "prompt", generations, preparer));
  const std::string since = TimeText();
  table->Add({.path = "/api/tags",
              .method = "GET",
              .handler = [since](const Call& call) -> Outcome {
                json models = json::array();
                for (const std::string& name : call.model.names) {
                  models.push_back(OllamaEntry(call, name, since));
                }
                return JsonResponse({{"models", std::move(models)}});
              },
              .errors = Route::kPlainErrors,
              .description = {.summary = "The names of the model, as Ollama lists them."}});
  table->Add({.path = "/api/ps",
              .method = "GET",
              .handler = [since](const Call& call) -> Outcome {
                json entry = OllamaEntry(call, call.model.names.front(), since);
                entry["expires_at"] = "9999-12-31T23:59:59Z";  // it stays loaded
                entry["size_vram"] = 0;
                entry["context_length"] = call.engine.card().ctx_size;
                return JsonResponse({{"models", json::array({std::move(entry)})}});
              },
              .errors = Route::kPlainErrors,
              .description = {.summary = "The model that is loaded, as Ollama lists it."}});
  table->Add({.path = "/api/show",
              .method = "POST",
              .handler = ShowModel,
              .work = Route::kPrepared,
              .errors = Route::kPlainErrors,
              .description = {.summary = "What the model is and can do, as Ollama says it.",
                              .properties = R"("model":{"type":"string"},"name":{"type":"string"})",
                              .required = "[]"}});
  table->Add({.path = "/api/version",
              .method = "GET",
              .handler = [](const Call& call) -> Outcome {
                return JsonResponse({{"version", call.options.version}});
              },
              .errors = Route::kPlainErrors,
              .description = {.summary = "The version of the server."}});
  for (const char* path : {"/api/pull", "/api/push", "/api/create", "/api/copy", "/api/delete",
                           "/api/embed", "/api/embeddings"}) {
    table->Add({.path = path,
                .method = "",
                .handler = [](const Call& call) -> Outcome {
                  return ErrorResponse(
                      {Code::kUnsupported,
                       fmt::format("{} is not available: a server has one model, which it is "
                                   "started with, and embeds no texts",
                                   call.path),
                       "api"});
                },
                .errors = Route::kPlainErrors});
  }
}

}  // namespace kvasir
