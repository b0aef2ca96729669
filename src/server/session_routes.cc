#include "server/session_routes.h"

#include <fmt/format.h>

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "api/request_limits.h"
#include "api/session_body.h"
#include "api/session_forget.h"
#include "api/session_places.h"
#include "api/session_prompt.h"
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

constexpr size_t kListed = 20, kMostListed = 100;

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
      : keys_(from.keys),
        sessions_(from.sessions),
        texts_(from.texts),
        generator_(from.generations, from.preparer) {}

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
  Outcome Erase(const Call& call, Forgetting forgetting, nlohmann::json body);
  Outcome BecomeErased(const Call& call, const SessionStore::Entry& entry,
                       Result<SessionState> changed, const MessageRange& messages,
                       const std::vector<std::string>& ignored);

  const KeyRing& keys_;
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
  std::optional<uint64_t> unreadable;  // with several keys, another one's may be among them
  if (keys_.current()->num_tenants() <= 1) unreadable = sessions_.counts().unreadable;
  return SessionList(*page, unreadable);
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
  const auto index = ReadIndex(SegmentOf(call.path, 4), *entry->state);
  if (!index) return ErrorResponse(index.error());
  const auto& messages = entry->state->messages;
  auto body = ParseBody(call.request.body);
  if (!body) return ErrorResponse(body.error());
  JsonFields fields(body->fields);
  bool keep_later = false, forget = false;
  fields.Bool("keep_later", &keep_later);
  fields.Bool("forget", &forget);
  if (fields.error()) return ErrorResponse(*fields.error());
  auto message = ReadContent(fields, messages[*index]->role, call.model, &body->tree);
  if (!message) return ErrorResponse(message.error());
  const LaterMessages later = keep_later ? LaterMessages::kStay : LaterMessages::kGo;
  auto changed = Edit(call.turn->store(), *entry->state, *index, std::move(*message), later);
  if (!forget) return Become(call, std::move(changed), fields.Unread());
  const MessageRange replaced{*index, keep_later ? *index + 1 : messages.size()};
  return BecomeErased(call, *entry, std::move(changed), replaced, fields.Unread());
}

Outcome SessionHandlers::EditSystem(const Call& call) {
  const auto entry = call.turn->Read();
  if (!entry) return ErrorResponse(entry.error());
  auto body = ParseBody(call.request.body);
  if (!body) return ErrorResponse(body.error());
  JsonFields fields(body->fields);
  bool forget = false;
  fields.Bool("forget", &forget);
  if (fields.error()) return ErrorResponse(*fields.error());
  auto message = ReadContent(fields, "system", call.model, &body->tree);
  if (!message) return ErrorResponse(message.error());
  auto changed = SetSystem(call.turn->store(), *entry->state, std::move(*message));
  if (!forget) return Become(call, std::move(changed), fields.Unread());
  const MessageRange replaced{0, entry->state->has_system() ? size_t{1} : 0};
  return BecomeErased(call, *entry, std::move(changed), replaced, fields.Unread());
}

Outcome SessionHandlers::TruncateOne(const Call& call) {
  const auto entry = call.turn->Read();
  if (!entry) return ErrorResponse(entry.error());
  std::vector<std::string> ignored;
  bool forget = false;
  const auto count = ReadCount(call.request.body, std::nullopt, &forget, &ignored);
  if (!count) return ErrorResponse(count.error());
  auto changed = Truncate(*entry->state, *count);
  if (!forget || !changed) return Become(call, std::move(changed), ignored);
  const MessageRange gone{*count, entry->state->messages.size()};
  return BecomeErased(call, *entry, std::move(changed), gone, ignored);
}

Outcome SessionHandlers::Fork(const Call& call) {
  const uint64_t removals = sessions_.Removals(call.tenant());
  const auto entry = call.turn->Read();
  if (!entry) return ErrorResponse(entry.error());
  std::vector<std::string> ignored;
  const auto count = ReadCount(call.request.body, entry->state->messages.size(), nullptr, &ignored);
  if (!count) return ErrorResponse(count.error());
  auto state = ForkOf(call.turn->store(), *entry->state, *count);
  if (!state) return ErrorResponse(state.error());
  const auto made = sessions_.Create(call.tenant(), std::move(*state), removals);
  return made ? SessionResponse(*made, ignored, 201) : ErrorResponse(made.error());
}

// Replaces the state of the call's session and erases what that has no more; `body` and the sums
// are the answer.
Outcome SessionHandlers::Erase(const Call& call, Forgetting forgetting, nlohmann::json body) {
  const Status replaced =
      call.turn->Replace(std::move(forgetting.state), SessionStore::Turn::Durable::kNowIfKept);
  // If the disk still has it, it leaves memory, and the same call can be made again.
  if (!replaced && !call.turn->LeaveMemory()) return ErrorResponse(replaced.error());
  texts_.Erase(call.tenant());
  body["durable"] = call.turn->on_disk();
  return ForgetAnswer(call, std::move(forgetting.requests), std::move(body), replaced);
}

