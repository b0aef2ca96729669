#include "api/other_prompts.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/begins_with.h"

namespace kvasir {
namespace {

using IdSpan = std::span<const TokenId>;

constexpr size_t kLeastRenderedBytes = 1024;  // what a rendering costs in any case

// Returns how many ids each path shares with a prompt. O(paths + ids that are shared).
std::vector<size_t> SharedLengths(const SessionPaths& paths, IdSpan prompt) {
  std::vector<size_t> shared;
  shared.reserve(paths.size());
  for (const auto& path : paths) {
    size_t length = path->shared;
    if (length > 0) length = std::min(length, shared[path->parent]);
    if (length == path->shared && length <= prompt.size()) {
      length += SharedLength(IdSpan(path->ids), prompt.subspan(length));
    }
    shared.push_back(length);
  }
  return shared;
}

bool SaysTheSame(const SessionMessage& one, const SessionMessage& other) {
  return one.role == other.role && one.content == other.content &&
         one.more().fields == other.more().fields;
}

size_t TextBytes(const SessionState& state) {
  size_t bytes = state.setup->fields.size();
  for (const auto& message : state.messages) {
    bytes += message->content.size() + message->more().fields.size();
  }
  return bytes;
}

}  // namespace

void OtherPrompts::FindEnds() {
  ends_.emplace();
  for (const auto& state : scope_.others) ends_->push_back(ContainedTokens(*state));
}

// Returns what a session says and has not read yet. Empty: it begins otherwise than the one that
// forgets, or it cannot be rendered.
OtherPrompts::Ids OtherPrompts::UnreadOf(const SessionState& state, size_t* bytes_left) const {
  const size_t bytes = std::max(TextBytes(state), kLeastRenderedBytes);
  if (bytes <= *bytes_left) {
    *bytes_left -= bytes;
    auto prompt = PromptOf(state, scope_.model);
    return prompt ? std::move(prompt->chat.ids) : Ids();
  }
  if (now_ == nullptr || state.setup->fields != own_.setup->fields) return {};
  const auto& messages = state.messages;
  const auto differs = std::ranges::mismatch(
      messages, own_.messages,
      [](const auto& one, const auto& other) { return SaysTheSame(*one, *other); });
  const auto same = static_cast<size_t>(differs.in1 - messages.begin());
  const ChatPrompt& prompt = now_->chat;
  const size_t tokens =
      same < prompt.message_begins.size() ? prompt.message_begins[same] : prompt.ids.size();
  return {prompt.ids.begin(), prompt.ids.begin() + static_cast<ptrdiff_t>(tokens)};
}

void OtherPrompts::FindUnread() {
  unread_.emplace();
  if (own_.messages.empty()) return;
  size_t bytes_left = kMostRenderedBytes;
  for (const auto& state : scope_.others) {
    const auto& messages = state->messages;
    const bool begins_so = state->paths.empty() && !messages.empty() &&
                           messages.front()->content == own_.messages.front()->content;
    if (!begins_so) continue;
    if (Ids ids = UnreadOf(*state, &bytes_left); !ids.empty()) unread_->push_back(std::move(ids));
  }
}

std::vector<std::vector<TokenId>> OtherPrompts::For(const ForgetRequest& request) {
  if (!ends_) FindEnds();
  std::vector<Ids> kept;
  size_t longest = 0;  // common beginning of those that part before the text ends: one is enough
  // Returns whether the whole prompt must be known that shares so many ids.
  const auto is_whole = [&](size_t shared) {
    if (shared <= request.first) return false;
    if (shared > request.last || scope_.keeps_whole) return true;
    longest = std::max(longest, shared);
    return false;
  };
  for (size_t k = 0; k < scope_.others.size(); ++k) {
    const SessionPaths& paths = scope_.others[k]->paths;
    const std::vector<size_t> shared = SharedLengths(paths, IdSpan(request.ids));
    for (size_t i = 0; i < paths.size(); ++i) {
      const uint32_t end = (*ends_)[k][i];
      if (!scope_.IsIn(paths[i]->space, request)) continue;
      if (!is_whole(std::min<size_t>(shared[i], end))) continue;
      kept.push_back(IdsOf(paths, i));
      kept.back().resize(end);
    }
  }
  if (scope_.IsIn({scope_.cache_owner, std::nullopt}, request)) {
    if (!unread_) FindUnread();
    for (const Ids& ids : *unread_) {
      if (is_whole(SharedLength(IdSpan(ids), IdSpan(request.ids)))) kept.push_back(ids);
    }
  }
  const auto end = request.ids.begin() + static_cast<ptrdiff_t>(longest);
  if (longest > 0) kept.emplace_back(request.ids.begin(), end);
  return kept;
}

}  // namespace kvasir
