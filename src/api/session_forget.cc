#include "api/session_forget.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "api/session_prompt.h"
#include "base/begins_with.h"
#include "base/result.h"

namespace kvasir {
namespace {

using Ids = std::span<const TokenId>;

// How much of a message goes: all that begins with it.
enum class Upto : uint8_t {
  kText,  // its text, whatever comes after it: an answer may have been cut off, and gone on
  kEnd,   // what the template writes after its text too: else what goes on is another message
};

// Tells whether the ids have all of the text that a request forgets.
bool Contains(Ids ids, const ForgetRequest& request) {
  return SharedLength(ids, Ids(request.ids)) > request.last;
}

// Tells whether one request forgets all that another one does.
bool Covers(const ForgetRequest& one, const ForgetRequest& other) {
  return one.owner == other.owner && one.cache_salt == other.cache_salt &&
         one.adapters == other.adapters && one.first <= other.first && one.last <= other.last &&
         Contains(other.ids, one);
}

// Tells whether a path begins as the prompt that would come next, with all of the text.
bool IsAsNow(Ids ids, const std::optional<PlacedPrompt>& now) {
  return now && SharedLength(ids, Ids(now->prompt.chat.ids)) > now->last_token;
}

bool HasClosing(const std::optional<PlacedPrompt>& now) { return now && !now->closing.empty(); }

Ids ClosingOf(const std::optional<PlacedPrompt>& now) { return now ? Ids(now->closing) : Ids(); }

// Returns the text with what ends its message, as far as the ids have it.
TokenRange WithClosing(Ids ids, TokenRange text, Ids closing) {
  if (text.last < ids.size()) text.last += SharedLength(ids.subspan(text.last + 1), closing);
  return text;
}

// The tokens [begin, end) that a path has of a message.
struct MessageTokens {
  size_t begin, end;
  bool is_cut;  // a forget took the rest of it: others go on from what is left
};

// Returns message `k` of those that begin in a path of so many tokens. It ends where the next one
// begins.
MessageTokens MessageOf(const SessionPath& path, std::span<const SessionPath::Begin> begins,
                        size_t k, size_t tokens) {
  const uint32_t begin = begins[k].at;
  const auto next = std::ranges::find_if(
      begins.subspan(k), [&](const SessionPath::Begin& one) { return one.at > begin; });
  const size_t end = next == begins.end() ? tokens : std::min<size_t>(next->at, tokens);
  return {begin, end, path.cut_at == begin};
}

// Returns where the text of a message stands in a path. `now`: its place in the prompt that would
// come next. `other`: a message whose end stands for the end of one that has no place there. The
// last token is the number of tokens where the path was cut in the message.
TokenRange TextOn(Ids ids, const MessageTokens& said, const std::optional<PlacedPrompt>& now,
                  const std::optional<PlacedPrompt>& other, Upto upto) {
  const auto [begin, end, is_cut] = said;
  if (IsAsNow(ids, now)) {
    return {std::max(begin, now->first_token), std::max(begin, now->last_token)};
  }
  if (is_cut) return {begin, ids.size()};
  // An older text, of which only the place is known. What the template writes after it is not a
  // part of it: an answer that went on after its client had gone has other tokens there.
  const std::optional<PlacedPrompt>& like = HasClosing(now) ? now : other;
  const auto message = ids.subspan(begin, end - begin);
  const Ids closing = ClosingOf(like);
  const auto at = closing.empty() ? message.end() : std::ranges::find_end(message, closing).begin();
  const auto tokens = static_cast<size_t>(at - message.begin());
  const TokenRange text{begin, begin + std::max<size_t>(tokens, 1) - 1};
  return upto == Upto::kText ? text : WithClosing(ids.first(end), text, closing);
}

void TakeClosing(PlacedPrompt* now) {
  const Ids ids(now->prompt.chat.ids);
  now->last_token = WithClosing(ids, {now->first_token, now->last_token}, now->closing).last;
}

// Returns how the template writes a message of the user. Absent: it cannot be rendered.
std::optional<PlacedPrompt> AnyQuestion(const SessionState& state, const ModelView& model) {
  SessionMessage message;
  message.role = "user";
  message.content = "?";
  SessionState question;
  question.setup = state.setup;
  question.messages.push_back(std::make_shared<const SessionMessage>(std::move(message)));
  auto placed = PlaceOf(question, 0, ContentBytes{0, 1}, model);
  if (!placed) return std::nullopt;
  TakeClosing(&*placed);
  return std::move(*placed);
}

bool IsAnswer(const SessionMessage& message) { return message.role == "assistant"; }

// Asks the engine to forget a text, unless another request covers it.
class Requests {
 public:
  // `own` is the session that forgets, `now` the prompt that would come next. All must outlive it.
  Requests(const ForgetScope& scope, const SessionState& own, const SessionPrompt* now)
      : scope_(scope), others_(scope, own, now) {}

