// Forgets messages of a session in each form that calls take, and compares it with forgetting each
// of them alone.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "api/session_forget.h"
#include "base/begins_with.h"
#include "base/random.h"
#include "forgotten_text.h"
#include "kvasir/session.h"

namespace kvasir {

// Checks that the requests of a range are some of those that forget its messages alone, and erase
// what all of these do.
inline void CheckForgetsEach(SessionStore& store, const SessionState& state,
                             const MessageRange& messages, const ForgetScope& scope,
                             const std::vector<ForgetRequest>& requests) {
  const auto is_same_place = [](const ForgetRequest& one, const ForgetRequest& other) {
    return one.owner == other.owner && one.cache_salt == other.cache_salt &&
           one.adapters == other.adapters;
  };
  std::vector<ForgetRequest> each;
  for (size_t i = messages.begin; i < messages.end; ++i) {
    const auto alone = ForgetPart(store, state, {.index = i}, scope);
    ASSERT_TRUE(alone) << alone.error().text();
    each.insert(each.end(), alone->requests.begin(), alone->requests.end());
  }
  for (const ForgetRequest& one : each) {
    EXPECT_TRUE(std::ranges::any_of(requests, [&](const ForgetRequest& request) {
      return is_same_place(one, request) && request.first <= one.first &&
             request.last <= one.last &&
             SharedLength(std::span(one.ids), std::span(request.ids)) > request.last;
    })) << "a message of the range stays";
  }
  for (const ForgetRequest& request : requests) {
    EXPECT_TRUE(std::ranges::any_of(each, [&](const ForgetRequest& one) {
      return is_same_place(one, request) && request.first == one.first &&
             request.last == one.last && request.ids == one.ids && request.kept == one.kept;
    })) << "more than the range goes";
  }
}

// One forget: which call it is, what was asked, and what forgets it.
struct SomeForget {
  std::string kind;
  AskedForget asked;
  Forgetting forgetting;
};

// Tells whether the paths that a forget leaves end before the forgotten texts, and say so. One that
// ends within such a text and never had the message read the same beginning of another message.
inline bool AreCut(std::span<const ForgetRequest> texts, const SessionState& before,
                   const SomeForget& some) {
  const SessionPaths& paths = some.forgetting.state.paths;
  const auto is_asked = [&](const SessionPath::Begin& begin) {
    const auto& [first, end] = some.asked.messages;
    const auto messages = std::span(before.messages).subspan(first, end - first);
    return std::ranges::any_of(
        messages, [&](const auto& message) { return message->number == begin.number; });
  };
  for (size_t i = 0; i < paths.size(); ++i) {
    const std::vector<TokenId> ids = IdsOf(paths, i);
    const auto common = [&](const ForgetRequest& text) {
      return SharedLength(std::span<const TokenId>(ids), std::span<const TokenId>(text.ids));
    };
    const auto has_all = [&](const ForgetRequest& text) { return common(text) > text.last; };
    if (std::ranges::any_of(texts, has_all)) return false;
    const std::vector<SessionPath::Begin> begins = BeginsOf(paths, i);
    const auto asked = std::ranges::find_if(begins, is_asked);
    if (asked == begins.end() || asked->at >= ids.size()) continue;
    if (paths[i]->cut_at != asked->at) return false;
    // What ends within one of the texts may end where another one begins.
    const auto ends_in = [&](const ForgetRequest& text) {
      return common(text) == ids.size() && ids.size() > text.first;
    };
    const auto ends_before = [&](const ForgetRequest& text) {
      return common(text) == ids.size() && ids.size() <= text.first;
    };
    if (std::ranges::any_of(texts, ends_in) && std::ranges::none_of(texts, ends_before)) {
      return false;
    }
  }
  return true;
}

// Takes a random part out of a message. Absent: the message has no text, or the model wrote bytes
// in it that do not make a character.
inline std::optional<SomeForget> ForgetSomePart(Random& random, SessionStore& store,
                                                const SessionState& state, size_t index,
                                                const ForgetScope& scope) {
  const std::string& content = state.messages[index]->content;
  uint32_t points = 0;
  while (ByteOfCodePoint(content, points + 1)) ++points;
  if (points == 0 || content.find("\uFFFD") != content.npos) return std::nullopt;
  SessionPart part{.index = index, .begin = static_cast<uint32_t>(random.Below(points))};
  // The token before may have the first byte of this letter.
  const size_t letter = content.find("é");
  if (letter != content.npos && random.Below(2) == 0) {
    for (part.begin = 0; *ByteOfCodePoint(content, part.begin) < letter;) ++part.begin;
  }
  part.end = part.begin + 1 + static_cast<uint32_t>(random.Below(points - part.begin));
  auto forgetting = ForgetPart(store, state, part, scope);
  EXPECT_TRUE(forgetting) << forgetting.error().text();
  const ContentBytes bytes{*ByteOfCodePoint(content, part.begin),
                           *ByteOfCodePoint(content, *part.end)};
  return SomeForget{"forget a part of a message", {{index, index + 1}, bytes}, *forgetting};
}

// Takes a random part out of a message or random messages out of the session, cuts it or edits one
// of its messages. `edited`: what an edit says.
inline SomeForget ForgetSome(Random& random, SessionStore& store, const SessionState& state,
                             SessionMessage edited, const ForgetScope& scope) {
  std::string kind;
  const size_t size = state.messages.size();
  MessageRange messages{random.Below(size), size};
  SessionState changed = state;
  if (random.Below(4) == 0) {
    if (auto part = ForgetSomePart(random, store, state, messages.begin, scope)) return *part;
  }
  switch (random.Below(3)) {
    case 0:
      kind = "forget a range";
      messages.end = messages.begin + 1 + random.Below(size - messages.begin);
      changed = RemoveMessages(state, messages);
      break;
    case 1:
      kind = "truncate and forget";
      changed = *Truncate(state, messages.begin);
      break;
    default: {
      kind = "edit and forget";
      const auto later = random.Below(2) == 0 ? LaterMessages::kGo : LaterMessages::kStay;
      if (later == LaterMessages::kStay) messages.end = messages.begin + 1;
      changed = *Edit(store, state, messages.begin, std::move(edited), later);
    }
  }
  Forgetting forgetting = ForgetMessages(store, state, std::move(changed), messages, scope);
  CheckForgetsEach(store, state, messages, scope, forgetting.requests);
  return {kind, {messages, std::nullopt}, std::move(forgetting)};
}

}  // namespace kvasir
