#include "server/ollama_routes.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "api/embedding_request.h"
#include "api/infill_prompt.h"
#include "api/ollama_request.h"
#include "api/openai_request.h"
#include "api/written_answer.h"
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

// Lists the model as /api/tags and /api/ps have it.
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
  const auto known = CheckModel(name, call.model);
  if (!known) return ErrorResponse(known.error());
  const ModelCard& card = call.engine.card();
  const ChatTemplate* chat_template = call.model.chat_template;
  json capabilities = json::array();
  if (!card.decoder_start) capabilities.push_back("completion");
  if (chat_template && call.model.calls && chat_template->form().shows_tools) {
    capabilities.push_back("tools");
  }
  if (chat_template && call.model.think) capabilities.push_back("thinking");
  if (call.model.tokenizer && CheckInfill(call.model)) capabilities.push_back("insert");
  // Only a model that is made for it: Ollama's command line uses such a model for nothing else.
  if (card.pooling && call.model.no_embeddings.empty()) capabilities.push_back("embedding");
  const json facts = {{"general.architecture", card.architecture},
                      {"general.parameter_count", card.parameters},
                      {card.architecture + ".context_length", card.ctx_size},
                      {card.architecture + ".embedding_length", card.hidden_size},
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

// Answers a request without a prompt, by which Ollama's clients load a model.
HttpResponse LoadAnswer(GenerationCall parsed, const Call& call) {
  const WrittenAnswer answer(std::move(parsed.spec), 0, "", UnixS(), call.model.tokenizer,
                             std::move(parsed.writer));
  HttpResponse response;
  response.body = answer.Body().Rest();
  return response;
}

using ParseOllama = Result<GenerationCall> (*)(std::string_view body, const ModelView& model,
                                               std::string* chat);

Route OllamaAnswer(std::string_view path, const char* summary, std::string properties,
                   const char* required, ParseOllama parse, const char* prompt_field,
                   GenerationStarter& generations, TurnPreparer& preparer) {
  return {.path = path,
          .method = "POST",
          .handler = [parse, prompt_field, &generations, &preparer](const Call& call) -> Outcome {
            std::string chat;
            auto parsed = parse(call.request.body, call.own_model(), &chat);
            if (parsed && parsed->requests.empty()) return LoadAnswer(std::move(*parsed), call);
            return generations.StartChat(std::move(parsed), std::move(chat), call, prompt_field,
                                         preparer);
          },
          .access = Access::kTenant,
          .work = Route::kGeneration,
          .for_model = Route::kTextModel,
          .errors = &kPlainErrors,
          .description = {.summary = summary,
                          .properties = std::move(properties),
                          .required = required,
                          .streams = true,
                          .stream_type = "application/x-ndjson"}};
}

using ParseEmbed = Result<GenerationCall> (*)(std::string_view body, const ModelView& model);

Route OllamaEmbedding(std::string_view path, const char* input, ParseEmbed parse,
                      GenerationStarter& generations) {
  return {.path = path,
          .method = "POST",
          .handler = [parse, input, &generations](const Call& call) -> Outcome {
            auto parsed = parse(call.request.body, call.model);
            if (parsed && parsed->requests.empty()) return LoadAnswer(std::move(*parsed), call);
            return generations.Start(std::move(parsed), call, input);
          },
          .access = Access::kTenant,
          .work = Route::kGeneration,
          .for_model = Route::kTextModel,
          .errors = &kPlainErrors,
          .description = {.summary = "Embeds texts, as Ollama does.",
                          .properties = fmt::format(
                              R"("model":{{"type":"string"}},"{}":{{"type":["string","array"]}},
                              "dimensions":{{"type":"integer","minimum":1}})",
                              input),
                          .required = "[]"}};
}

}  // namespace

void AddOllamaRoutes(GenerationStarter& generations, TurnPreparer& preparer, RouteTable* table) {
  table->AddUnknown({.prefix = "/api",
                     .errors = &kPlainErrors,
                     .hint = "; OpenAI's API is at /v1, such as /v1/chat/completions"});
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
              .errors = &kPlainErrors,
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
              .errors = &kPlainErrors,
              .description = {.summary = "The model that is loaded, as Ollama lists it."}});
  table->Add({.path = "/api/show",
              .method = "POST",
              .handler = ShowModel,
              .work = Route::kPrepared,
              .errors = &kPlainErrors,
              .description = {.summary = "What the model is and can do, as Ollama says it.",
                              .properties = R"("model":{"type":"string"},"name":{"type":"string"})",
                              .required = "[]"}});
  table->Add({.path = "/api/version",
              .method = "GET",
              .handler = [](const Call& call) -> Outcome {
                return JsonResponse({{"version", call.options.version}});
              },
              .errors = &kPlainErrors,
              .description = {.summary = "The version of the server."}});
  table->Add(OllamaEmbedding("/api/embed", "input", ParseOllamaEmbed, generations));
  table->Add(OllamaEmbedding("/api/embeddings", "prompt", ParseOllamaEmbeddings, generations));
  for (const char* path : {"/api/pull", "/api/push", "/api/create", "/api/copy", "/api/delete"}) {
    table->Add({.path = path,
                .method = "",
                .handler = [](const Call& call) -> Outcome {
                  HttpResponse response = ErrorResponse(
                      {Code::kUnsupported,
                       fmt::format("{} is not available: a server has one model, which it is "
                                   "started with",
                                   call.path)});
                  response.status = 501;
                  return response;
                },
                .errors = &kPlainErrors});
  }
}

}  // namespace kvasir
