#include "server/openai_routes.h"

#include <fmt/format.h>

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "api/chat_tokens.h"
#include "api/openai_request.h"
#include "api/request_limits.h"
#include "base/result.h"
#include "http/json_body.h"
#include "server/request_schema.h"

namespace kvasir {
namespace {

class OpenAiHandlers {
 public:
  OpenAiHandlers(GenerationStarter& generations, TurnPreparer& preparer)
      : generations_(generations), preparer_(preparer) {}

  Outcome Chat(const Call& call) {
    const std::string& body = call.request.body;
    return generations_.StartChat(ParseChatRequest(body, call.own_model()), body, call, "messages",
                                  preparer_);
  }

  Outcome Complete(const Call& call) {
    return generations_.Start(ParseCompletionRequest(call.request.body, call.model), call,
                              "prompt");
  }

 private:
  GenerationStarter& generations_;
  TurnPreparer& preparer_;
};

Outcome CountChat(const Call& call) {
  const auto tokens = CountChatTokens(call.request.body, call.model);
  if (!tokens) return ErrorResponse(tokens.error());
  return JsonResponse({{"object", "response.input_tokens"}, {"input_tokens", *tokens}});
}

}  // namespace

void AddOpenAiRoutes(GenerationStarter& generations, TurnPreparer& preparer, RouteTable* table) {
  const auto own = std::make_shared<OpenAiHandlers>(generations, preparer);
  const Route chat{.path = "/v1/chat/completions",
                   .method = "POST",
                   .handler = std::bind_front(&OpenAiHandlers::Chat, own),
                   .access = Access::kTenant,
                   .work = Route::kGeneration,
                   .for_model = Route::kTextModel,
                   .description = {.summary = "Answers a chat.",
                                   .properties = JoinedFields(
                                       {MessagesSchema(), SamplingSchema(), AnswerSchema()}),
                                   .required = R"(["messages"])",
                                   .streams = true}};
  table->Add(chat);
  table->Add(At("/chat/completions", chat));
  Route count{.path = "/v1/chat/completions/input_tokens",
              .method = "POST",
              .handler = CountChat,
              .access = Access::kTenant,
              .work = Route::kPrepared,
              .for_model = Route::kTextModel,
              .description = {.summary = "How many tokens the prompt of a chat has.",
                              .properties = MessagesSchema(),
                              .required = R"(["messages"])"}};
  table->Add(count);
  count.description.summary = "The same.";
  table->Add(At("/chat/completions/input_tokens", std::move(count)));
  const std::string own_fields = fmt::format(R"("echo":{{"type":"boolean"}},
                  "logprobs":{{"type":"integer","minimum":0,"maximum":{}}},
                  "add_special_tokens":{{"type":"boolean"}})",
                                             kMaxTopLogprobs);
  table->Add({.path = "/v1/completions",
              .method = "POST",
              .handler = std::bind_front(&OpenAiHandlers::Complete, own),
              .access = Access::kTenant,
              .work = Route::kGeneration,
              .for_model = Route::kTextModel,
              .description = {.summary = "Continues a text, or token ids.",
                              .properties = JoinedFields({AnyPromptSchema(), SamplingSchema(),
                                                          SpecialsSchema(), own_fields}),
                              .required = R"(["prompt"])",
                              .streams = true}});
}

}  // namespace kvasir
