#include "server/session_routes.h"

#include <fmt/format.h>

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "api/request_limits.h"
#include "api/session_body.h"
#include "api/session_prompt.h"
#include "base/json_writer.h"
#include "base/result.h"
#include "base/sizes.h"
#include "http/errors.h"
#include "http/json_body.h"
#include "server/forgets.h"
#include "server/request_schema.h"
#include "server/session_generate.h"
#include "server/session_json.h"

namespace kvasir {
namespace {

using nlohmann::ordered_json;

constexpr size_t kListed = 20, kMostListed = 100;

// Reads the number of messages that a body names; without one it is `all`.
Result<uint64_t> ReadCount(std::string_view body, std::optional<uint64_t> all,
                           std::vector<std::string>* ignored) {
  KV_ASSIGN(const JsonBody parsed, ParseBody(body.empty() && all ? "{}" : body));
  JsonFields fields(parsed.fields);
  const auto count = fields.Integer("messages", 0, INT64_MAX);
  if (!count && !all) fields.Fail("messages", "is missing: how many messages stay");
  if (fields.error()) return tl::unexpected(*fields.error());
  *ignored = fields.Unread();
  return count ? static_cast<uint64_t>(*count) : *all;
}

// Reads the part that a body of forget names.
Result<SessionPart> ReadPart(std::string_view body, const SessionState& state) {
  KV_ASSIGN(const JsonBody parsed, ParseBody(body));
  JsonFields fields(parsed.fields);
  std::string segment;
  fields.String("segment", &segment);
  const auto index = fields.Integer("index", 0, INT64_MAX);
  uint32_t begin = 0, end = 0;
  fields.Unsigned("begin", 0, UINT32_MAX, &begin);
  fields.Unsigned("end", 0, UINT32_MAX, &end);
  const bool has_begin = fields.Has("begin"), has_end = fields.Has("end");
  if (fields.Has("segment") && (index || has_begin || has_end)) {
    fields.Fail("segment", "stands alone: give it, or an index with begin and end or without");
  }
  if (!fields.Has("segment") && !index) fields.Fail("index", "is missing; or give a segment");
  if (has_begin != has_end) fields.Fail(has_begin ? "end" : "begin", "is missing");
  if (fields.error()) return tl::unexpected(*fields.error());
  if (fields.Has("segment")) return FindSegment(state, segment);
  SessionPart part{static_cast<size_t>(*index), begin, std::nullopt};
  if (has_end) part.end = end;
  return part;
}

// Replaces the state of the call's session and answers with it.
Outcome Become(const Call& call, Result<SessionState> state,
               const std::vector<std::string>& ignored) {
  if (!state) return ErrorResponse(state.error());
  const Status replaced = call.turn->Replace(std::move(*state));
  if (!replaced) return ErrorResponse(replaced.error());
  const auto entry = call.turn->Read();
  return entry ? SessionResponse(*entry, ignored) : ErrorResponse(entry.error());
}

class SessionHandlers {
 public:
  explicit SessionHandlers(const SessionSources& from)
      : sessions_(from.sessions), texts_(from.texts), generator_(from.generations, from.preparer) {}

  Outcome Create(const Call& call);
  Outcome List(const Call& call);
  Outcome Show(const Call& call);
  Outcome Delete(const Call& call);
  Outcome DeleteUnread(const Call& call);
  Outcome AppendTo(const Call& call);
  Outcome EditMessage(const Call& call);
  Outcome EditSystem(const Call& call);
  Outcome Generate(const Call& call) { return generator_.Generate(call); }
  Outcome Fork(const Call& call);
  Outcome TruncateOne(const Call& call);
  Outcome Forget(const Call& call);

