#include "cli/chat_session.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <future>
#include <nlohmann/json.hpp>

#include "api/model_view.h"
#include "api/session_answer.h"
#include "api/session_forget.h"
#include "api/session_prompt.h"
#include "base/result.h"
#include "base/sizes.h"

namespace kvasir::cli {
namespace {

SessionMessage MessageOf(std::string_view role, std::string content) {
  SessionMessage message;
  message.role = role;
  message.content = std::move(content);
  return message;
}

// Keys of a fork's metadata: the session that the chat began with, and its name there.
constexpr char kChatKey[] = "chat", kNameKey[] = "chat_name";

nlohmann::ordered_json MetadataOf(const SessionSetup& setup) {
  auto read = nlohmann::ordered_json::parse(setup.metadata, nullptr, /*allow_exceptions=*/false);
  return read.is_object() ? read : nlohmann::ordered_json::object();
}

std::string TextIn(const nlohmann::ordered_json& object, const char* key, std::string otherwise) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>()
                                                     : std::move(otherwise);
}

std::string ChatOf(const SessionSetup& setup, const std::string& id) {
  return TextIn(MetadataOf(setup), kChatKey, id);
}

std::string ChatNameOf(const SessionSetup& setup) {
  return TextIn(MetadataOf(setup), kNameKey, "main");
}

// Returns the setup of a fork of this name.
SessionSetup SetupOfFork(const SessionSetup& setup, const std::string& id,
                         const std::string& name) {
  nlohmann::ordered_json metadata = MetadataOf(setup);
  metadata[kChatKey] = TextIn(metadata, kChatKey, id);
  metadata[kNameKey] = name;
  SessionSetup made;
  made.model = setup.model;
  made.fields = setup.fields;
  made.sampling = setup.sampling;
  made.metadata = metadata.dump();
  made.max_context = setup.max_context;
  made.drops_oldest = setup.drops_oldest;
  made.prepare = setup.prepare;
  made.origin = setup.origin;
  made.exact_ids = setup.exact_ids;
  made.on_disk = setup.on_disk;
  return made;
}

Result<MessageRange> LastTurn(const SessionState& state) {
  auto last = LastTurns(state, 1);
  if (last) return last;
  return Fail(Code::kInvalidArgument, "the conversation has no message of yours to take back");
}

// Returns what an answer lost by its retention policy; nothing, where it is exact.
std::string DroppedText(const Receipt& receipt) {
  if (!receipt.retention || !receipt.retention->inexact_from) return "";
  return fmt::format("; {} dropped {}, inexact from {}", ToString(receipt.retention->policy),
                     CountText(receipt.retention->dropped, "token"),
                     *receipt.retention->inexact_from);
}

std::string ReceiptLine(const Receipt& receipt, uint32_t dropped_messages) {
  // The answer grew past the length at which RoPE longrope changes its factors.
  const std::string again = receipt.recomputed == 0
                                ? ""
                                : fmt::format("; {} computed again for RoPE", receipt.recomputed);
  const std::string left_out =
      dropped_messages == 0
          ? ""
          : fmt::format("; the oldest {} left out", CountText(dropped_messages, "message"));
  return fmt::format("[prompt {}: {} from cache, {} computed; {:.{}f} ms to first token{}{}{}]",
                     CountText(receipt.prompt_tokens, "token"), receipt.cached_tokens(),
                     receipt.computed, receipt.ttft_ms, receipt.ttft_ms < 10 ? 1 : 0, again,
                     left_out, DroppedText(receipt));
}

}  // namespace

ChatSession::ChatSession(Engine& engine, ModelView model, GenerateRequest request,
                         std::optional<std::string> system)
    : engine_(engine),
      model_(std::move(model)),
      request_(std::move(request)),
      system_(std::move(system)),
      store_(std::make_unique<SessionStore>(
          SessionLimits{.max_sessions = UINT32_MAX,  // the memory bounds them
                        .memory_bytes = engine.options().session_memory_bytes,
                        .ttl_ns = 0})) {}

