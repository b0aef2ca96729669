#include "server/session_forget.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/result.h"
#include "server/session_prompt.h"

namespace kvasir {
namespace {

size_t SharedIds(std::span<const TokenId> a, std::span<const TokenId> b) {
  return static_cast<size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

// Whether the ids begin with those that a request forgets.
bool Contains(std::span<const TokenId> ids, const ForgetRequest& request) {
  return SharedIds(ids, request.ids) > request.first;
}

// Prompts of the tenant's other sessions that have what a request forgets.
std::vector<std::vector<TokenId>> KeptPrompts(const ForgetScope& scope, const SessionState& own,
                                              const ForgetRequest& request) {
  std::vector<std::vector<TokenId>> kept;
  const auto keep = [&](std::vector<TokenId> ids) {
    if (Contains(ids, request)) kept.push_back(std::move(ids));
  };
  for (const auto& state : scope.others) {
    const std::vector<uint32_t> ends = ContainedTokens(*state);
    for (size_t i = 0; i < state->paths.size(); ++i) {
      if (state->paths[i]->cache_salt != request.cache_salt) continue;
      std::vector<TokenId> ids = IdsOf(state->paths, i);
      ids.resize(ends[i]);
      keep(std::move(ids));
    }
    // What it says and has not read yet; only where it begins as this session does.
    const auto& messages = state->messages;
    if (!state->paths.empty() || request.cache_salt || messages.empty() || own.messages.empty() ||
        messages.front()->content != own.messages.front()->content) {
      continue;
    }
    if (auto prompt = PromptOf(*state, scope.model)) keep(std::move(prompt->chat.ids));
  }
  return kept;
}

// Whether a path has token `from` of these ids and not all up to token `to`: the message stands
// there too, written otherwise.
bool PartsBetween(const SessionPaths& paths, std::span<const TokenId> ids, size_t from, size_t to) {
  for (size_t i = 0; i < paths.size(); ++i) {
    const size_t shared = SharedIds(IdsOf(paths, i), ids);
    if (shared > from && shared <= to) return true;
  }
  return false;
}

// Where paths have what the requests erase.
std::vector<ForgottenPath> PathsWith(std::span<const ForgetRequest> requests,
                                     const SessionPaths& paths) {
  std::vector<ForgottenPath> forgotten;
  for (size_t i = 0; i < paths.size(); ++i) {
    const std::vector<TokenId> ids = IdsOf(paths, i);
    for (const ForgetRequest& request : requests) {
      if (paths[i]->cache_salt == request.cache_salt && Contains(ids, request)) {
        forgotten.push_back({i, request.first});
      }
    }
  }
  return forgotten;
}

}  // namespace

Result<Forgetting> ForgetPart(SessionStore& store, const SessionState& state,
                              const SessionPart& part, const ForgetScope& scope) {
  KV_ASSIGN(SessionState changed, Remove(store, state, part));
  std::vector<ForgetRequest> requests;
  const auto add = [&](ForgetRequest request) {
    for (const ForgetRequest& other : requests) {
      const bool same = other.cache_salt == request.cache_salt && other.first <= request.first;
      if (same && Contains(request.ids, other)) return;
    }
    request.owner = scope.cache_owner;
    request.kept = KeptPrompts(scope, changed, request);
    requests.push_back(std::move(request));
  };
  const SessionMessage& message = *state.messages[part.index];
  // Its place in the prompt that would come next; then wherever else it was read.
  std::optional<PlacedPrompt> now;
  const bool is_whole = !part.end;
  // What the template writes before the content is not forgotten: other prompts have it too.
  std::optional<size_t> byte;
  if (!is_whole || message.more().fields.empty())
    byte = ByteOfCodePoint(message.content, part.begin);
  if (auto placed = PlaceOf(state, part.index, byte, scope.model)) {
    now = std::move(*placed);
  }
  for (size_t i = 0; i < state.paths.size(); ++i) {
    const SessionPath& path = *state.paths[i];
    for (const SessionPath::Begin& begin : BeginsOf(state.paths, i)) {
      if (begin.number != message.number) continue;
      std::vector<TokenId> ids = IdsOf(state.paths, i);
      if (begin.at >= ids.size()) continue;  // nothing was read of it
      uint32_t first = begin.at;
      if (now && SharedIds(ids, now->prompt.chat.ids) > now->first_token &&
          !PartsBetween(state.paths, ids, begin.at, now->first_token)) {
        first = std::max(first, static_cast<uint32_t>(now->first_token));
      }
      add({.cache_salt = path.cache_salt, .ids = std::move(ids), .first = first});
    }
  }
  if (now && now->first_token < now->prompt.chat.ids.size()) {
    add({.ids = std::move(now->prompt.chat.ids), .first = static_cast<uint32_t>(now->first_token)});
  }
  changed.paths = *WithoutForgotten(store, changed.paths, PathsWith(requests, state.paths),
                                    SessionStore::Room::kMayExceed);
  return Forgetting{std::move(changed), std::move(requests)};
}

std::vector<ForgetRequest> ForgetAll(const SessionState& state, const ForgetScope& scope) {
  std::vector<ForgetRequest> requests;
  for (size_t i = 0; i < state.paths.size(); ++i) {
    if (state.paths[i]->shared > 0 || state.paths[i]->ids.empty()) continue;
    ForgetRequest request{.owner = scope.cache_owner,
                          .cache_salt = state.paths[i]->cache_salt,
                          .ids = IdsOf(state.paths, i)};
    request.kept = KeptPrompts(scope, state, request);
    requests.push_back(std::move(request));
  }
  return requests;
}

}  // namespace kvasir
