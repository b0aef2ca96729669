#include "api/session_forget.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "api/session_prompt.h"
#include "base/begins_with.h"
#include "base/result.h"

namespace kvasir {
namespace {

using Ids = std::span<const TokenId>;

// Whether the ids have all of the text that a request forgets.
bool Contains(Ids ids, const ForgetRequest& request) {
  return SharedLength(ids, Ids(request.ids)) > request.last;
}

// Whether one request forgets all that another one does.
bool Covers(const ForgetRequest& one, const ForgetRequest& other) {
  return one.cache_salt == other.cache_salt && one.first <= other.first && one.last <= other.last &&
         Contains(other.ids, one);
}

// Prompts of the tenant's other sessions that have the first token of what a request forgets.
std::vector<std::vector<TokenId>> PromptsToKeep(const ForgetScope& scope, const SessionState& own,
                                                const ForgetRequest& request) {
  std::vector<std::vector<TokenId>> kept;
  size_t longest = 0;  // common beginning of those that part before the text ends: one is enough
  const auto keep = [&](std::vector<TokenId> ids) {
    const size_t shared = SharedLength(Ids(ids), Ids(request.ids));
    if (shared <= request.first) return;
    if (shared > request.last || scope.keeps_whole) {
      kept.push_back(std::move(ids));
    } else {
      longest = std::max<size_t>(longest, shared);
    }
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
  const auto end = request.ids.begin() + static_cast<std::ptrdiff_t>(longest);
  if (longest > 0) kept.emplace_back(request.ids.begin(), end);
  return kept;
}

struct TokenRange {
  size_t first = 0, last = 0;  // both included
};

// Where the text stands in a path in which its message has the tokens [begin, end). `now`: its
// place in the prompt that would come next.
TokenRange TextOn(Ids ids, size_t begin, size_t end, const std::optional<PlacedPrompt>& now) {
  if (now && SharedLength(ids, Ids(now->prompt.chat.ids)) > now->last_token) {
    return {std::max(begin, now->first_token), std::max(begin, now->last_token)};
  }
  // An older text, of which only the place is known. What the template writes after it is not a
  // part of it: an answer that went on after its client had gone has other tokens there.
  const auto message = ids.subspan(begin, end - begin);
  const auto closing = now && !now->closing.empty()
                           ? std::ranges::find_end(message, now->closing).begin()
                           : message.end();
  const auto tokens = static_cast<size_t>(closing - message.begin());
  return {begin, begin + std::max<size_t>(tokens, 1) - 1};
}

// Message `k` of those that begin in a path ends where the next one begins.
size_t EndOf(std::span<const SessionPath::Begin> begins, size_t k, size_t tokens) {
  for (size_t next = k + 1; next < begins.size(); ++next) {
    if (begins[next].at > begins[k].at) return std::min<size_t>(begins[next].at, tokens);
  }
  return tokens;
}

// Asks the engine to forget a text, unless another request covers it.
class Requests {
 public:
  Requests(const ForgetScope& scope, const SessionState& own) : scope_(scope), own_(own) {}

  void Add(std::vector<TokenId> ids, const std::optional<std::string>& salt, TokenRange text) {
    ForgetRequest request{.owner = scope_.cache_owner,
                          .cache_salt = salt,
                          .ids = std::move(ids),
                          .first = static_cast<uint32_t>(text.first),
                          .last = static_cast<uint32_t>(text.last),
                          .kept = {}};
    const auto covers = [&](const ForgetRequest& other) { return Covers(other, request); };
    if (std::ranges::any_of(requests_, covers)) return;
    request.kept = PromptsToKeep(scope_, own_, request);
    requests_.push_back(std::move(request));
  }
  std::vector<ForgetRequest> Take() { return std::move(requests_); }

 private:
  const ForgetScope& scope_;
  const SessionState& own_;
  std::vector<ForgetRequest> requests_;
};

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
  const SessionMessage& message = *state.messages[part.index];
  // Its place in the prompt that would come next; then wherever else it was read.
  std::optional<PlacedPrompt> now;
  // What the template writes around the content is not forgotten: other prompts have it too.
  std::optional<ContentBytes> bytes;
  if (part.end) {
    bytes = {*ByteOfCodePoint(message.content, part.begin),
             *ByteOfCodePoint(message.content, *part.end)};
  } else if (message.more().fields.empty()) {
    bytes = {0, message.content.size()};
  }
  if (auto placed = PlaceOf(state, part.index, bytes, scope.model)) now = std::move(*placed);
  Requests asked(scope, changed);
  for (size_t i = 0; i < state.paths.size(); ++i) {
    const std::vector<SessionPath::Begin> begins = BeginsOf(state.paths, i);
    for (size_t k = 0; k < begins.size(); ++k) {
      if (begins[k].number != message.number) continue;
      std::vector<TokenId> ids = IdsOf(state.paths, i);
      if (begins[k].at >= ids.size()) continue;  // nothing was read of it
      const TokenRange text = TextOn(ids, begins[k].at, EndOf(begins, k, ids.size()), now);
      asked.Add(std::move(ids), state.paths[i]->cache_salt, text);
    }
  }
  if (now && now->last_token < now->prompt.chat.ids.size()) {
    asked.Add(std::move(now->prompt.chat.ids), std::nullopt, {now->first_token, now->last_token});
  }
  std::vector<ForgetRequest> requests = asked.Take();
  changed.paths = *WithoutForgotten(store, changed.paths, PathsWith(requests, state.paths),
                                    SessionStore::Room::kMayExceed);
  return Forgetting{std::move(changed), std::move(requests)};
}

namespace {

// The index of the first message of the prompt that is neither a system nor a developer message.
// The prompt leaves out the first `dropped` messages after the system's. Absent: all are of these
// roles.
std::optional<size_t> FirstSaid(const SessionState& state, uint32_t dropped) {
  for (size_t i = (state.has_system() ? 1 : 0) + dropped; i < state.messages.size(); ++i) {
    if (!state.messages[i]->is_system()) return i;
  }
  return std::nullopt;
}

// Paths that an older version wrote do not say it.
bool IsSystem(const SessionState& state, uint64_t number) {
  return std::ranges::any_of(state.messages, [&](const auto& message) {
    return message->number == number && message->is_system();
  });
}

// The prompt that would come next, and in it all up to the end of the first message that somebody
// said.
std::optional<PlacedPrompt> BeginningNow(const SessionState& state, const ModelView& model) {
  auto prompt = PromptOf(state, model);
  if (!prompt || prompt->chat.ids.empty()) return std::nullopt;
  std::optional<PlacedPrompt> now;
  if (const auto said = FirstSaid(state, prompt->dropped)) {
    const SessionMessage& message = *state.messages[*said];
    std::optional<ContentBytes> bytes;
    if (message.more().fields.empty()) bytes = {0, message.content.size()};
    if (auto placed = PlaceOf(state, *said, bytes, model)) now = std::move(*placed);
  }
  const size_t tokens = prompt->chat.ids.size();
  if (!now || now->last_token >= tokens) now = PlacedPrompt{std::move(*prompt), 0, tokens - 1};
  now->first_token = 0;
  return now;
}

}  // namespace

ForgetRequest ForgetPrompt(std::vector<TokenId> ids, const std::optional<std::string>& cache_salt,
                           const ForgetScope& scope) {
  const SessionState none;
  Requests asked(scope, none);
  const TokenRange all{0, ids.size() - 1};
  asked.Add(std::move(ids), cache_salt, all);
  return std::move(asked.Take().front());
}

std::vector<ForgetRequest> ForgetAll(const SessionState& state, const ForgetScope& scope) {
  std::optional<PlacedPrompt> now = BeginningNow(state, scope.model);
  Requests asked(scope, state);
  for (size_t i = 0; i < state.paths.size(); ++i) {
    std::vector<TokenId> ids = IdsOf(state.paths, i);
    if (ids.empty()) continue;
    TokenRange text{0, ids.size() - 1};
    const std::vector<SessionPath::Begin> begins = BeginsOf(state.paths, i);
    const auto said = std::ranges::find_if(begins, [&](const SessionPath::Begin& begin) {
      return !begin.is_system && !IsSystem(state, begin.number) && begin.at < ids.size();
    });
    if (said != begins.end()) {
      const size_t end = EndOf(begins, static_cast<size_t>(said - begins.begin()), ids.size());
      text.last = TextOn(ids, said->at, end, now).last;
    }
    asked.Add(std::move(ids), state.paths[i]->cache_salt, text);
  }
  if (now) {
    asked.Add(std::move(now->prompt.chat.ids), std::nullopt, {now->first_token, now->last_token});
  }
  return asked.Take();
}

}  // namespace kvasir
