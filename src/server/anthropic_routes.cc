#include "server/anthropic_routes.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "api/anthropic_request.h"
#include "api/anthropic_writer.h"
#include "http/errors.h"
#include "server/request_schema.h"

namespace kvasir {
namespace {

Outcome CountMessages(const Call& call) {
  const auto tokens = CountMessagesTokens(call.request.body, call.own_model());
  if (!tokens) return ErrorResponse(tokens.error());
  return JsonResponse({{"input_tokens", *tokens}});
}

void ShapeAnthropicError(const HttpRequest& request, int status, nlohmann::json* body) {
  nlohmann::json& error = body->at("error");
  error = AnthropicError(error, status);
  (*body)["type"] = "error";
  (*body)["request_id"] = request.id;
}

constexpr ErrorShape kAnthropicErrors{
    .name = "AnthropicError",
    .schema = R"({"type":"object","required":["type","error","request_id"],"properties":{
      "type":{"const":"error"},
      "error":{"type":"object","required":["type","message"]}}})",
    .reshape = ShapeAnthropicError};

}  // namespace

void AddAnthropicRoutes(GenerationStarter& generations, TurnPreparer& preparer, RouteTable* table) {
  table->Add({.path = "/v1/messages",
              .method = "POST",
              .handler = [&generations, &preparer](const Call& call) -> Outcome {
                std::string chat;
                auto parsed = ParseMessagesRequest(call.request.body, call.own_model(), &chat);
                return generations.StartChat(std::move(parsed), std::move(chat), call, "messages",
                                             preparer);
              },
              .access = Access::kTenant,
              .work = Route::kGeneration,
              .for_model = Route::kTextModel,
              .errors = &kAnthropicErrors,
              .description = {
                  .summary = "Answers a chat, as Anthropic's API does.",
                  .properties = JoinedFields({AnthropicPromptSchema(), AnthropicAnswerSchema()}),
                  .required = R"(["messages","max_tokens"])",
                  .streams = true}});
  table->Add({.path = "/v1/messages/count_tokens",
              .method = "POST",
              .handler = CountMessages,
              .access = Access::kTenant,
              .work = Route::kPrepared,
              .for_model = Route::kTextModel,
              .errors = &kAnthropicErrors,
              .description = {.summary = "How many tokens the prompt of a call of Anthropic's has.",
                              .properties = AnthropicPromptSchema(),
                              .required = R"(["messages"])"}});
  for (const char* path : {"/v1/messages/batches", "/v1/messages/batches/*"}) {
    Route batches = NotYet(path);
    batches.errors = &kAnthropicErrors;
    table->Add(std::move(batches));
  }
}

}  // namespace kvasir
