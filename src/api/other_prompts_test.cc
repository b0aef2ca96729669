#include "api/other_prompts.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/session_for_test.h"

namespace kvasir {
namespace {

class OtherPromptsTest : public ByteSessionTest {
 protected:
  using Texts = std::vector<std::string>;

  // Adds another session, which has one message and has read it, without what is written after it.
  void AddReader(std::string_view text, PathSpace space = {}) {
    SessionState state = Session({{"user", std::string(text)}});
    const SessionMessage& said = *state.messages[0];
    state.paths = *AddPath(store_, {}, Ids(text), {{said.number, said.version, 0}}, space);
    AddOther(std::move(state));
  }
  void AddOther(SessionState state) {
    scope_.others.push_back(std::make_shared<const SessionState>(std::move(state)));
  }
  ForgetRequest RequestOf(std::string_view text, uint32_t first, uint32_t last) const {
    return {
        .owner = "o", .cache_salt = {}, .ids = Ids(text), .first = first, .last = last, .kept = {}};
  }
  Texts Kept(const ForgetRequest& request, const SessionState& own,
             const SessionPrompt* now = nullptr) const {
    OtherPrompts others(scope_, own, now);
    Texts kept;
    for (const auto& ids : others.For(request)) kept.push_back(Text(ids));
    return kept;
  }
  Texts Kept(const ForgetRequest& request) const { return Kept(request, SessionState()); }