 private:
  SessionStore& sessions_;
  KeptTexts& texts_;
  SessionGenerator generator_;
};

Outcome SessionHandlers::Create(const Call& call) {
  auto body = ParseBody(call.request.body.empty() ? "{}" : call.request.body, kChatIds);
  if (!body) return ErrorResponse(body.error());
  JsonFields fields(body->fields);
  if (!call.model.tokenizer) return ErrorResponse(NoTextError("messages", call.model));
  auto setup = ReadSetup(fields, call.model, &body->tree);
  if (!setup) return ErrorResponse(setup.error());
  auto messages = ReadFirstMessages(fields, call.model, &body->tree);
  if (!messages) return ErrorResponse(messages.error());
  SessionStore own = sessions_.Of(call.tenant());
  auto kept = own.Keep(std::move(*setup));
  if (!kept) return ErrorResponse(kept.error());
  SessionState empty;
  empty.setup = std::move(*kept);
  auto state = Append(own, empty, std::move(*messages));
  if (!state) return ErrorResponse(state.error());
  const auto prompt = PromptOf(*state, call.own_model());
  if (prompt) {
    state->tokens = static_cast<uint32_t>(prompt->chat.ids.size());
  } else if (prompt.error().code == Code::kExhausted || prompt.error().code == Code::kUnsupported) {
    return ErrorResponse(prompt.error());
  }
  const auto entry = sessions_.Create(call.tenant(), std::move(*state));
  if (!entry) return ErrorResponse(entry.error());
  return SessionResponse(*entry, fields.Unread(), 201);
}

Outcome SessionHandlers::List(const Call& call) {
  const std::optional<std::string> asked = QueryValue(call.request.target, "limit");
  const std::optional<uint64_t> limit = asked ? ParseUint(*asked) : kListed;
  if (!limit || *limit == 0 || *limit > kMostListed) {
    return ErrorResponse({Code::kInvalidArgument,
                          fmt::format("is not a number between 1 and {}", kMostListed), "limit"});
  }
  const std::optional<std::string> after = QueryValue(call.request.target, "after");
  const auto page = sessions_.List(call.tenant(), after, *limit);
  if (!page) return ErrorResponse(page.error());
  ordered_json data = ordered_json::array();
  for (const SessionStore::Entry& entry : page->entries) data.push_back(SessionJson(entry));
  const auto id_of = [&](const auto& entries, bool first) {
    return entries.empty() ? ordered_json()
                           : ordered_json(first ? entries.front().id : entries.back().id);
  };
  HttpResponse response;
  const ordered_json list = {{"object", "list"},
                             {"data", std::move(data)},
                             {"first_id", id_of(page->entries, true)},
                             {"last_id", id_of(page->entries, false)},
                             {"has_more", page->has_more}};
  response.body = Dump(list);
  return response;
}

Outcome SessionHandlers::Show(const Call& call) {
  auto entry = sessions_.Find(call.tenant(), SegmentOf(call.path, 2));
  if (!entry) return ErrorResponse(entry.error());
  const std::optional<std::string> asked = QueryValue(call.request.target, "ids");
  const bool with_ids = asked == "true" || asked == "1";
  if (asked && !with_ids && asked != "false" && asked != "0") {
    return ErrorResponse({Code::kInvalidArgument, "is neither true nor false", "ids"});
  }
  auto prompt = PromptOf(*entry->state, call.own_model());
  if (!prompt && with_ids) return ErrorResponse(prompt.error());
  HttpResponse response;
  std::optional<ChatPrompt> chat;
  if (prompt) {
    chat = std::move(prompt->chat);
    response.rest_bytes = chat->ids.size() * sizeof(TokenId);
  }
  response.rest = WholeSession(std::move(*entry), std::move(chat), with_ids);
  return response;
}

Outcome SessionHandlers::AppendTo(const Call& call) {
  const auto entry = call.turn->Read();
  if (!entry) return ErrorResponse(entry.error());
  auto body = ParseBody(call.request.body);
  if (!body) return ErrorResponse(body.error());
  JsonFields fields(body->fields);
  auto messages = ReadSessionMessages(fields, call.model, &body->tree);
  if (messages && messages->empty()) {
    fields.Fail("messages", "must be an array with at least one message");
    return ErrorResponse(*fields.error());
  }
  if (!messages) return ErrorResponse(messages.error());
  const bool is_answer = messages->back().role == "assistant";
  Outcome outcome = Become(call, Append(call.turn->store(), *entry->state, std::move(*messages)),
                           fields.Unread());
  if (is_answer && entry->state->setup->prepare) generator_.PrepareAppended(call);
  return outcome;
}

Outcome SessionHandlers::EditMessage(const Call& call) {
  const auto entry = call.turn->Read();
  if (!entry) return ErrorResponse(entry.error());
  const auto index = ParseUint(std::string(SegmentOf(call.path, 4)));
  const auto& messages = entry->state->messages;
  if (!index || *index >= messages.size()) {
    return ErrorResponse(
        {Code::kInvalidArgument,
         fmt::format("the session has {} messages; the first has index 0", messages.size()),
         "index"});
  }
  auto body = ParseBody(call.request.body);
  if (!body) return ErrorResponse(body.error());
  JsonFields fields(body->fields);
  bool keep_later = false;
  fields.Bool("keep_later", &keep_later);
  if (fields.error()) return ErrorResponse(*fields.error());
  auto message = ReadContent(fields, messages[*index]->role, call.model, &body->tree);
  if (!message) return ErrorResponse(message.error());
  const LaterMessages later = keep_later ? LaterMessages::kStay : LaterMessages::kGo;
  return Become(call, Edit(call.turn->store(), *entry->state, *index, std::move(*message), later),
                fields.Unread());
}

Outcome SessionHandlers::EditSystem(const Call& call) {
  const auto entry = call.turn->Read();
  if (!entry) return ErrorResponse(entry.error());
  auto body = ParseBody(call.request.body);
  if (!body) return ErrorResponse(body.error());
  JsonFields fields(body->fields);
  auto message = ReadContent(fields, "system", call.model, &body->tree);
  if (!message) return ErrorResponse(message.error());
  return Become(call, SetSystem(call.turn->store(), *entry->state, std::move(*message)),
                fields.Unread());
}

Outcome SessionHandlers::TruncateOne(const Call& call) {
  const auto entry = call.turn->Read();
  if (!entry) return ErrorResponse(entry.error());
  std::vector<std::string> ignored;
  const auto count = ReadCount(call.request.body, std::nullopt, &ignored);
  if (!count) return ErrorResponse(count.error());
  return Become(call, Truncate(*entry->state, *count), ignored);
}

Outcome SessionHandlers::Fork(const Call& call) {
  const auto entry = call.turn->Read();
  if (!entry) return ErrorResponse(entry.error());
  std::vector<std::string> ignored;
  const auto count = ReadCount(call.request.body, entry->state->messages.size(), &ignored);
  if (!count) return ErrorResponse(count.error());
  auto state = ForkOf(call.turn->store(), *entry->state, *count);
  if (!state) return ErrorResponse(state.error());
  const auto made = sessions_.Create(call.tenant(), std::move(*state));
  return made ? SessionResponse(*made, ignored, 201) : ErrorResponse(made.error());
}

Outcome SessionHandlers::Forget(const Call& call) {
  const auto entry = call.turn->Read();
  if (!entry) return ErrorResponse(entry.error());
  const SessionState& state = *entry->state;
  const auto part = ReadPart(call.request.body, state);
  if (!part) return ErrorResponse(part.error());
  auto forgetting = ForgetPart(call.turn->store(), state, *part, ScopeOf(call, sessions_));
  if (!forgetting) return ErrorResponse(forgetting.error());
  const size_t messages = forgetting->state.messages.size();
  const Status replaced = call.turn->Replace(std::move(forgetting->state));
  // If the disk still has it, it leaves memory, and the same call can be made again.
  if (!replaced && !call.turn->LeaveMemory()) return ErrorResponse(replaced.error());
  texts_.Erase(call.tenant());
  return ForgetAnswer(call, std::move(forgetting->requests),
                      {{"id", entry->id}, {"object", "session.forgotten"}, {"messages", messages}},
                      replaced);
}

Outcome SessionHandlers::Delete(const Call& call) {
  return DeleteKept(call, sessions_, texts_, "session.deleted");
}

Outcome SessionHandlers::DeleteUnread(const Call& call) {
  return DeleteUnreadKept(call, texts_, "session.deleted");
}

// --- the table

constexpr const char* kContentSchema = R"("content":{"type":["string","array"]})";
constexpr const char* kCountSchema = R"("messages":{"type":"integer","minimum":0})";
constexpr const char* kForgetSchema =
    R"("index":{"type":"integer","minimum":0},"begin":{"type":"integer","minimum":0},
    "end":{"type":"integer","minimum":1},"segment":{"type":"string"})";
constexpr const char* kSetupSchema =
    R"("model":{"type":"string"},"system":{"type":"string"},
    "tools":{"type":"array","items":{"type":"object"}},
    "chat_template_kwargs":{"type":"object"},"chat_template_name":{"type":"string"},
    "drop_lines":{"type":"array","items":{"enum":["date","tokens-left","id","billing"]}},
    "move_lines":{"type":"array","items":{"enum":["date","tokens-left","id","billing"]}},
    "sampling":{"type":"object"},
    "max_context":{"type":"integer","minimum":1},"cache":{"type":"object"},
    "on_full":{"enum":["reject","drop_oldest_turns"]},"ids":{"enum":["exact","canonical"]},
    "prepare":{"type":"boolean"},
    "metadata":{"type":"object","additionalProperties":{"type":"string"}})";

