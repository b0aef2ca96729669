// Forgets messages of a session in each form that calls take, and compares it with forgetting each
// of them alone.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "api/session_forget.h"
#include "base/begins_with.h"
#include "base/random.h"
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

// Takes random messages out, cuts the session or edits one of its messages. `edited`: what an edit
// says. Returns which call it is, and what forgets it.
inline std::pair<std::string, Forgetting> ForgetSome(Random& random, SessionStore& store,
                                                     const SessionState& state,
                                                     SessionMessage edited,
                                                     const ForgetScope& scope) {
  std::string kind;
  const size_t size = state.messages.size();
  MessageRange messages{random.Below(size), size};
  SessionState changed = state;
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
  return {kind, std::move(forgetting)};
}

}  // namespace kvasir