Result<ChatSession> ChatSession::Begin(Engine& engine, const TemplateChoice& choice,
                                       GenerateRequest request, ChatStart start) {
  ModelView model = ViewOf(engine, choice.own.get());
  model.template_variables = choice.variables;
  model.template_now_unix_s = choice.now_unix_s;
  ChatSession chat(engine, std::move(model), std::move(request), std::move(start.system));
  if (start.file) KV_TRY(chat.store_->UseFile(std::move(start.file)));
  if (start.resume) {
    KV_TRY(chat.Resume(*start.resume));
    return chat;
  }
  KV_ASSIGN(std::string id, chat.MakeSession());
  chat.branches_.push_back({"main", std::move(id)});
  return chat;
}

Status ChatSession::Resume(const std::string& id) {
  const auto entry = store_->Find(request_.tenant, id);
  if (!entry && entry.error().code == Code::kNotFound) {
    const std::string folder = engine_.DiskStats()->folder;
    return Fail(Code::kNotFound,
                "--resume: {} has no session {} of 'kvasir chat' or of a server without API keys; "
                "'kvasir sessions list --disk {}' lists what it has",
                folder, id, folder);
  }
  if (!entry) return tl::unexpected(entry.error());
  KV_TRY(store_->file()->Touch(id));
  const SessionState& state = *entry->state;
  branches_.push_back({.name = ChatNameOf(*state.setup), .id = id, .made_here = false});
  KV_TRY(FindBranches(ChatOf(*state.setup, id)));
  const std::string said = state.has_system() ? state.messages.front()->content : "";
  if (system_ && *system_ != said) return SetSystem(*system_);
  if (state.has_system()) system_ = said;
  return {};
}

Status ChatSession::FindBranches(const std::string& chat) {
  KV_ASSIGN(const std::vector<SessionFile::Row> rows, store_->file()->List());
  for (const SessionFile::Row& row : rows) {
    const bool is_session = KindOfId(row.id) == SessionKind::kSession;
    if (!is_session || row.id == id() || row.owner != SessionOwnerOf(request_.tenant)) continue;
    SessionStore apart(SessionLimits{.memory_bytes = UINT64_MAX});  // read, and not kept
    const auto record = store_->file()->ReadAsItIs(apart, row.owner, row.id);
    if (!record || ChatOf(*record->state.setup, row.id) != chat) continue;
    std::string name = ChatNameOf(*record->state.setup);
    const bool is_taken = std::ranges::find(branches_, name, &Branch::name) != branches_.end();
    branches_.push_back({is_taken ? NextName() : std::move(name), row.id, /*made_here=*/false});
  }
  return {};
}

Result<std::string> ChatSession::MakeSession() {
  SessionSetup setup;
  setup.origin = "chat";
  setup.model = engine_.card().id;
  setup.max_context = engine_.card().ctx_size;
  SessionState state;
  KV_ASSIGN(state.setup, store_->Keep(std::move(setup)));
  if (system_) {
    std::vector<SessionMessage> messages;
    messages.push_back(MessageOf("system", *system_));
    KV_ASSIGN(state, Append(*store_, state, std::move(messages)));
  }
  KV_ASSIGN(SessionStore::Entry entry, store_->Create(request_.tenant, std::move(state)));
  return std::move(entry.id);
}

Result<ChatSession::TurnPtr> ChatSession::TakeTurn() const {
  return store_->Queue(request_.tenant, id(), [] {});
}

Result<SessionStore::Entry> ChatSession::Read() const {
  return store_->Find(request_.tenant, id());
}

Status ChatSession::Answer(TurnPtr turn, SessionState state) {
  KV_ASSIGN(SessionPrompt prompt, PromptOf(state, model_));
  GenerateRequest request = request_;
  state.dropped = prompt.dropped;
  ClipAnswer(state, model_, prompt.chat.ids.size(), engine_.options().retention, &request);
  std::vector<SessionPath::Begin> begins = BeginsOf(state, prompt.chat);
  request.prompt = std::move(prompt.chat.ids);
  request.message_ends = std::move(prompt.chat.message_ends);
  request.begins_with_system = prompt.chat.begins_with_system;
  request.clock_in_prompt = prompt.chat.clock_in_prompt;
  request.identity_changed = state.identity_changed;
  KV_TRY(engine_.ChooseAdapters(request));
  KV_TRY(NotePrompt(*turn, request, begins, &state));
  SessionAnswer answer(std::move(turn), std::move(state), request, std::move(begins),
                       OnHangUp::kDropAnswer, *model_.tokenizer);
  KV_ASSIGN(Outcome outcome, RunRequest(engine_, std::move(request), [](std::string_view piece) {
              std::fwrite(piece.data(), 1, piece.size(), stdout);
              std::fflush(stdout);
            }));
  Event event;
  event.text = std::move(outcome.text);
  std::vector<GeneratedToken> tokens;
  for (const TokenId id : outcome.tokens) tokens.push_back({.id = id});
  event.tokens = std::move(tokens);
  answer.Take(event);
  KV_TRY(answer.Finish());
  receipt_ = outcome.receipt;
  if (outcome.finish_reason == FinishReason::kCancelled) fmt::print(" [stopped]");
  fmt::print("\n{}\n", ReceiptLine(outcome.receipt, prompt.dropped));
  return {};
}

