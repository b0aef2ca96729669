// Changes of a session's state.
#include <algorithm>
#include <iterator>
#include <span>
#include <unordered_set>

#include "base/check.h"
#include "base/result.h"
#include "base/sizes.h"
#include "base/utf8.h"
#include "kvasir/session.h"

namespace kvasir {
namespace {

// Copies a state whose messages will differ: what is known of the whole is not known any more.
SessionState Changed(const SessionState& state) {
  SessionState changed = state;
  changed.tokens.reset();
  return changed;
}

// Makes prompts begin at the beginning again when fewer messages are left than were dropped.
void KeepDropped(SessionState* state) {
  if (state->first_shown() >= state->messages.size()) state->dropped = 0;
}

// Checks that each segment's name stands for one place of the session.
Status CheckNames(const SessionState& state) {
  std::unordered_set<std::string_view> names;
  for (const auto& message : state.messages) {
    for (const MessageSegment& segment : message->more().segments) {
      if (!names.insert(segment.name).second) {
        return FailField(Code::kInvalidArgument, "segments",
                         "two segments of the session have the name \"{}\"", segment.name);
      }
    }
  }
  return {};
}

Status CheckIndex(const SessionState& state, size_t index) {
  if (index < state.messages.size()) return {};
  return FailField(Code::kInvalidArgument, "index", "{} is outside the {} of the session", index,
                   CountText(state.messages.size(), "message"));
}

// Returns the segments of a text from which code points [begin, end) were taken out.
std::vector<MessageSegment> Without(std::span<const MessageSegment> segments, uint32_t begin,
                                    uint32_t end) {
  const auto moved = [&](uint32_t point) {
    return point <= begin ? point : std::max(begin, point - std::min(point, end - begin));
  };
  std::vector<MessageSegment> left;
  for (const MessageSegment& segment : segments) {
    MessageSegment one{segment.name, moved(segment.begin), moved(segment.end)};
    if (one.begin < one.end) left.push_back(std::move(one));
  }
  return left;
}

}  // namespace

std::vector<TokenId> IdsOf(const SessionPaths& paths, size_t index) {
  const SessionPath& path = *paths[index];
  std::vector<TokenId> ids(path.shared + path.ids.size());
  std::ranges::copy(path.ids, ids.begin() + path.shared);
  // A path's parent comes before it, and has the ids that it shares, or its own parent has.
  size_t left = path.shared;
  for (const SessionPath* at = &path; left > 0;) {
    at = paths[at->parent].get();
    if (left <= at->shared) continue;
    const size_t own = left - at->shared;
    std::copy_n(at->ids.begin(), own, ids.begin() + at->shared);
    left = at->shared;
  }
  return ids;
}

namespace {

using Begins = std::vector<SessionPath::Begin>;

void Order(Begins* begins) { std::ranges::stable_sort(*begins, {}, &SessionPath::Begin::at); }

// Returns the begins at one token. REQUIRES: they are ordered.
auto BeginsAt(const Begins& begins, uint32_t at) {
  return std::ranges::equal_range(begins, at, {}, &SessionPath::Begin::at);
}

bool IsKnown(const Begins& known, const Begins& begins, uint32_t at) {
  return std::ranges::equal(BeginsAt(known, at), BeginsAt(begins, at), [](auto& one, auto& other) {
    return one.number == other.number && one.version == other.version;
  });
}

}  // namespace

std::vector<SessionPath::Begin> BeginsOf(const SessionPaths& paths, size_t index) {
  Begins all = paths[index]->begins;
  std::unordered_set<uint32_t> places;  // of which a nearer path says what begins there
  const SessionPath* at = paths[index].get();
  for (uint32_t shared = at->shared; shared > 0; shared = std::min(shared, at->shared)) {
    for (const SessionPath::Begin& begin : at->begins) places.insert(begin.at);
    at = paths[at->parent].get();
    std::ranges::copy_if(at->begins, std::back_inserter(all), [&](const auto& begin) {
      return begin.at < shared && !places.contains(begin.at);
    });
  }
  Order(&all);
  return all;
}

Result<SessionPaths> AddPath(SessionStore& store, const SessionPaths& paths,
                             std::vector<TokenId> ids, std::vector<SessionPath::Begin> begins,
                             PathSpace space, LastPath last_path) {
  SessionPath added;
  SessionPaths grown = paths;
  if (!paths.empty() && paths.back()->space == space) {
    const std::vector<TokenId> known = IdsOf(paths, paths.size() - 1);
    const auto differs = std::ranges::mismatch(known, ids);
    added.parent = static_cast<uint32_t>(paths.size() - 1);
    added.shared = static_cast<uint32_t>(differs.in1 - known.begin());
    // Where it goes on from there, one path is enough.
    bool joins = differs.in1 == known.end();
    while (joins) {
      const SessionPath& end = *grown.back();
      if (last_path == LastPath::kLongStays && end.ids.size() > ids.size() - added.shared) break;
      added.parent = end.parent;
      added.shared = end.shared;
      grown.pop_back();
      joins = last_path == LastPath::kLongStays && added.shared > 0 &&
              added.parent + 1 == grown.size() &&
              added.shared == grown.back()->shared + grown.back()->ids.size();
    }
  }
  if (added.shared > 0) {  // other messages may have begun with the same ids
    const Begins known = BeginsOf(paths, added.parent);
    Order(&begins);
    const Begins all = begins;
    std::erase_if(begins, [&](const auto& begin) {
      return begin.at < added.shared && IsKnown(known, all, begin.at);
    });
  }
  added.ids.assign(ids.begin() + added.shared, ids.end());
  added.begins = std::move(begins);
  added.begins.shrink_to_fit();
  added.space = std::move(space);
  KV_ASSIGN(grown.emplace_back(), store.Keep(std::move(added)));
  return grown;
}

namespace {

// What is left of a path.
struct PathRest {
  uint32_t ids = 0;
  std::optional<uint32_t> cut_at;  // SessionPath::cut_at
};

std::vector<PathRest> RestsWithout(const SessionPaths& paths,
                                   std::span<const ForgottenPath> forgotten) {
  std::vector<PathRest> rests;
  for (const auto& path : paths) {
    rests.push_back({path->shared + static_cast<uint32_t>(path->ids.size()), path->cut_at});
  }
  for (const ForgottenPath& one : forgotten) {
    PathRest& rest = rests[one.path];
    if (one.first >= rest.ids) continue;
    rest = {one.first, one.cut_at};
    if (rest.cut_at >= rest.ids) rest.cut_at.reset();  // nothing is left of the message
  }
  return rests;
}

}  // namespace

Result<SessionPaths> WithoutForgotten(SessionStore& store, const SessionPaths& paths,
                                      std::span<const ForgottenPath> forgotten,
                                      SessionStore::Room room) {
  const std::vector<PathRest> rests = RestsWithout(paths, forgotten);
  // The path in `left` that has the first ids of a path, and how many.
  struct Kept {
    uint32_t place = 0, ids = 0;
    bool is_own = false;
  };
  std::vector<Kept> kept(paths.size());
  SessionPaths left;
  for (size_t i = 0; i < paths.size(); ++i) {
    const SessionPath& path = *paths[i];
    const Kept parent = path.shared == 0 ? Kept() : kept[path.parent];
    const uint32_t shared = std::min(path.shared, parent.ids);
    const uint32_t end = rests[i].ids;
    kept[i] = {parent.place, end, false};
    if (end <= shared) continue;  // others have all of it
    kept[i] = {static_cast<uint32_t>(left.size()), end, true};
    const bool has_parent = path.shared == 0 || (parent.is_own && shared == path.shared);
    if (has_parent && parent.place == path.parent &&
        end == path.shared + static_cast<uint32_t>(path.ids.size())) {
      left.push_back(paths[i]);
      continue;
    }
    SessionPath copy;
    copy.parent = parent.place;
    copy.shared = shared;
    const std::vector<TokenId> ids = IdsOf(paths, i);
    copy.ids.assign(ids.begin() + shared, ids.begin() + end);
    copy.begins = has_parent ? path.begins : BeginsOf(paths, i);
    std::erase_if(copy.begins, [&](const auto& begin) { return begin.at >= end; });
    copy.begins.shrink_to_fit();
    copy.cut_at = rests[i].cut_at;
    copy.space = path.space;
    KV_ASSIGN(left.emplace_back(), store.Keep(std::move(copy), room));
  }
  return left;
}

std::vector<ForgottenPath> NotContained(const SessionState& state) {
  std::unordered_set<uint64_t> versions;
  for (const auto& message : state.messages) versions.insert(message->version);
  std::vector<ForgottenPath> places;
  for (size_t i = 0; i < state.paths.size(); ++i) {
    for (const SessionPath::Begin& begin : BeginsOf(state.paths, i)) {
      if (!versions.contains(begin.version)) places.push_back({i, begin.at});
    }
  }
  return places;
}

std::vector<uint32_t> ContainedTokens(const SessionState& state) {
  std::vector<uint32_t> tokens;
  for (const PathRest& rest : RestsWithout(state.paths, NotContained(state))) {
    tokens.push_back(rest.ids);
  }
  return tokens;
}

Result<SessionState> Append(SessionStore& store, const SessionState& state,
                            std::vector<SessionMessage> messages) {
  SessionState changed = Changed(state);
  uint64_t bytes = 0;
  for (const SessionMessage& message : messages) bytes += message.HeldBytes();
  KV_TRY(store.CheckRoom(bytes));  // before sessions leave memory for some of them
  changed.messages.reserve(changed.messages.size() + messages.size());
  for (SessionMessage& message : messages) {
    KV_ASSIGN(changed.messages.emplace_back(), store.Keep(std::move(message)));
  }
  KV_TRY(CheckNames(changed));
  return changed;
}

Result<SessionState> Edit(SessionStore& store, const SessionState& state, size_t index,
                          SessionMessage message, LaterMessages later) {
  KV_TRY(CheckIndex(state, index));
  SessionState changed = Changed(state);
  message.role = state.messages[index]->role;
  message.number = state.messages[index]->number;
  KV_ASSIGN(changed.messages[index], store.Keep(std::move(message)));
  if (later == LaterMessages::kGo) changed.messages.resize(index + 1);
  KeepDropped(&changed);
  KV_TRY(CheckNames(changed));
  return changed;
}

Result<SessionState> SetSystem(SessionStore& store, const SessionState& state,
                               SessionMessage message) {
  if (state.has_system()) return Edit(store, state, 0, std::move(message), LaterMessages::kStay);
  SessionState changed = Changed(state);
  message.role = "system";
  KV_ASSIGN(auto kept, store.Keep(std::move(message)));
  changed.messages.insert(changed.messages.begin(), std::move(kept));
  KV_TRY(CheckNames(changed));
  return changed;
}

Result<SessionState> Truncate(const SessionState& state, uint64_t num_messages) {
  if (num_messages > state.messages.size()) {
    return FailField(Code::kInvalidArgument, "messages", "{} is more than the {} of the session",
                     num_messages, CountText(state.messages.size(), "message"));
  }
  if (num_messages == state.messages.size()) return state;
  SessionState changed = Changed(state);
  changed.messages.resize(num_messages);
  changed.messages.shrink_to_fit();
  KeepDropped(&changed);
  return changed;
}

Result<SessionState> ForkOf(SessionStore& store, const SessionState& state, uint64_t num_messages) {
  KV_ASSIGN(SessionState fork, Truncate(state, num_messages));
  KV_ASSIGN(fork.paths, WithoutForgotten(store, fork.paths, NotContained(fork),
                                         SessionStore::Room::kWithinLimit));
  return fork;
}

SessionState RemoveMessages(const SessionState& state, const MessageRange& range) {
  KV_CHECK(range.begin <= range.end && range.end <= state.messages.size());
  SessionState changed = Changed(state);
  const size_t first = state.has_system() ? 1 : 0;
  const auto dropped_before = [&](size_t index) {
    return std::clamp(index, first, first + state.dropped) - first;
  };
  changed.dropped -= static_cast<uint32_t>(dropped_before(range.end) - dropped_before(range.begin));
  const auto begin = changed.messages.begin();
  changed.messages.erase(begin + static_cast<ptrdiff_t>(range.begin),
                         begin + static_cast<ptrdiff_t>(range.end));
  KeepDropped(&changed);
  return changed;
}

Result<MessageRange> LastTurns(const SessionState& state, uint64_t turns) {
  const size_t end = state.messages.size();
  uint64_t found = 0;
  for (size_t i = end; i-- > 0 && found < turns;) {
    if (state.messages[i]->role == "user" && ++found == turns) return MessageRange{i, end};
  }
  return FailField(Code::kInvalidArgument, "last",
                   "{} is more than the {} of the session; each begins with a message of the user",
                   turns, CountText(found, "turn"));
}

Result<SessionPart> FindSegment(const SessionState& state, std::string_view name) {
  for (size_t i = 0; i < state.messages.size(); ++i) {
    for (const MessageSegment& segment : state.messages[i]->more().segments) {
      if (segment.name == name) return SessionPart{i, segment.begin, segment.end};
    }
  }
  return FailField(Code::kNotFound, "segment", "the session has no segment of this name");
}

Result<SessionState> Remove(SessionStore& store, const SessionState& state,
                            const SessionPart& part) {
  KV_TRY(CheckIndex(state, part.index));
  if (!part.end) return RemoveMessages(state, {part.index, part.index + 1});
  SessionState changed = Changed(state);
  const SessionMessage& message = *state.messages[part.index];
  if (part.begin >= *part.end) {
    return FailField(Code::kInvalidArgument, "end", "{} is not after begin, {}", *part.end,
                     part.begin);
  }
  const std::optional<size_t> end = ByteOfCodePoint(message.content, *part.end);
  if (!end) {
    return FailField(Code::kInvalidArgument, "end", "{} is past the end of message {}", *part.end,
                     part.index);
  }
  const size_t begin = *ByteOfCodePoint(message.content, part.begin);
  SessionMessage copy;
  copy.number = message.number;
  copy.role = message.role;
  copy.content.reserve(message.content.size() - (*end - begin));
  copy.content.append(message.content, 0, begin).append(message.content, *end);
  SessionMessage::More more = message.more().WithoutWritten();
  more.segments = Without(more.segments, part.begin, *part.end);
  copy.SetMore(std::move(more));
  KV_ASSIGN(changed.messages[part.index],
            store.Keep(std::move(copy), SessionStore::Room::kMayExceed));
  return changed;
}

Result<std::vector<MessageSegment>> OrderSegments(std::vector<MessageSegment> segments,
                                                  std::string_view content) {
  std::ranges::stable_sort(segments, {}, &MessageSegment::begin);
  uint32_t last_end = 0;
  for (const MessageSegment& segment : segments) {
    if (segment.begin >= segment.end || !ByteOfCodePoint(content, segment.end)) {
      return FailField(Code::kInvalidArgument, "segments",
                       "\"{}\" is [{}, {}), which is not a part of its message's content",
                       segment.name, segment.begin, segment.end);
    }
    if (segment.begin < last_end) {
      return FailField(Code::kInvalidArgument, "segments", "\"{}\" overlaps another segment",
                       segment.name);
    }
    last_end = segment.end;
  }
  return segments;
}

std::optional<size_t> ByteOfCodePoint(std::string_view text, uint64_t index) {
  uint64_t point = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    if (ContinuesChar(text[at])) continue;
    if (point++ == index) return at;
  }
  return point == index ? std::optional(text.size()) : std::nullopt;
}

}  // namespace kvasir
