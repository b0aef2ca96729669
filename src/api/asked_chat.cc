#include "api/asked_chat.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "api/rewritten_history.h"
#include "api/session_body.h"
#include "api/session_prompt.h"
#include "base/result.h"

namespace kvasir {
namespace {

// Rows of a step: what comes meanwhile waits for one step at most.
constexpr uint32_t kRowsAtOnce = 64;
// Stands for the next message of the user. What is written before it is the history.
constexpr std::string_view kNextQuestion = "?";

bool MayHaveLines(MissReason reason) {
  return reason == MissReason::kDiverged || reason == MissReason::kCold;
}

}  // namespace

AskedChat::AskedChat(std::string body, const ModelView& model, TurnPreparer& preparer)
    : body_(std::move(body)),
      is_session_(false),
      model_(model),
      preparer_(preparer),
      epoch_(preparer.epoch()),
      work_bytes_(body_.size()) {}

AskedChat::AskedChat(SessionState state, const ModelView& model, TurnPreparer& preparer)
    : state_(std::move(state)),
      is_session_(true),
      model_(model),
      preparer_(preparer),
      epoch_(preparer.epoch()) {
  for (const auto& message : state_.messages) work_bytes_ += message->content.size();
}

void AskedChat::PrepareAfter(const GenerateRequest& request) {
  request_ = {request.tenant,     request.cache_owner, request.cache_salt,    request.use_disk,
              request.use_remote, request.adapters,    request.adapter_digest};
}

uint64_t AskedChat::held_bytes() const {
  return sizeof(*this) + body_.capacity() + answer_.capacity() +
         lines_.capacity() * sizeof(lines_[0]) +
         state_.messages.capacity() * sizeof(state_.messages[0]) +
         state_.paths.capacity() * sizeof(state_.paths[0]);
}

bool AskedChat::IsShown(size_t index) const {
  return (index == 0 && state_.has_system()) || index >= state_.first_shown();
}

// Returns the chat as a chat completion would have it; of a session without the messages that its
// prompt leaves out.
Result<JsonValue> AskedChat::Chat(JsonTree* tree) const {
  size_t values_left = kMaxJsonValues;
  if (!is_session_) return ParseObject(body_, kChatIds, &values_left, tree);
  std::vector<JsonValue> messages;
  for (size_t i = 0; i < state_.messages.size(); ++i) {
    if (!IsShown(i)) continue;
    KV_ASSIGN(const JsonValue message, JsonOf(*state_.messages[i], tree));
    messages.push_back(message);
  }
  KV_ASSIGN(std::vector<JsonValue::Member> members, MembersOf(state_.setup->fields, tree));
  members.push_back({"messages", tree->Array(messages)});
  members.push_back({"continue_final_message", JsonValue(false)});
  return tree->Object(std::move(members));
}

bool AskedChat::MayBeRewritten(const Miss& miss) const {
  const auto& messages = state_.messages;
  const size_t first = std::min<size_t>(miss.message_index.value_or(UINT32_MAX), messages.size());
  return std::any_of(messages.begin() + static_cast<ptrdiff_t>(first), messages.end(),
                     [](const auto& one) { return one->role == "assistant"; });
}

bool AskedChat::MayBeRetokenized(const Miss& miss) const {
  return std::ranges::any_of(state_.paths, [&](const auto& path) {
    return path->shared + path->ids.size() > miss.at_token;
  });
}

bool AskedChat::MayHaveOtherReason(const Miss& miss) const {
  return miss.reason == MissReason::kDiverged &&
         (!is_session_ || MayBeRewritten(miss) || MayBeRetokenized(miss));
}

bool AskedChat::MayExplain(const Miss& miss) const {
  return MayHaveOtherReason(miss) || (MayHaveLines(miss.reason) && !lines_.empty());
}

AskedChat::Explained AskedChat::Explain(const Miss& miss) const {
  const bool may_have_lines = MayHaveLines(miss.reason);
  const auto changes =
      may_have_lines ? heads_.Explain(lines_, head_number_) : std::vector<LineChange>();
  Explained found{miss.reason, {}};
  if (!MayHaveOtherReason(miss) && changes.empty()) return found;
  JsonTree tree;
  const auto chat = Chat(&tree);
  if (!chat) return found;
  if (MayHaveOtherReason(miss)) found.reason = ReasonOf(miss, *chat, &tree);
  if (MayHaveLines(found.reason)) found.lines = LinesOf(changes, miss.at_token, *chat, &tree);
  return found;
}

MissReason AskedChat::ReasonOf(const Miss& miss, const JsonValue& chat, JsonTree* tree) const {
  size_t message = miss.message_index.value_or(UINT32_MAX);
  if (is_session_ && message < state_.messages.size()) {
    size_t left_out = 0;
    for (size_t i = 0; i < message; ++i) left_out += !IsShown(i);
    message -= left_out;
  }
  message = std::min(message, chat.Find("messages")->size());
  std::vector<std::string_view> written;  // of a session's answers: their thoughts and calls too
  for (size_t i = 0; i < state_.messages.size(); ++i) {
    if (IsShown(i)) written.push_back(state_.messages[i]->more().written);
  }
  if (IsRewrittenFrom(chat, message, model_, tree, written)) {
    return MissReason::kTemplateRewrote;
  }
  return IsRetokenized(miss) ? MissReason::kRetokenized : MissReason::kDiverged;
}

// Tells whether a prompt or answer that the session has read has the text of the missed token
// there, in other ids.
bool AskedChat::IsRetokenized(const Miss& miss) const {
  if (!is_session_ || !MayBeRetokenized(miss)) return false;
  const auto prompt = PromptOf(state_, model_);
  if (!prompt || miss.at_token >= prompt->chat.ids.size()) return false;
  constexpr size_t kLooked = 16;  // ids of which the text is compared
  const auto text_of = [&](std::span<const TokenId> ids) {
    const auto rest = ids.subspan(miss.at_token);
    return model_.tokenizer->Decode(rest.first(std::min(rest.size(), kLooked)),
                                    SpecialTokens::kShow);
  };
  const std::span<const TokenId> ids(prompt->chat.ids);
  const std::string text = text_of(ids);
  const size_t token_bytes =
      model_.tokenizer->Decode(ids.subspan(miss.at_token, 1), SpecialTokens::kShow).size();
  for (size_t i = 0; i < state_.paths.size(); ++i) {
    const std::vector<TokenId> path = IdsOf(state_.paths, i);
    const auto shared = std::ranges::mismatch(path, ids).in1 - path.begin();
    if (static_cast<size_t>(shared) != miss.at_token || miss.at_token >= path.size()) continue;
    const std::string other = text_of(path);
    const auto same = std::ranges::mismatch(text, other).in1 - text.begin();
    const size_t other_bytes =
        model_.tokenizer->Decode(std::span(path).subspan(miss.at_token, 1), SpecialTokens::kShow)
            .size();
    if (static_cast<size_t>(same) >= std::max(token_bytes, other_bytes)) return true;
  }
  return false;
}

Result<ChatPrompt> AskedChat::NextOfBody() const {
  JsonTree tree;
  KV_ASSIGN(const JsonValue chat, Chat(&tree));
  const auto said = chat.Find("messages")->items();
  std::vector<JsonValue> messages(said.begin(), said.end());
  const auto add = [&](std::string_view role, std::string_view content) {
    messages.push_back(
        tree.Object({{"role", tree.String(role)}, {"content", tree.String(content)}}));
  };
  add("assistant", answer_);
  add("user", kNextQuestion);
  std::vector<JsonValue::Member> members(chat.members().begin(), chat.members().end());
  members.push_back({"messages", tree.Array(messages)});  // the last one of equal keys counts
  members.push_back({"continue_final_message", JsonValue(false)});
  const JsonValue next = tree.Object(std::move(members));
  JsonFields fields(next);
  KV_ASSIGN(const RenderedChat rendered, RenderMessages(fields, &tree, model_));
  return EncodeChat(rendered, model_);
}

// Returns the prompt with a next question. Adds it, up to the question, to the session's paths:
// they say what is to be forgotten, so they must have all that is computed for the session.
Result<ChatPrompt> AskedChat::NextOfSession() {
  KV_ASSIGN(const SessionStore::Entry entry, turn_->Read());
  SessionState state = *entry.state;
  auto question = std::make_shared<SessionMessage>();
  question->role = "user";
  question->content = kNextQuestion;
  state.messages.push_back(std::move(question));
  KV_ASSIGN(SessionPrompt next, PromptOf(state, model_));
  state.messages.pop_back();
  SessionState shown = state;
  shown.dropped = next.dropped;
  const auto& ends = next.chat.message_ends;
  std::vector<SessionPath::Begin> begins = BeginsOf(shown, next.chat);
  std::vector<TokenId> ids(next.chat.ids.begin(),
                           next.chat.ids.begin() + ends[state.messages.size() - 1]);
  KV_ASSIGN(state.paths, AddPath(turn_->store(), state.paths, std::move(ids), std::move(begins),
                                 {request_->cache_owner.value_or(request_->tenant),
                                  request_->cache_salt, request_->adapter_digest.value_or("")}));
  KV_TRY(turn_->Replace(std::move(state)));
  return std::move(next.chat);
}

GenerateRequest AskedChat::RequestFor(ChatPrompt prompt) const {
  GenerateRequest request;
  request.tenant = request_->tenant;
  request.cache_owner = request_->cache_owner;
  request.cache_salt = request_->cache_salt;
  request.use_disk = request_->use_disk;
  request.use_remote = request_->use_remote;
  request.adapters = request_->adapters;
  request.adapter_digest = request_->adapter_digest;
  prompt.message_ends.pop_back();  // of the question
  prompt.ids.resize(prompt.message_ends.empty() ? 0 : prompt.message_ends.back());
  request.prompt = std::move(prompt.ids);
  request.message_ends = std::move(prompt.message_ends);
  request.begins_with_system = prompt.begins_with_system;
  request.max_tokens = 0;
  request.chunk_tokens = kRowsAtOnce;
  request.only_when_idle = true;
  return request;
}

void AskedChat::PrepareNext() {
  if (!request_) return;
  auto prompt = is_session_ ? NextOfSession() : NextOfBody();
  if (prompt && !prompt->message_ends.empty()) {
    preparer_.Submit(RequestFor(std::move(*prompt)), turn_ ? turn_->id() : "", epoch_);
  }
  turn_ = nullptr;
}

}  // namespace kvasir