Status ChatSession::Say(std::string text) {
  KV_ASSIGN(TurnPtr turn, TakeTurn());
  KV_ASSIGN(const SessionStore::Entry entry, turn->Read());
  std::vector<SessionMessage> messages;
  messages.push_back(MessageOf("user", std::move(text)));
  KV_ASSIGN(SessionState state, Append(*store_, *entry.state, std::move(messages)));
  return Answer(std::move(turn), std::move(state));
}

Status ChatSession::Edit(size_t index, std::string text) {
  KV_ASSIGN(TurnPtr turn, TakeTurn());
  KV_ASSIGN(const SessionStore::Entry entry, turn->Read());
  const auto& messages = entry.state->messages;
  const std::string role = index < messages.size() ? messages[index]->role : "";
  KV_ASSIGN(SessionState state,
            kvasir::Edit(*store_, *entry.state, index, MessageOf(role, std::move(text)),
                         role == "system" ? LaterMessages::kStay : LaterMessages::kGo));
  if (role == "user") return Answer(std::move(turn), std::move(state));
  KV_TRY(turn->Replace(std::move(state)));
  fmt::print("(message {} has the new text)\n", index);
  return {};
}

Status ChatSession::SetSystem(std::string text) {
  KV_ASSIGN(const TurnPtr turn, TakeTurn());
  KV_ASSIGN(const SessionStore::Entry entry, turn->Read());
  KV_ASSIGN(SessionState state,
            kvasir::SetSystem(*store_, *entry.state, MessageOf("system", text)));
  KV_TRY(turn->Replace(std::move(state)));
  system_ = std::move(text);
  return {};
}

Result<std::string> ChatSession::Undo() {
  KV_ASSIGN(const TurnPtr turn, TakeTurn());
  KV_ASSIGN(const SessionStore::Entry entry, turn->Read());
  KV_ASSIGN(const MessageRange last, LastTurn(*entry.state));
  std::string text = entry.state->messages[last.begin]->content;
  KV_TRY(turn->Replace(RemoveMessages(*entry.state, last)));
  return text;
}

Status ChatSession::Fork(std::string name) {
  if (std::ranges::find(branches_, name, &Branch::name) != branches_.end()) {
    return Fail(Code::kInvalidArgument, "a conversation has the name {} already", name);
  }
  KV_ASSIGN(const SessionStore::Entry entry, Read());
  KV_ASSIGN(SessionState state, ForkOf(*store_, *entry.state, entry.state->messages.size()));
  if (on_disk()) {
    KV_ASSIGN(state.setup, store_->Keep(SetupOfFork(*state.setup, id(), name)));
  }
  KV_ASSIGN(SessionStore::Entry made, store_->Create(request_.tenant, std::move(state)));
  branches_.insert(branches_.begin(), {std::move(name), std::move(made.id)});
  return {};
}

Status ChatSession::Switch(std::string_view name) {
  const auto found = std::ranges::find(branches_, name, &Branch::name);
  if (found == branches_.end()) {
    std::string names;
    for (const Branch& branch : branches_) names += (names.empty() ? "" : ", ") + branch.name;
    return Fail(Code::kInvalidArgument, "unknown conversation {}; known: {}", name, names);
  }
  std::rotate(branches_.begin(), found, found + 1);
  return {};
}