  ForgetScope scope_{.model = model_, .cache_owner = "o", .others = {}};
};

TEST_F(OtherPromptsTest, AreThoseThatHaveTheFirstForgottenToken) {
  const ForgetRequest request = RequestOf("abcd", 1, 2);
  EXPECT_EQ(Kept(request), Texts{}) << "no other session keeps anything";
  const std::pair<const char*, Texts> cases[] = {
      {"", {}},          {"x", {}},
      {"a", {}},         // it ends before the forgotten text
      {"aX", {}},        // it parts where that begins
      {"ab", {"ab"}},    // it has the first token alone
      {"abXY", {"ab"}},  // what it has then is of no matter
      {"abc", {"abc"}},  {"abcXY", {"abcXY"}},
      {"abcd", {"abcd"}}};
  for (const auto& [text, kept] : cases) {
    scope_.others.clear();
    AddReader(text);
    EXPECT_EQ(Kept(request), kept) << text;
  }
}

TEST_F(OtherPromptsTest, OfThoseThatPartWithinTheTextTheLongestBeginningIsEnough) {
  for (const char* text : {"abX", "abcX", "abcdeX", "abcY"}) AddReader(text);
  EXPECT_EQ(Kept(RequestOf("abcde", 1, 4)), (Texts{"abcdeX", "abc"}));
  scope_.keeps_whole = true;
  EXPECT_EQ(Kept(RequestOf("abcde", 1, 4)), (Texts{"abX", "abcX", "abcdeX", "abcY"}));
  EXPECT_EQ(Kept(RequestOf("abcde", 3, 4)), Texts{"abcdeX"}) << "the others lack token 3";
}

TEST_F(OtherPromptsTest, OtherNamespacesKeepNothing) {
  ForgetRequest request = RequestOf("ab", 0, 1);
  AddReader("ab1");
  AddReader("ab2", {.owner = "o", .salt = {}});
  AddReader("ab3", {.owner = "p", .salt = {}});
  AddReader("ab4", {.owner = "o", .salt = "s"});
  AddReader("ab5", {.owner = "o", .salt = {}, .adapters = "d"});
  EXPECT_EQ(Kept(request), (Texts{"ab1", "ab2"})) << "without an owner it is that of the scope";
  request.cache_salt = "s";
  EXPECT_EQ(Kept(request), Texts{"ab4"});
  request.cache_salt = "";
  EXPECT_EQ(Kept(request), Texts{});
  request.cache_salt.reset();
  request.adapters = "d";
  EXPECT_EQ(Kept(request), Texts{"ab5"});
  request.owner = "p";
  EXPECT_EQ(Kept(request), Texts{});
  request.adapters = "";
  EXPECT_EQ(Kept(request), Texts{"ab3"});
}

TEST_F(OtherPromptsTest, APathCountsUpToWhereItsSessionSaysItNoMore) {
  const ForgetRequest request = RequestOf("ab;cd;", 0, 1);
  SessionState other = Session({{"user", "ab"}, {"assistant", "cd"}});
  Read(&other);
  const auto kept_of = [&](SessionState state) {
    scope_.others.clear();
    AddOther(std::move(state));
    return Kept(request);
  };
  EXPECT_EQ(kept_of(other), Texts{"ab;cd;"});
  EXPECT_EQ(kept_of(*Truncate(other, 1)), Texts{"ab;"});
  EXPECT_EQ(kept_of(*Edit(store_, other, 1, Said("", "cd"), LaterMessages::kStay)), Texts{"ab;"})
      << "an edited message is another text";
  EXPECT_EQ(kept_of(*Truncate(other, 0)), Texts{});
}

TEST_F(OtherPromptsTest, PathsThatShareTheirBeginningsAreComparedWhole) {
  SessionState other = Session({{"user", "ab"}});
  const SessionMessage& said = *other.messages[0];
  for (const char* text : {"abc", "abXY", "abXZ"}) {
    other.paths = *AddPath(store_, other.paths, Ids(text), {{said.number, said.version, 0}}, {});
  }
  ASSERT_EQ(other.paths.size(), 3u);
  ASSERT_GT(other.paths[2]->shared, other.paths[1]->shared);
  AddOther(other);
  EXPECT_EQ(Kept(RequestOf("abXZ", 3, 3)), Texts{"abXZ"});
  EXPECT_EQ(Kept(RequestOf("abXZ", 2, 2)), (Texts{"abXY", "abXZ"}));
  EXPECT_EQ(Kept(RequestOf("abcd", 2, 2)), Texts{"abc"});
  EXPECT_EQ(Kept(RequestOf("aQXZ", 1, 3)), Texts{});
}

TEST_F(OtherPromptsTest, WhatWasNotReadYetIsRendered) {
  const ForgetRequest request = RequestOf("ab;cd;", 3, 4);
  const SessionState own = Session({{"user", "ab"}, {"user", "cd"}});
  AddOther(Session({{"user", "ab"}, {"user", "cdX"}}));
  AddOther(Session({{"user", "x"}, {"user", "cd"}}));
  AddOther(Session({}));
  EXPECT_EQ(Kept(request, own), Texts{"ab;cdX;"});
  EXPECT_EQ(Kept(request, Session({})), Texts{}) << "nothing begins as a session without messages";
  ForgetRequest elsewhere = request;
  elsewhere.cache_salt = "s";
  EXPECT_EQ(Kept(elsewhere, own), Texts{}) << "the next prompt has no salt";
  scope_.cache_owner = "p";
  EXPECT_EQ(Kept(request, own), Texts{}) << "the next prompt is another owner's";
}

// Others pay for at most so many bytes: after them a session counts with the messages alone with
// which the one begins that forgets.
TEST_F(OtherPromptsTest, RenderingEndsAtTheLimit) {
  const SessionState own = Session({{"user", "ab"}, {"user", "cd"}});
  const auto now = PromptOf(own, model_);
  ASSERT_TRUE(now);
  const ForgetRequest request = RequestOf("ab;cd;", 0, 1);
  const auto kept_of = [&](size_t bytes, const SessionPrompt* prompt) {
    scope_.others.clear();
    AddOther(Session({{"user", "ab"}, {"user", std::string(bytes - 2, 'x')}}));
    const Texts kept = Kept(request, own, prompt);
    return kept.empty() ? 0 : kept[0].size();
  };
  constexpr size_t kMost = OtherPrompts::kMostRenderedBytes;
  EXPECT_EQ(kept_of(kMost, &*now), kMost + 2) << "and two bytes of the template";
  EXPECT_EQ(kept_of(kMost + 1, &*now), 3u) << "the first message";
  EXPECT_EQ(kept_of(kMost + 1, nullptr), 0u) << "where its message ends is not known";
}

}  // namespace
}  // namespace kvasir
