#include "server/session_generate.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "api/openai_request.h"
#include "api/session_answer.h"
#include "api/session_body.h"
#include "api/session_prompt.h"
#include "base/result.h"
#include "http/errors.h"
#include "http/json_body.h"

namespace kvasir {
namespace {

// Joins a chat completion's fields: the defaults of the session, then those of the body, which win.
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

// Sets how the answer is read, with the tools of the session.
Status SetReadingOf(const SessionSetup& setup, PromptThought thought, const ModelView& model,
                    JsonTree* tree, OpenAiCall* chat) {
  KV_ASSIGN(const std::vector<JsonValue::Member> kept, MembersOf(setup.fields, tree));
  const JsonValue* tools = nullptr;
  for (const JsonValue::Member& member : kept) {
    if (member.key == "tools") tools = &member.value;
  }
  return SetReading(tools, thought, model, chat);
}

// Sets whose cache the request uses, and chooses its adapters: its KV is found by both.
Status SetSpace(const Call& call, GenerateRequest& request) {
  request.tenant = call.tenant();
  request.use_remote = RemoteUse::kRead;  // what sessions say is not shared
  if (call.caller.entry) request.cache_owner = call.caller.entry->rules.cache_owner;
  return call.engine.ChooseAdapters(request);
}

// Notes what a session will have read, and where its KV is.
Status NoteRequest(const Call& call, const std::vector<SessionPath::Begin>& begins,
                   GenerateRequest& request, SessionState* state) {
  KV_TRY(SetSpace(call, request));
  return NotePrompt(*call.turn, request, begins, state);
}

}  // namespace

Outcome SessionGenerator::Generate(const Call& call) {
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
  auto messages = ReadSessionMessages(sent, call.model, &body->tree);
  if (!messages) return ErrorResponse(messages.error());
  const auto merged = FieldsOf(body->fields, setup, &body->tree);
  if (!merged) return ErrorResponse(merged.error());
  JsonFields fields(*merged);
  fields.TakeUnread(sent.inner_unread());
  auto chat = BeginChat(fields, call.model);
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
  ClipAnswer(*state, call.model, prompt->chat.ids.size(), call.engine.options().retention,
             &request);
  if (const Status set = SetPrompt(std::move(prompt->chat), fields, call.model, &*chat); !set) {
    return ErrorResponse(set.error());
  }
  if (const Status read = SetReadingOf(setup, thought, call.model, &body->tree, &*chat); !read) {
    return ErrorResponse(read.error());
  }
  const auto reading = chat->spec.reading;
  if (const Status noted = NoteRequest(call, begins, request, &*state); !noted) {
    return ErrorResponse(noted.error());
  }
  Outcome outcome = generations_.Start(EndChat(std::move(*chat), call.model), call, "messages");
  if (auto* start = std::get_if<GenerationStart>(&outcome)) {
    const bool has_answers = std::ranges::any_of(
        state->messages, [](const auto& message) { return message->role == "assistant"; });
    generations_.Follow(std::make_shared<AskedChat>(*state, call.model, preparer_), call.heads,
                        has_answers && !state->identity_changed,
                        setup.prepare && start->requests.front().max_tokens > 0, start);
    const bool prepares = start->chat && start->chat->prepares();
    start->answer->KeepIn(std::make_unique<SessionAnswer>(
        call.turn, std::move(*state), start->requests.front(), std::move(begins),
        keep_partial ? OnHangUp::kKeepPartial : OnHangUp::kDropAnswer, *call.model.tokenizer,
        reading ? std::optional(AnswerPieces(reading, start->answer->id(), 0)) : std::nullopt,
        prepares ? start->chat : nullptr));
    start->answer_bytes = std::max(start->answer_bytes, start->answer->held_bytes());
  }
  return outcome;
}

void SessionGenerator::PrepareAppended(const Call& call) {
  const auto entry = call.turn->Read();
  if (!entry) return;
  JsonTree tree;
  const auto merged = FieldsOf(tree.Object({}), *entry->state->setup, &tree);
  if (!merged) return;
  JsonFields fields(*merged);
  auto chat = BeginChat(fields, call.model);
  if (!chat) return;
  GenerateRequest& request = chat->requests.front();
  if (call.engine.options().cache_mode != CacheMode::kPrefix || request.reuse == Reuse::kNothing) {
    return;
  }
  if (!SetSpace(call, request)) return;
  AskedChat asked(*entry->state, call.model, preparer_);
  asked.PrepareAfter(request);
  asked.Take(call.turn);
  asked.PrepareNext();
}

}  // namespace kvasir