Result<Erasure> ChatSession::Forget(size_t index) {
  KV_ASSIGN(const TurnPtr turn, TakeTurn());
  KV_ASSIGN(const SessionStore::Entry entry, turn->Read());
  KV_ASSIGN(Forgetting forgetting, ForgetPart(*store_, *entry.state, {.index = index}, Scope()));
  return Erase(*turn, std::move(forgetting));
}

Result<Erasure> ChatSession::ForgetLast() {
  KV_ASSIGN(const TurnPtr turn, TakeTurn());
  KV_ASSIGN(const SessionStore::Entry entry, turn->Read());
  KV_ASSIGN(const MessageRange last, LastTurn(*entry.state));
  return Erase(*turn, ForgetMessages(*store_, *entry.state, RemoveMessages(*entry.state, last),
                                     last, Scope()));
}

ForgetScope ChatSession::Scope() const {
  return {.model = model_,
          .cache_owner = request_.cache_owner.value_or(request_.tenant),
          .others = store_->OthersOf(request_.tenant, id())};
}

Result<Erasure> ChatSession::Erase(SessionStore::Turn& turn, Forgetting forgetting) {
  KV_TRY(turn.Replace(std::move(forgetting.state)));
  Erasure sum;
  std::optional<Error> failed;  // the session has changed: what is left is asked for all the same
  for (ForgetRequest& request : forgetting.requests) {
    std::promise<Erasure> done;
    engine_.Forget(std::move(request), [&](const Erasure& erased) { done.set_value(erased); });
    const Erasure erased = done.get_future().get();
    if (erased.error && !failed) failed = erased.error;
    sum.blocks += erased.blocks;
    sum.tokens += erased.tokens;
    sum.disk_blocks += erased.disk_blocks;
    sum.kept_shared = std::max(sum.kept_shared, erased.kept_shared);
  }
  if (!failed) return sum;
  failed->message = "the conversation is changed and erased from memory; but: " + failed->message;
  return tl::unexpected(*std::move(failed));
}

Result<std::optional<std::string>> ChatSession::Reset() {
  KV_ASSIGN(std::string made, MakeSession());
  Branch& now = branches_.front();
  std::optional<std::string> kept;
  if (on_disk()) {
    KV_ASSIGN(const bool is_removed, RemoveIfEmpty(now));
    if (!is_removed) kept = now.id;
  } else {
    KV_ASSIGN(const TurnPtr turn, TakeTurn());
    KV_TRY(turn->Remove());
  }
  now.id = std::move(made);
  now.made_here = true;
  return kept;
}

Result<bool> ChatSession::RemoveIfEmpty(const Branch& branch) {
  if (!branch.made_here) return false;
  KV_ASSIGN(const TurnPtr turn, store_->Queue(request_.tenant, branch.id, [] {}));
  KV_ASSIGN(const SessionStore::Entry entry, turn->Read());
  const size_t said = entry.state->messages.size() - (entry.state->has_system() ? 1 : 0);
  if (said > 0) return false;
  KV_TRY(turn->Remove());
  return true;
}

Result<std::vector<ChatSession::Branch>> ChatSession::End() {
  std::vector<Branch> kept;
  for (const Branch& branch : branches_) {
    if (!on_disk()) break;
    KV_ASSIGN(const bool is_removed, RemoveIfEmpty(branch));
    if (!is_removed) kept.push_back(branch);
  }
  return kept;
}

Result<std::vector<ChatSession::Line>> ChatSession::Lines() const {
  KV_ASSIGN(const SessionStore::Entry entry, Read());
  KV_ASSIGN(const SessionPrompt prompt, WholePromptOf(*entry.state, model_));
  std::vector<Line> lines;
  uint32_t begin = 0;
  for (size_t i = 0; i < entry.state->messages.size(); ++i) {
    const SessionMessage& message = *entry.state->messages[i];
    const uint32_t end = prompt.chat.message_ends[i];
    lines.push_back({message.role, message.content, end - begin});
    begin = end;
  }
  return lines;
}

std::vector<std::string> ChatSession::Names() const {
  std::vector<std::string> names;
  for (const Branch& branch : branches_) names.push_back(branch.name);
  return names;
}

std::string ChatSession::NextName() const {
  for (size_t number = branches_.size() + 1;; ++number) {
    std::string name = std::to_string(number);
    if (std::ranges::find(branches_, name, &Branch::name) == branches_.end()) return name;
  }
}

}  // namespace kvasir::cli
