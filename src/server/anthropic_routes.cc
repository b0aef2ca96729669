#include "server/anthropic_routes.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "api/anthropic_messages.h"
#include "api/chat_tokens.h"
#include "http/errors.h"
#include "http/json_body.h"

namespace kvasir {
namespace {

constexpr const char* kMessagesSchema =
    R"("model":{"type":"string"},"system":{"type":["string","array"]},
    "messages":{"type":"array","minItems":1,"items":{"type":"object","required":["role","content"],
    "properties":{"role":{"enum":["user","assistant"]},"content":{"type":["string","array"]}}}},
    "tools":{"type":"array","items":{"type":"object","required":["name"]}})";

Outcome CountMessages(const Call& call) {
  std::string chat;
  {
    const auto body = ParseBody(call.request.body);
    if (!body) return ErrorResponse(body.error());
    auto converted = ChatBodyOf(body->fields);
    if (!converted) return ErrorResponse(converted.error());
    chat = std::move(*converted);
  }
  const auto tokens = CountChatTokens(chat, call.model);
  if (!tokens) return ErrorResponse(tokens.error());
  return JsonResponse({{"input_tokens", *tokens}});
}

}  // namespace

void AddAnthropicRoutes(RouteTable* table) {
  table->Add({.path = "/v1/messages/count_tokens",
              .method = "POST",
              .handler = CountMessages,
              .access = Access::kTenant,
              .work = Route::kPrepared,
              .description = {.summary = "How many tokens the prompt of a call of Anthropic's has.",
                              .properties = kMessagesSchema,
                              .required = R"(["messages"])"}});
  for (const char* path : {"/v1/messages", "/v1/messages/batches", "/v1/messages/batches/*"}) {
    table->Add(NotYet(path));
  }
}

}  // namespace kvasir