// Does the same for a change that takes messages back or replaces them, and answers with the
// session and the sums.
Outcome SessionHandlers::BecomeErased(const Call& call, const SessionStore::Entry& entry,
                                      Result<SessionState> changed, const MessageRange& messages,
                                      const std::vector<std::string>& ignored) {
  if (!changed) return ErrorResponse(changed.error());
  Forgetting forgetting = ForgetMessages(call.turn->store(), *entry.state, std::move(*changed),
                                         messages, ScopeOf(call, sessions_));
  SessionStore::Entry shown = entry;
  shown.num_messages = forgetting.state.messages.size();
  shown.state = std::make_shared<const SessionState>(forgetting.state);
  nlohmann::json body = SessionJson(shown);
  shown.state = nullptr;
  body["ignored"] = ignored;
  return Erase(call, std::move(forgetting), std::move(body));
}

Outcome SessionHandlers::Forget(const Call& call) {
  const auto entry = call.turn->Read();
  if (!entry) return ErrorResponse(entry.error());
  const SessionState& state = *entry->state;
  const auto named = ReadForget(call.request.body, state);
  if (!named) return ErrorResponse(named.error());
  SessionStore& store = call.turn->store();
  const ForgetScope scope = ScopeOf(call, sessions_);
  const auto* messages = std::get_if<MessageRange>(&*named);
  Result<Forgetting> forgetting =
      messages != nullptr
          ? ForgetMessages(store, state, RemoveMessages(state, *messages), *messages, scope)
          : ForgetPart(store, state, std::get<SessionPart>(*named), scope);
  if (!forgetting) return ErrorResponse(forgetting.error());
  nlohmann::json body = {{"id", entry->id},
                         {"object", "session.forgotten"},
                         {"messages", forgetting->state.messages.size()}};
  return Erase(call, std::move(*forgetting), std::move(body));
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
constexpr const char* kEraseSchema = R"("forget":{"type":"boolean"})";
constexpr const char* kForgetSchema =
    R"("last":{"type":"integer","minimum":1},"index":{"type":"integer"},
    "begin":{"type":"integer","minimum":0},"end":{"type":"integer","minimum":1},
    "from":{"type":"integer"},"to":{"type":"integer"},"segment":{"type":"string"})";
constexpr const char* kSetupSchema =
    R"("model":{"type":"string"},"system":{"type":"string"},
    "origin":{"type":"string","minLength":1,"maxLength":64},
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
      "properties":{{"role":{},
      "content":{{"type":["string","array","null"]}},{}}}}}}})",
      least, RoleSchema(), SegmentsSchema());
}

// Adds routes that have the same needs.
class SessionRows {
 public:
  SessionRows(std::shared_ptr<SessionHandlers> own, RouteTable* table)
      : own_(std::move(own)), table_(table) {}

  using Handler = Outcome (SessionHandlers::*)(const Call&);
  // Adds a path below a session's. Calls that change the session wait for their turn.
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

// Adds the calls that change what a session says, generate apart.
void AddChangeRoutes(SessionRows& rows) {
  const std::string content = JoinedFields({kContentSchema, SegmentsSchema()});
  const char* const session = "Session";
  const auto may_forget = [](Route* row) { row->reads = Route::kAllIfForgets; };
  rows.Add("/v1/sessions/{id}/messages", "POST", &SessionHandlers::AppendTo,
           {.summary = "Appends messages.",
            .properties = SessionMessages(1),
            .required = R"(["messages"])",
            .answer = session});
  rows.Add(
      "/v1/sessions/{id}/messages/{index}", "PUT", &SessionHandlers::EditMessage,
      {.summary = "Edits a message.",
       .properties = JoinedFields({content, R"("keep_later":{"type":"boolean"})", kEraseSchema}),
       .required = R"(["content"])",
       .parameters = {{"index", R"({"type":"integer"})"}},
       .answer = session},
      may_forget);
  rows.Add("/v1/sessions/{id}/system", "PUT", &SessionHandlers::EditSystem,
           {.summary = "Sets the system message.",
            .properties = JoinedFields({content, kEraseSchema}),
            .required = R"(["content"])",
            .answer = session},
           may_forget);
  rows.Add("/v1/sessions/{id}/fork", "POST", &SessionHandlers::Fork,
           {.summary = "Makes a session with the first messages.",
            .properties = kCountSchema,
            .status = "201",
            .answer = session});
  rows.Add("/v1/sessions/{id}/truncate", "POST", &SessionHandlers::TruncateOne,
           {.summary = "Keeps the first messages.",
            .properties = JoinedFields({kCountSchema, kEraseSchema}),
            .required = R"(["messages"])",
            .answer = session},
           may_forget);
  rows.Add("/v1/sessions/{id}/forget", "POST", &SessionHandlers::Forget,
           {.summary = "Forgets turns, messages or a part of a message.",
            .properties = kForgetSchema,
            .required = R"({"anyOf":[{"required":["last"]},{"required":["index"]},
                {"required":["from"]},{"required":["segment"]}]})"},
           [](Route* row) { row->reads = Route::kAllSessions; });
}

}  // namespace

void AddSessionRoutes(const SessionSources& from, RouteTable* table) {
  const auto own = std::make_shared<SessionHandlers>(from);
  SessionRows rows(own, table);
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
  AddChangeRoutes(rows);
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
}

}  // namespace kvasir
