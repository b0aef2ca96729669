// Changes of a session's state: which messages they take, and where they cut paths.
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvasir/session.h"
#include "kvasir/session_file.h"

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

class SessionCutTest : public testing::Test {
 protected:
  SessionCutTest() {
    const SessionMessage& said = *state_.messages[0];
    std::vector<SessionPath::Begin> begins = {{said.number, said.version, 1}};
    state_.setup = *store_.Keep(SessionSetup());
    state_.paths = *AddPath(store_, {}, {1, 2, 3, 4}, std::move(begins), {});
  }

  // Forgets all from a token on, of the message that begins at token 1.
  SessionState CutAt(const SessionState& state, uint32_t first) {
    SessionState cut = state;
    const ForgottenPath forgotten[] = {{.path = 0, .first = first, .cut_at = 1}};
    cut.paths = *WithoutForgotten(store_, state.paths, forgotten, SessionStore::Room::kMayExceed);
    return cut;
  }
  static std::string JsonOf(const SessionState& state) {
    return ToJson({.id = "sess_1", .tenant = "t", .created_s = 5, .identity = {}, .state = state});
  }

  SessionStore store_{SessionLimits()};
  SessionState state_ = StateOf(store_, "u");
};

TEST_F(SessionCutTest, APathSaysInWhichMessageAForgetCutIt) {
  EXPECT_EQ(state_.paths[0]->cut_at, std::nullopt);
  for (const uint32_t first : {2u, 3u}) {
    const SessionState cut = CutAt(state_, first);
    EXPECT_EQ(cut.paths[0]->ids.size(), first);
    EXPECT_EQ(cut.paths[0]->cut_at, 1u);
    EXPECT_EQ(CutAt(cut, 3).paths[0]->cut_at, 1u) << "it has no such token any more";
  }
  EXPECT_EQ(CutAt(state_, 1).paths[0]->cut_at, std::nullopt) << "nothing is left of the message";
  EXPECT_EQ(CutAt(state_, 4).paths[0]->cut_at, std::nullopt) << "it has no such token";
  // What goes on from there was read as it is.
  const SessionState cut = CutAt(state_, 3);
  EXPECT_EQ(AddPath(store_, cut.paths, {1, 2, 3, 5}, {}, {})->back()->cut_at, std::nullopt);
}

TEST_F(SessionCutTest, ARecordSaysItTooUnlessAnOlderVersionWroteIt) {
  const SessionState cut = CutAt(state_, 3);
  std::string json = JsonOf(cut);
  EXPECT_EQ(ParseSessionRecord(store_, json)->state.paths[0]->cut_at, 1u);
  EXPECT_EQ(ParseSessionRecord(store_, JsonOf(state_))->state.paths[0]->cut_at, std::nullopt);
  const std::string field = ",\"cut_at\":1";
  ASSERT_NE(json.find(field), json.npos) << json;
  for (const char* wrong : {",\"cut_at\":3", ",\"cut_at\":\"1\"", ",\"cut_at\":-1"}) {
    std::string changed = json;
    changed.replace(json.find(field), field.size(), wrong);
    const auto parsed = ParseSessionRecord(store_, changed);
    ASSERT_FALSE(parsed) << wrong;
    EXPECT_EQ(parsed.error().code, Code::kInvalidArgument) << wrong;
  }
  json.erase(json.find(field), field.size());
  EXPECT_EQ(ParseSessionRecord(store_, json)->state.paths[0]->cut_at, std::nullopt);
}

}  // namespace
}  // namespace kvasir
