// The endpoints of sessions: conversations that are edited, forked and forgotten.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "api/openai_request.h"
#include "api/session_answer.h"
#include "api/session_body.h"
#include "api/session_prompt.h"
#include "base/sizes.h"
#include "http/json_fields.h"
#include "server/service_routes.h"

namespace kvasir {
namespace {

using nlohmann::ordered_json;

constexpr size_t kListed = 20, kMostListed = 100;

std::string Dump(const ordered_json& value) {
  return value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

void AddMembers(std::string_view object, ordered_json* to) {
  if (object.empty()) return;
  const ordered_json members = ordered_json::parse(object);
  for (const auto& [key, value] : members.items()) {
    if (!to->contains(key)) (*to)[key] = value;
  }
}

// A session, with the number of its messages; tokens is null where they are not counted.
ordered_json SessionJson(const SessionStore::Entry& entry) {
  const SessionState& state = *entry.state;
  const SessionSetup& setup = *state.setup;
  ordered_json body = {{"id", entry.id},
                       {"object", "session"},
                       {"created", entry.created_s},
                       {"model", setup.model},
                       {"messages", entry.num_messages},
                       {"tokens", state.tokens ? ordered_json(*state.tokens) : ordered_json()},
                       {"max_context", setup.max_context},
                       {"on_full", setup.drops_oldest ? "drop_oldest_turns" : "reject"},
                       {"ids", setup.exact_ids ? "exact" : "canonical"},
                       {"prepare", setup.prepare},
                       {"durable", entry.on_disk}};
  AddMembers(setup.fields, &body);
  body["sampling"] =
      setup.sampling.empty() ? ordered_json::object() : ordered_json::parse(setup.sampling);
  body["metadata"] =
      setup.metadata.empty() ? ordered_json::object() : ordered_json::parse(setup.metadata);
  return body;
}

// A session that was made or changed. `ignored`: the fields of the request that nothing reads.
HttpResponse SessionResponse(const SessionStore::Entry& entry,
                             const std::vector<std::string>& ignored, int status = 200) {
  HttpResponse response;
  response.status = status;
  ordered_json body = SessionJson(entry);
  body["ignored"] = ignored;
  response.body = Dump(body);
  return response;
}

ordered_json MessageJson(const SessionMessage& message, size_t index,
                         std::optional<uint32_t> tokens) {
  ordered_json segments = ordered_json::array();
  for (const SessionSegment& segment : message.more().segments) {
    segments.push_back({{"name", segment.name}, {"begin", segment.begin}, {"end", segment.end}});
  }
  ordered_json body = {{"index", index},
                       {"role", message.role},
                       {"content", message.content},
                       {"tokens", tokens ? ordered_json(*tokens) : ordered_json()},
                       {"generated", message.generated},
                       {"segments", std::move(segments)}};
  AddMembers(message.more().fields, &body);
  return body;
}

// A session with its messages and, if they are asked for, the ids of its prompt.
Parts WholeSession(SessionStore::Entry entry, std::optional<ChatPrompt> prompt, bool with_ids) {
  ordered_json head = SessionJson(entry);
  head.erase("messages");
  if (with_ids) head.erase("ids");
  head["tokens"] = prompt ? ordered_json(prompt->ids.size()) : ordered_json();
  std::string out = Dump(head);
  out.pop_back();
  if (with_ids && prompt) {
    out += ",\"ids\":[";
    for (size_t i = 0; i < prompt->ids.size(); ++i) {
      if (i > 0) out += ',';
      out += std::to_string(prompt->ids[i]);
      if (out.size() >= kPartBytes) co_yield out;
    }
    out += ']';
  }
  out += ",\"messages\":[";
  const auto& messages = entry.state->messages;
  uint32_t begin = 0;
  for (size_t i = 0; i < messages.size(); ++i) {
    std::optional<uint32_t> tokens;
    if (prompt && i < prompt->message_ends.size()) {
      tokens = prompt->message_ends[i] - begin;
      begin = prompt->message_ends[i];
    }
    if (i > 0) out += ',';
    out += Dump(MessageJson(*messages[i], i, tokens));
    if (out.size() >= kPartBytes) co_yield out;
  }
  out += "]}";
  co_yield out;
}

// The number of messages that a body names, or all.
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

// A chat completion's fields: the defaults of the session, then those of the body, which win.
Result<JsonValue> FieldsOf(const JsonValue& sent, const SessionSetup& setup, JsonTree* tree) {
  const JsonFields body(sent);
  if (body.Has("continue_final_message")) {
    return FailField(Code::kInvalidArgument, "continue_final_message",
                     "is not taken by sessions, whose messages are whole");
  }
  for (const char* name :
       {"tools", "chat_template_kwargs", "chat_template_name", "add_generation_prompt"}) {
    if (!body.Has(name)) continue;
    return FailField(Code::kInvalidArgument, name,
                     "is set when the session is made, not by generate");
  }
  if (body.Has("documents")) {
    return FailField(Code::kInvalidArgument, "documents", "is not taken by sessions");
  }
  KV_ASSIGN(std::vector<JsonValue::Member> members, MembersOf(setup.sampling, tree, kChatIds));
  KV_ASSIGN(const std::vector<JsonValue::Member> kept, MembersOf(setup.fields, tree));
  for (const JsonValue::Member& member : kept) {
    if (member.key == "cache") members.push_back(member);
  }
  if (!body.Has("model")) members.push_back({"model", tree->String(setup.model)});
  for (const JsonValue::Member& member : sent.members()) {
    if (member.key == "messages" || member.key == "keep_partial") continue;
    members.push_back(member);
  }
  return tree->Object(std::move(members));
}

}  // namespace

size_t Service::WorkBytes(const HttpRequest& request) {
  size_t bytes = request.body.size();
  const Route* route = routes_.Find(request);
  if (route == nullptr || !route->renders_session) return bytes;
  const auto caller = CallerOf(request);
  if (!caller || !caller->tenant) return bytes;
  const auto entry = sessions_.FindLoaded(*caller->tenant, SegmentOf(PathOf(request.target), 2));
  if (!entry) return bytes;  // one that is on the disk alone is read first
  for (const auto& message : entry->state->messages) bytes += message->content.size();
  return bytes;
}

Outcome Service::CreateSession(const Call& call) {
  auto body = ParseBody(call.request.body.empty() ? "{}" : call.request.body, kChatIds);
  if (!body) return ErrorResponse(body.error());
  JsonFields fields(body->fields);
  if (!model_.tokenizer) return ErrorResponse(NoTextError("messages", model_));
  auto setup = ReadSetup(fields, model_, &body->tree);
  if (!setup) return ErrorResponse(setup.error());
  auto messages = ReadFirstMessages(fields, model_, &body->tree);
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

Outcome Service::ListSessions(const Call& call) {
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

Outcome Service::ShowSession(const Call& call) {
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

Outcome Service::Become(const Call& call, Result<SessionState> state,
                        const std::vector<std::string>& ignored) {
  if (!state) return ErrorResponse(state.error());
  const Status replaced = call.turn->Replace(std::move(*state));
  if (!replaced) return ErrorResponse(replaced.error());
  const auto entry = call.turn->Read();
  return entry ? SessionResponse(*entry, ignored) : ErrorResponse(entry.error());
}

Outcome Service::AppendMessages(const Call& call) {
  const auto entry = call.turn->Read();
  if (!entry) return ErrorResponse(entry.error());
  auto body = ParseBody(call.request.body);
  if (!body) return ErrorResponse(body.error());
  JsonFields fields(body->fields);
  auto messages = ReadSessionMessages(fields, model_, &body->tree);
  if (messages && messages->empty()) {
    fields.Fail("messages", "must be an array with at least one message");
    return ErrorResponse(*fields.error());
  }
  if (!messages) return ErrorResponse(messages.error());
  const bool is_answer = messages->back().role == "assistant";
  Outcome outcome = Become(call, Append(call.turn->store(), *entry->state, std::move(*messages)),
                           fields.Unread());
  if (is_answer && entry->state->setup->prepare) PrepareAppended(call);
  return outcome;
}

// Prepares the next turn after an answer that the client gave.
void Service::PrepareAppended(const Call& call) {
  const auto entry = call.turn->Read();
  if (!entry) return;
  JsonTree tree;
  const auto merged = FieldsOf(tree.Object({}), *entry->state->setup, &tree);
  if (!merged) return;
  JsonFields fields(*merged);
  auto chat = BeginChat(fields, model_);
  if (!chat) return;
  GenerateRequest& request = chat->requests.front();
  if (engine_.options().cache_mode != CacheMode::kPrefix || request.reuse == Reuse::kNothing)
    return;
  request.tenant = call.tenant();
  if (call.caller.entry) request.cache_owner = call.caller.entry->rules.cache_owner;
  AskedChat asked(*entry->state, model_, preparer_);
  asked.PrepareAfter(request);
  asked.Take(call.turn);
  asked.PrepareNext();
}

Outcome Service::EditMessage(const Call& call) {
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
  auto message = ReadContent(fields, messages[*index]->role, model_, &body->tree);
  if (!message) return ErrorResponse(message.error());
  const LaterMessages later = keep_later ? LaterMessages::kStay : LaterMessages::kGo;
  return Become(call, Edit(call.turn->store(), *entry->state, *index, std::move(*message), later),
                fields.Unread());
}

Outcome Service::EditSystem(const Call& call) {
  const auto entry = call.turn->Read();
  if (!entry) return ErrorResponse(entry.error());
  auto body = ParseBody(call.request.body);
  if (!body) return ErrorResponse(body.error());
  JsonFields fields(body->fields);
  auto message = ReadContent(fields, "system", model_, &body->tree);
  if (!message) return ErrorResponse(message.error());
  return Become(call, SetSystem(call.turn->store(), *entry->state, std::move(*message)),
                fields.Unread());
}

Outcome Service::TruncateSession(const Call& call) {
  const auto entry = call.turn->Read();
  if (!entry) return ErrorResponse(entry.error());
  std::vector<std::string> ignored;
  const auto count = ReadCount(call.request.body, std::nullopt, &ignored);
  if (!count) return ErrorResponse(count.error());
  return Become(call, Truncate(*entry->state, *count), ignored);
}

Outcome Service::ForkSession(const Call& call) {
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

namespace {

Status CheckAnswerable(const SessionState& state) {
  if (state.messages.empty()) {
    return FailField(Code::kInvalidArgument, "messages",
                     "the session has no message to answer; send one");
  }
  const SessionMessage& last = *state.messages.back();
  if (last.role == "user" || last.role == "tool") return {};
  return FailField(Code::kInvalidArgument, "messages",
                   "the last message of the session is the {}'s: there is nothing to answer; send "
                   "a message of the user",
                   last.role);
}

}  // namespace

Outcome Service::GenerateInSession(const Call& call) {
  const auto entry = call.turn->Read();
  if (!entry) return ErrorResponse(entry.error());
  const SessionSetup& setup = *entry->state->setup;
  const std::string& text = call.request.body;
  auto body = ParseBody(text.empty() ? "{}" : std::string_view(text), kChatIds);
  if (!body) return ErrorResponse(body.error());
  JsonFields sent(body->fields);
  bool keep_partial = false;
  sent.Bool("keep_partial", &keep_partial);
  if (sent.error()) return ErrorResponse(*sent.error());
  auto messages = ReadSessionMessages(sent, model_, &body->tree);
  if (!messages) return ErrorResponse(messages.error());
  const auto merged = FieldsOf(body->fields, setup, &body->tree);
  if (!merged) return ErrorResponse(merged.error());
  JsonFields fields(*merged);
  fields.TakeUnread(sent.inner_unread());
  auto chat = BeginChat(fields, model_);
  if (!chat) return ErrorResponse(chat.error());
  if (chat->spec.n != 1) {
    return ErrorResponse(
        {Code::kInvalidArgument, "a session has one answer to a message: n is 1", "n"});
  }
  auto state = Append(call.turn->store(), *entry->state, std::move(*messages));
  if (!state) return ErrorResponse(state.error());
  if (const Status fits = CheckAnswerable(*state); !fits) return ErrorResponse(fits.error());
  auto prompt = PromptOf(*state, call.own_model());
  if (!prompt) return ErrorResponse(prompt.error());
  state->dropped = prompt->dropped;
  chat->requests.front().identity_changed = state->identity_changed;
  chat->spec.session = {.session = entry->id, .index = state->messages.size()};
  if (setup.drops_oldest) chat->spec.session->dropped_messages = prompt->dropped;
  GenerateRequest& request = chat->requests.front();
  const PromptThought thought = prompt->chat.thought;
  std::vector<SessionPath::Begin> begins = BeginsOf(*state, prompt->chat);
  const auto room = static_cast<uint32_t>(MaxContextOf(*state, model_) - prompt->chat.ids.size());
  request.max_tokens = std::min(request.max_tokens, room);
  if (const Status set = SetPrompt(std::move(prompt->chat), fields, model_, &*chat); !set) {
    return ErrorResponse(set.error());
  }
  const auto kept = MembersOf(setup.fields, &body->tree);
  if (!kept) return ErrorResponse(kept.error());
  const JsonValue* tools = nullptr;
  for (const JsonValue::Member& member : *kept) {
    if (member.key == "tools") tools = &member.value;
  }
  if (const Status read = SetReading(tools, thought, model_, &*chat); !read) {
    return ErrorResponse(read.error());
  }
  const auto reading = chat->spec.reading;
  if (const Status noted = NotePrompt(*call.turn, request, begins, &*state); !noted) {
    return ErrorResponse(noted.error());
  }
  Outcome outcome = Start(EndChat(std::move(*chat), model_), call, "messages");
  if (auto* start = std::get_if<GenerationStart>(&outcome)) {
    const bool has_answers = std::ranges::any_of(
        state->messages, [](const auto& message) { return message->role == "assistant"; });
    Follow(std::make_shared<AskedChat>(*state, model_, preparer_),
           has_answers && !state->identity_changed,
           setup.prepare && start->requests.front().max_tokens > 0, start);
    const bool prepares = start->chat && start->chat->prepares();
    start->answer->KeepIn(std::make_unique<SessionAnswer>(
        call.turn, std::move(*state), start->requests.front(), std::move(begins),
        keep_partial ? OnHangUp::kKeepPartial : OnHangUp::kDropAnswer, *model_.tokenizer,
        reading ? std::optional(AnswerPieces(reading, start->answer->id(), 0)) : std::nullopt,
        prepares ? start->chat : nullptr));
    start->answer_bytes = std::max(start->answer_bytes, start->answer->held_bytes());
  }
  return outcome;
}

}  // namespace kvasir