std::string SegmentsSchema() {
  return fmt::format(R"("segments":{{"type":["array","null"],"maxItems":{},
      "items":{{"type":"object","required":["name","begin","end"],
      "properties":{{"name":{{"type":"string","minLength":1}},
      "begin":{{"type":"integer","minimum":0}},"end":{{"type":"integer","minimum":1}}}}}}}})",
                     kMaxSegments);
}

// Describes `messages` of a session: at least `least` of them.
std::string SessionMessages(int least) {
  return fmt::format(
      R"("messages":{{"type":"array","minItems":{},"items":{{"type":"object","required":["role"],
      "properties":{{"role":{{"enum":["system","developer","user","assistant","tool"]}},
      "content":{{"type":["string","array","null"]}},{}}}}}}})",
      least, SegmentsSchema());
}

// Adds routes that have the same needs.
class SessionRows {
 public:
  SessionRows(std::shared_ptr<SessionHandlers> own, RouteTable* table)
      : own_(std::move(own)), table_(table) {}

  using Handler = Outcome (SessionHandlers::*)(const Call&);
  // A path below a session's. Calls that change it wait for their turn.
  void Add(std::string_view path, std::string_view method, Handler handler, Description description,
           const std::function<void(Route*)>& set = {}) {
    Route row{.path = path,
              .method = method,
              .handler = std::bind_front(handler, own_),
              .access = Access::kTenant,
              .work = Route::kPrepared,
              .files = Route::kSessionFile};
    if (path != "/v1/sessions" && method != "GET") row.also = Route::kQueues;
    if (path.find('{') != path.npos) {
      const std::string id =
          fmt::format(R"({{"type":"string","pattern":"{}"}})", kSessionIdPattern);
      description.parameters.insert(description.parameters.begin(), {"id", id});
    }
    row.description = std::move(description);
    if (set) set(&row);
    table_->Add(std::move(row));
  }

