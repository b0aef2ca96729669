// Changes of a session's state: which messages they take.
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvasir/session.h"

namespace kvasir {
namespace {

// Makes a state whose messages have the roles of the letters: s, u, a or t.
SessionState StateOf(SessionStore& store, std::string_view letters) {
  std::vector<SessionMessage> messages;
  for (const char letter : letters) {
    SessionMessage& message = messages.emplace_back();
    message.role = letter == 's'   ? "system"
                   : letter == 'u' ? "user"
                   : letter == 't' ? "tool"
                                   : "assistant";
    message.content = std::to_string(messages.size() - 1);
  }
  return *Append(store, SessionState(), std::move(messages));
}

std::string TextOf(const SessionState& state) {
  std::string text;
  for (const auto& message : state.messages) text += message->content;
  return text;
}

TEST(SessionEdit, TakesARangeOfMessagesOut) {
  SessionStore store{SessionLimits()};
  const SessionState state = StateOf(store, "suauaua");
  EXPECT_EQ(TextOf(RemoveMessages(state, {0, 7})), "");
  EXPECT_EQ(TextOf(RemoveMessages(state, {0, 1})), "123456");
  EXPECT_EQ(TextOf(RemoveMessages(state, {2, 5})), "0156");
  EXPECT_EQ(TextOf(RemoveMessages(state, {6, 7})), "012345");
  EXPECT_EQ(TextOf(RemoveMessages(state, {3, 3})), "0123456");
}

TEST(SessionEdit, CountsTheDroppedMessagesThatAreLeft) {
  SessionStore store{SessionLimits()};
  SessionState state = StateOf(store, "suauaua");
  state.dropped = 4;  // 1 to 4
  const auto left = [&](size_t begin, size_t end) {
    return RemoveMessages(state, {begin, end}).dropped;
  };
  EXPECT_EQ(left(0, 1), 4u);
  EXPECT_EQ(left(1, 2), 3u);
  EXPECT_EQ(left(0, 3), 2u);
  EXPECT_EQ(left(4, 6), 3u);
  EXPECT_EQ(left(5, 6), 4u);
  EXPECT_EQ(left(5, 7), 0u) << "all that is left was dropped";
  EXPECT_EQ(left(0, 5), 0u);
}

TEST(SessionEdit, ATurnBeginsWithEachMessageOfTheUser) {
  SessionStore store{SessionLimits()};
  const auto begin = [&](std::string_view letters, uint64_t turns) {
    const auto last = LastTurns(StateOf(store, letters), turns);
    if (!last) {
      EXPECT_EQ(last.error().code, Code::kInvalidArgument);
      EXPECT_EQ(last.error().field, "last");
      return -1;
    }
    EXPECT_EQ(last->end, letters.size());
    return static_cast<int>(last->begin);
  };
  EXPECT_EQ(begin("suauatau", 1), 7);
  EXPECT_EQ(begin("suauata", 1), 3);
  EXPECT_EQ(begin("suauata", 2), 1);
  EXPECT_EQ(begin("suauata", 3), -1);
  EXPECT_EQ(begin("suua", 2), 1);
  EXPECT_EQ(begin("aua", 2), -1) << "what was said before the first question is in no turn";
  EXPECT_EQ(begin("s", 1), -1);
  EXPECT_EQ(begin("", 1), -1);
  EXPECT_EQ(LastTurns(StateOf(store, "ua"), 5).error().message,
            "5 is more than the 1 turn of the session; each begins with a message of the user");
}

}  // namespace
}  // namespace kvasir
