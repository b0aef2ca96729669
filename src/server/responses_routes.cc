#include "server/responses_routes.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "api/responses_request.h"
#include "http/errors.h"
#include "server/request_schema.h"

namespace kvasir {
namespace {

Outcome CountResponse(const Call& call) {
  const auto tokens = CountResponsesTokens(call.request.body, call.own_model());
  if (!tokens) return ErrorResponse(tokens.error());
  return JsonResponse({{"object", "response.input_tokens"}, {"input_tokens", *tokens}});
}

}  // namespace

void AddResponsesRoutes(GenerationStarter& generations, TurnPreparer& preparer, RouteTable* table) {
  const Route answer{.path = "/v1/responses",
                     .method = "POST",
                     .handler = [&generations, &preparer](const Call& call) -> Outcome {
                       return generations.StartChat(ParseResponsesRequest, call, "input", preparer);
                     },
                     .access = Access::kTenant,
                     .work = Route::kGeneration,
                     .for_model = Route::kTextModel,
                     .errors = Route::kResponsesErrors,
                     .description = {.summary = "Answers a chat, as OpenAI's Responses do.",
                                     .properties = ResponsesSchema(),
                                     .required = R"(["input"])",
                                     .streams = true}};
  table->Add(answer);
  table->Add(At("/responses", answer));
  table->Add({.path = "/v1/responses/input_tokens",
              .method = "POST",
              .handler = CountResponse,
              .access = Access::kTenant,
              .work = Route::kPrepared,
              .errors = Route::kResponsesErrors,
              .description = {.summary = "How many tokens the prompt of a response has.",
                              .properties = ResponsesSchema(),
                              .required = R"(["input"])"}});
}

}  // namespace kvasir
