#include "server/responses_routes.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "api/response_keeper.h"
#include "api/responses_request.h"
#include "api/responses_writer.h"
#include "base/json_writer.h"
#include "base/result.h"
#include "base/sizes.h"
#include "http/errors.h"
#include "http/json_body.h"
#include "server/forgets.h"
#include "server/request_schema.h"

namespace kvasir {
namespace {

constexpr size_t kMostItems = 100;

class ResponseHandlers {
 public:
  explicit ResponseHandlers(const ResponseSources& from) : from_(from) {}

  Outcome Create(const Call& call);
  Outcome Count(const Call& call);
  Outcome Show(const Call& call);
  Outcome Items(const Call& call);
  Outcome Delete(const Call& call) {
    from_.preparer.CancelAll();  // else it might be computed again
    return DeleteKept(call, from_.responses, from_.texts, "response");
  }
  Outcome DeleteUnread(const Call& call) {
    from_.preparer.CancelAll();
    return DeleteUnreadKept(call, from_.texts, "response");
  }

 private:
  // Returns what finds the caller's responses; empty where none are stored.
  FindResponse FinderOf(const Call& call) const;

  const ResponseSources from_;
};

FindResponse ResponseHandlers::FinderOf(const Call& call) const {
  if (from_.responses.limits().max_responses == 0) return {};
  return [&responses = from_.responses, tenant = call.tenant()](
             std::string_view id) -> Result<std::shared_ptr<const SessionState>> {
    KV_ASSIGN(SessionStore::Entry entry, responses.Find(tenant, id));
    return std::move(entry.state);
  };
}

Outcome ResponseHandlers::Create(const Call& call) {
  const uint64_t removals = from_.responses.Removals(call.tenant());
  auto parsed = ParseResponsesRequest(call.request.body, call.own_model(), FinderOf(call));
  if (!parsed) return ErrorResponse(parsed.error());
  Outcome outcome = from_.generations.StartChat(std::move(parsed->call), std::move(parsed->chat),
                                                call, "input", from_.preparer);
  auto* start = std::get_if<GenerationStart>(&outcome);
  if (!start || !parsed->to_store) return outcome;
  start->answer->KeepIn(
      std::make_unique<ResponseKeeper>(from_.responses, removals, std::move(*parsed->to_store),
                                       start->requests.front(), start->answer->answer()));
  start->answer_bytes = std::max(start->answer_bytes, start->answer->held_bytes());
  return outcome;
}

Outcome ResponseHandlers::Count(const Call& call) {
  const auto tokens = CountResponsesTokens(call.request.body, call.own_model(), FinderOf(call));
  if (!tokens) return ErrorResponse(tokens.error());
  return JsonResponse({{"object", "response.input_tokens"}, {"input_tokens", *tokens}});
}

// Reads a field of the query that is true or false.
Result<bool> ReadFlag(const Call& call, const char* name) {
  const std::optional<std::string> asked = QueryValue(call.request.target, name);
  if (!asked || asked == "false" || asked == "0") return false;
  if (asked == "true" || asked == "1") return true;
  return FailField(Code::kInvalidArgument, name, "is neither true nor false");
}

// Yields a stored response; `ids` are those of the prompt and the answer, which the cache has.
Parts ResponseText(std::shared_ptr<const SessionState> state, bool with_ids) {
  if (!with_ids || state->paths.empty()) {
    co_yield state->response->json;
    co_return;
  }
  const auto ids = IdsOf(state->paths, state->paths.size() - 1);
  co_yield BeginObject(state->response->json) + "\"ids\":";
  co_yield ListParts(ids);
  co_yield "}";
}

Outcome ResponseHandlers::Show(const Call& call) {
  auto entry = from_.responses.Find(call.tenant(), SegmentOf(call.path, 2));
  if (!entry) return ErrorResponse(entry.error());
  const auto streams = ReadFlag(call, "stream");
  if (!streams) return ErrorResponse(streams.error());
  if (*streams) {
    return ErrorResponse({Code::kUnsupported, "a stored response is not streamed", "stream"});
  }
  const auto with_ids = ReadFlag(call, "ids");
  if (!with_ids) return ErrorResponse(with_ids.error());
  HttpResponse response;
  response.rest = ResponseText(std::move(entry->state), *with_ids);
  return response;
}

Outcome ResponseHandlers::Items(const Call& call) {
  const std::string id(SegmentOf(call.path, 2));
  const auto entry = from_.responses.Find(call.tenant(), id);
  if (!entry) return ErrorResponse(entry.error());
  const std::string& target = call.request.target;
  ItemPage page;
  if (const auto asked = QueryValue(target, "limit")) {
    const std::optional<uint64_t> limit = ParseUint(*asked);
    if (!limit || *limit == 0 || *limit > kMostItems) {
      return ErrorResponse({Code::kInvalidArgument,
                            fmt::format("is not a number between 1 and {}", kMostItems), "limit"});
    }
    page.limit = *limit;
  }
  const std::string order = QueryValue(target, "order").value_or("desc");
  if (order != "asc" && order != "desc") {
    return ErrorResponse({Code::kInvalidArgument, "is neither asc nor desc", "order"});
  }
  page.is_ascending = order == "asc";
  page.after = QueryValue(target, "after").value_or("");
  auto items = InputItems(id, *entry->state, page);
  if (!items) return ErrorResponse(items.error());
  HttpResponse response;
  response.body = std::move(*items);
  return response;
}

}  // namespace

void AddResponsesRoutes(const ResponseSources& from, RouteTable* table) {
  const auto own = std::make_shared<ResponseHandlers>(from);
  const Route answer{.path = "/v1/responses",
                     .method = "POST",
                     .handler = std::bind_front(&ResponseHandlers::Create, own),
                     .access = Access::kTenant,
                     .work = Route::kGeneration,
                     .for_model = Route::kTextModel,
                     .files = Route::kSessionFile,
                     .reads = Route::kPreviousResponse,
                     .description = {.summary = "Answers a chat, as OpenAI's Responses do.",
                                     .properties = ResponsesSchema(),
                                     .required = R"(["input"])",
                                     .streams = true}};
  table->Add(answer);
  table->Add(At("/responses", answer));
  table->Add({.path = "/v1/responses/input_tokens",
              .method = "POST",
              .handler = std::bind_front(&ResponseHandlers::Count, own),
              .access = Access::kTenant,
              .work = Route::kPrepared,
              .for_model = Route::kTextModel,
              .files = Route::kSessionFile,
              .reads = Route::kPreviousResponse,
              .description = {.summary = "How many tokens the prompt of a response has.",
                              .properties = ResponsesSchema(),
                              .required = R"(["input"])"}});
  const std::string id = fmt::format(R"({{"type":"string","pattern":"{}"}})", kResponseIdPattern);
  const Route one{.path = "/v1/responses/{id}",
                  .method = "GET",
                  .handler = std::bind_front(&ResponseHandlers::Show, own),
                  .access = Access::kTenant,
                  .work = Route::kPrepared,
                  .names = SessionKind::kResponse,
                  .files = Route::kSessionFile,
                  .reads = Route::kOneSession,
                  .description = {.summary = "A stored response.",
                                  .parameters = {{"id", id}, {"ids", R"({"type":"boolean"})"}}}};
  table->Add(one);
  Route gone = one;
  gone.method = "DELETE";
  gone.handler = std::bind_front(&ResponseHandlers::Delete, own);
  gone.when_spent = std::bind_front(&ResponseHandlers::DeleteUnread, own);
  gone.also = Route::kQueues;
  gone.reads = Route::kAllSessions;
  gone.description = {.summary = "Deletes a stored response and forgets all of it.",
                      .parameters = {{"id", id}}};
  table->Add(std::move(gone));
  Route items = At("/v1/responses/{id}/input_items", one);
  items.handler = std::bind_front(&ResponseHandlers::Items, own);
  items.description = {
      .summary = "What a stored response had as input, with what it goes on from.",
      .parameters = {
          {"id", id},
          {"limit", fmt::format(R"({{"type":"integer","minimum":1,"maximum":{}}})", kMostItems)},
          {"order", R"({"enum":["asc","desc"]})"},
          {"after", R"({"type":"string"})"}}};
  table->Add(std::move(items));
}

}  // namespace kvasir