  // Takes a text whose last token is the number of ids for one from which nothing goes on.
  void Add(std::vector<TokenId> ids, const PathSpace& space, TokenRange text) {
    if (text.last == ids.size()) ids.push_back(ForgetRequest::kInNoPrompt);
    ForgetRequest request{.owner = scope_.OwnerOf(space),
                          .cache_salt = space.salt,
                          .ids = std::move(ids),
                          .first = static_cast<uint32_t>(text.first),
                          .last = static_cast<uint32_t>(text.last),
                          .adapters = space.adapters,
                          .kept = {}};
    const auto covers = [&](const ForgetRequest& other) { return Covers(other, request); };
    if (std::ranges::any_of(requests_, covers)) return;
    request.kept = others_.For(request);
    requests_.push_back(std::move(request));
  }
  // Adds the same of the prompt that would come next.
  void AddNow(const PlacedPrompt& now) {
    Add(now.prompt.chat.ids, {scope_.cache_owner, std::nullopt}, {now.first_token, now.last_token});
  }
  std::vector<ForgetRequest> Take() { return std::move(requests_); }

 private:
  const ForgetScope& scope_;
  OtherPrompts others_;
  std::vector<ForgetRequest> requests_;
};

// Tells whether a path has what a request erases, or is what an earlier forget left of it.
bool Has(Ids path, const ForgetRequest& request) {
  return Contains(path, request) ||
         (request.ids.back() == ForgetRequest::kInNoPrompt &&
          std::ranges::equal(path, Ids(request.ids).first(request.last)));
}

// Finds where paths have what the requests erase. What the template writes before a text stays on
// its path: a block may end in it, and the session must still find that block.
std::vector<ForgottenPath> PathsWith(std::span<const ForgetRequest> requests,
                                     const SessionPaths& paths, const ForgetScope& scope) {
  std::vector<ForgottenPath> forgotten;
  for (size_t i = 0; i < paths.size(); ++i) {
    const std::vector<TokenId> ids = IdsOf(paths, i);
    const std::vector<SessionPath::Begin> begins = BeginsOf(paths, i);
    for (const ForgetRequest& request : requests) {
      if (!scope.IsIn(paths[i]->space, request) || !Has(ids, request)) continue;
      ForgottenPath one{i, request.first};
      const auto after =
          std::ranges::upper_bound(begins, request.first, {}, &SessionPath::Begin::at);
      if (after != begins.begin()) one.cut_at = std::prev(after)->at;
      forgotten.push_back(one);
    }
  }
  return forgotten;
}

// Finds messages in the prompt that would come next, each once.
class PlacesNow {
 public:
  // `part`: bytes of the content, of a single message; absent: all of it. All must outlive it.
  PlacesNow(const SessionState& state, std::optional<ContentBytes> part, const ModelView& model)
      : state_(state), part_(part), model_(model) {}

  // Absent: it cannot be rendered. O(text) for a message that was not asked for before.
  const std::optional<PlacedPrompt>& Of(size_t index) {
    const auto [found, is_new] = places_.try_emplace(index);
    if (!is_new) return found->second;
    const SessionMessage& message = *state_.messages[index];
    if (auto placed = PlaceOf(state_, index, BytesOf(message), model_)) {
      found->second = std::move(*placed);
      if (UptoOf(message) != Upto::kText) TakeClosing(&*found->second);
    }
    return found->second;
  }
  // Returns where the text of a message stands in a path which has `said` of its `version`.
  TokenRange On(Ids ids, const MessageTokens& said, uint64_t version, size_t index) {
    const std::optional<PlacedPrompt>& now = Of(index);
    const SessionMessage& message = *state_.messages[index];
    const std::optional<ContentBytes> bytes = BytesOf(message);
    if (model_.tokenizer && bytes && version == message.version && !IsAsNow(ids, now)) {
      // The same text after others. A prompt may part from the path after the part.
      const Ids read = ids.subspan(said.begin, said.end - said.begin);
      if (const auto found = FindText(read, {message.content, *bytes}, *model_.tokenizer)) {
        const TokenRange text{said.begin + found->first, said.begin + found->last};
        if (UptoOf(message) == Upto::kText) return text;
        return WithClosing(ids.first(said.end), text, ClosingOf(HasClosing(now) ? now : Other()));
      }
    }
    return TextOn(ids, said, now, HasClosing(now) ? now : Other(), UptoOf(message));
  }