 private:
  const std::shared_ptr<SessionHandlers> own_;
  RouteTable* const table_;
};

}  // namespace

void AddSessionRoutes(const SessionSources& from, RouteTable* table) {
  const auto own = std::make_shared<SessionHandlers>(from);
  SessionRows rows(own, table);
  const std::string content = JoinedFields({kContentSchema, SegmentsSchema()});
  const char* const session = "Session";
  rows.Add("/v1/sessions", "POST", &SessionHandlers::Create,
           {.summary = "Makes a session.",
            .properties = JoinedFields({SessionMessages(0), kSetupSchema}),
            .status = "201",
            .answer = session},
           [](Route* row) { row->for_model = Route::kTextModel; });
  rows.Add("/v1/sessions", "GET", &SessionHandlers::List,
           {.summary = "The caller's sessions, the newest first.",
            .parameters = {{"limit", fmt::format(R"({{"type":"integer","minimum":1,"maximum":{}}})",
                                                 kMostListed)},
                           {"after", R"({"type":"string"})"}}},
           [](Route* row) { row->reads = Route::kListedSessions; });
  rows.Add("/v1/sessions/{id}", "GET", &SessionHandlers::Show,
           {.summary = "A session with its messages.",
            .parameters = {{"ids", R"({"type":"boolean"})"}},
            .answer = session},
           [](Route* row) { row->reads = Route::kOneSession; });
  rows.Add("/v1/sessions/{id}", "DELETE", &SessionHandlers::Delete,
           {.summary = "Deletes a session and forgets all of it."}, [&](Route* row) {
             row->reads = Route::kAllSessions;
             row->when_spent = std::bind_front(&SessionHandlers::DeleteUnread, own);
           });
  rows.Add("/v1/sessions/{id}/messages", "POST", &SessionHandlers::AppendTo,
           {.summary = "Appends messages.",
            .properties = SessionMessages(1),
            .required = R"(["messages"])",
            .answer = session});
  rows.Add("/v1/sessions/{id}/messages/{index}", "PUT", &SessionHandlers::EditMessage,
           {.summary = "Edits a message.",
            .properties = JoinedFields({content, R"("keep_later":{"type":"boolean"})"}),
            .required = R"(["content"])",
            .parameters = {{"index", R"({"type":"integer","minimum":0})"}},
            .answer = session});
  rows.Add("/v1/sessions/{id}/system", "PUT", &SessionHandlers::EditSystem,
           {.summary = "Sets the system message.",
            .properties = content,
            .required = R"(["content"])",
            .answer = session});
  rows.Add("/v1/sessions/{id}/generate", "POST", &SessionHandlers::Generate,
           {.summary = "Generates the next answer.",
            .properties = JoinedFields({SessionMessages(0), SamplingSchema(), AnswerSchema(),
                                        R"("keep_partial":{"type":"boolean"})"}),
            .streams = true},
           [](Route* row) {
             row->work = Route::kGeneration;
             row->for_model = Route::kTextModel;
             row->reads = Route::kOneSession;
           });
  rows.Add("/v1/sessions/{id}/fork", "POST", &SessionHandlers::Fork,
           {.summary = "Makes a session with the first messages.",
            .properties = kCountSchema,
            .status = "201",
            .answer = session});
  rows.Add("/v1/sessions/{id}/truncate", "POST", &SessionHandlers::TruncateOne,
           {.summary = "Keeps the first messages.",
            .properties = kCountSchema,
            .required = R"(["messages"])",
            .answer = session});
  rows.Add("/v1/sessions/{id}/forget", "POST", &SessionHandlers::Forget,
           {.summary = "Forgets a message or a part of it.",
            .properties = kForgetSchema,
            .required = R"({"anyOf":[{"required":["index"]},{"required":["segment"]}]})"},
           [](Route* row) { row->reads = Route::kAllSessions; });
}

}  // namespace kvasir