 private:
  // Returns what is forgotten of a content: what the template writes around it is not, since other
  // prompts have it too. Absent: the message has more than a content.
  std::optional<ContentBytes> BytesOf(const SessionMessage& message) const {
    if (part_ || !message.more().fields.empty()) return part_;
    return ContentBytes{0, message.content.size()};
  }

  const std::optional<PlacedPrompt>& Other() {
    if (!other_) other_.emplace(AnyQuestion(state_, model_));
    return *other_;
  }
  Upto UptoOf(const SessionMessage& message) const {
    return part_ || IsAnswer(message) ? Upto::kText : Upto::kEnd;
  }

  const SessionState& state_;
  const std::optional<ContentBytes> part_;
  const ModelView& model_;
  std::map<size_t, std::optional<PlacedPrompt>> places_;
  std::optional<std::optional<PlacedPrompt>> other_;
};

// Adds what the prompt that would come next has of the messages.
void AddNow(const SessionState& state, const MessageRange& messages, PlacesNow& places,
            Requests* asked) {
  for (size_t index = messages.begin; index < messages.end;) {
    const std::optional<PlacedPrompt>& now = places.Of(index);
    if (!now) return;
    if (now->last_token < now->prompt.chat.ids.size()) return asked->AddNow(*now);
    // It is left out, as are all before the first one that is shown.
    const size_t shown = (state.has_system() ? 1 : 0) + now->prompt.dropped;
    index = std::max(index + 1, shown);
  }
}

// Adds what a path has of the messages: the first of them, since all after it goes with it.
// `indexes`: by the messages' numbers.
void AddRead(const SessionState& state, size_t path,
             const std::unordered_map<uint64_t, size_t>& indexes, PlacesNow& places,
             Requests* asked) {
  const std::vector<SessionPath::Begin> begins = BeginsOf(state.paths, path);
  std::optional<uint64_t> first;
  for (size_t k = 0; k < begins.size(); ++k) {
    const auto found = indexes.find(begins[k].number);
    if (found == indexes.end() || (first && first != begins[k].number)) continue;
    first = begins[k].number;
    std::vector<TokenId> ids = IdsOf(state.paths, path);
    if (begins[k].at >= ids.size()) continue;  // nothing was read of it
    const MessageTokens said = MessageOf(*state.paths[path], begins, k, ids.size());
    const TokenRange text = places.On(ids, said, begins[k].version, found->second);
    asked->Add(std::move(ids), state.paths[path]->space, text);
  }
}

Forgetting ForgetOf(SessionStore& store, const SessionState& state, SessionState changed,
                    const MessageRange& messages, std::optional<ContentBytes> part,
                    const ForgetScope& scope) {
  PlacesNow places(state, part, scope.model);
  std::vector<ForgetRequest> requests;
  if (messages.begin < messages.end) {
    const std::optional<PlacedPrompt>& now = places.Of(messages.begin);
    Requests asked(scope, state, now ? &now->prompt : nullptr);
    std::unordered_map<uint64_t, size_t> indexes;
    for (size_t i = messages.begin; i < messages.end; ++i) indexes[state.messages[i]->number] = i;
    for (size_t i = 0; i < state.paths.size(); ++i) AddRead(state, i, indexes, places, &asked);
    AddNow(state, messages, places, &asked);
    requests = asked.Take();
  }
  changed.paths = *WithoutForgotten(store, changed.paths, PathsWith(requests, state.paths, scope),
                                    SessionStore::Room::kMayExceed);
  return Forgetting{std::move(changed), std::move(requests)};
}

}  // namespace

Forgetting ForgetMessages(SessionStore& store, const SessionState& state, SessionState changed,
                          const MessageRange& messages, const ForgetScope& scope) {
  return ForgetOf(store, state, std::move(changed), messages, std::nullopt, scope);
}

Result<Forgetting> ForgetPart(SessionStore& store, const SessionState& state,
                              const SessionPart& part, const ForgetScope& scope) {
  KV_ASSIGN(SessionState changed, Remove(store, state, part));
  std::optional<ContentBytes> bytes;
  if (part.end) {
    const std::string& content = state.messages[part.index]->content;
    bytes = {*ByteOfCodePoint(content, part.begin), *ByteOfCodePoint(content, *part.end)};
  }
  return ForgetOf(store, state, std::move(changed), {part.index, part.index + 1}, bytes, scope);
}

namespace {

// Returns the index of the first message of the prompt that is neither a system nor a developer
// message. The prompt leaves out the first `dropped` messages after the system's. Absent: all are
// of these roles.
std::optional<size_t> FirstSaid(const SessionState& state, uint32_t dropped) {
  for (size_t i = (state.has_system() ? 1 : 0) + dropped; i < state.messages.size(); ++i) {
    if (!state.messages[i]->is_system()) return i;
  }
  return std::nullopt;
}

// Tells whether the message `number` is a system's or developer's: paths that an older version
// wrote do not say it.
bool IsSystem(const SessionState& state, uint64_t number) {
  return std::ranges::any_of(state.messages, [&](const auto& message) {
    return message->number == number && message->is_system();
  });
}

// Tells how much goes of the message that has this number in a path.
Upto UptoOf(const SessionState& state, uint64_t number) {
  const auto is_it = [&](const auto& message) { return message->number == number; };
  const auto found = std::ranges::find_if(state.messages, is_it);
  return found != state.messages.end() && IsAnswer(**found) ? Upto::kText : Upto::kEnd;
}

// Returns the prompt that would come next, with the place of a message; without one, or where it is
// left out, of none.
std::optional<PlacedPrompt> PromptWith(const SessionState& state, std::optional<size_t> index,
                                       const ModelView& model) {
  if (!index) {
    auto prompt = PromptOf(state, model);
    if (!prompt) return std::nullopt;
    const size_t tokens = prompt->chat.ids.size();
    return PlacedPrompt{std::move(*prompt), tokens, tokens};
  }
  const SessionMessage& message = *state.messages[*index];
  std::optional<ContentBytes> bytes;
  if (message.more().fields.empty()) bytes = {0, message.content.size()};
  auto placed = PlaceOf(state, *index, bytes, model);
  if (!placed) return std::nullopt;
  if (!IsAnswer(message)) TakeClosing(&*placed);
  return std::move(*placed);
}

// Returns the prompt that would come next, and in it all up to the end of the first message that
// somebody said.
std::optional<PlacedPrompt> BeginningNow(const SessionState& state, const ModelView& model) {
  const std::optional<size_t> said = FirstSaid(state, state.dropped);
  std::optional<PlacedPrompt> now = PromptWith(state, said, model);
  if (now) {  // where the context is full, the prompt may leave that message out
    const std::optional<size_t> first = FirstSaid(state, now->prompt.dropped);
    if (first != said) now = PromptWith(state, first, model);
  }
  if (!now || now->prompt.chat.ids.empty()) return std::nullopt;
  now->first_token = 0;
  const size_t tokens = now->prompt.chat.ids.size();
  if (now->last_token < tokens) return now;
  return PlacedPrompt{std::move(now->prompt), 0, tokens - 1};
}

}  // namespace

ForgetRequest ForgetPrompt(std::vector<TokenId> ids, const PathSpace& space,
                           const ForgetScope& scope) {
  const SessionState none;
  Requests asked(scope, none, nullptr);
  const TokenRange all{0, ids.size() - 1};
  asked.Add(std::move(ids), space, all);
  return std::move(asked.Take().front());
}

std::vector<ForgetRequest> ForgetAll(const SessionState& state, const ForgetScope& scope) {
  std::optional<PlacedPrompt> now = BeginningNow(state, scope.model);
  Requests asked(scope, state, now ? &now->prompt : nullptr);
  std::optional<PlacedPrompt> other;
  if (!HasClosing(now) && !state.paths.empty()) other = AnyQuestion(state, scope.model);
  for (size_t i = 0; i < state.paths.size(); ++i) {
    std::vector<TokenId> ids = IdsOf(state.paths, i);
    if (ids.empty()) continue;
    TokenRange text{0, ids.size()};  // a system text alone, from which other prompts go on
    const std::vector<SessionPath::Begin> begins = BeginsOf(state.paths, i);
    const auto said = std::ranges::find_if(begins, [&](const SessionPath::Begin& begin) {
      return !begin.is_system && !IsSystem(state, begin.number) && begin.at < ids.size();
    });
    if (said != begins.end()) {
      const auto k = static_cast<size_t>(said - begins.begin());
      const MessageTokens message = MessageOf(*state.paths[i], begins, k, ids.size());
      text.last = TextOn(ids, message, now, other, UptoOf(state, said->number)).last;
    }
    asked.Add(std::move(ids), state.paths[i]->space, text);
  }
  if (now) asked.AddNow(*now);
  return asked.Take();
}

}  // namespace kvasir
