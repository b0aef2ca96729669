#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "kvasir/session.h"
#include "kvasir/session_file.h"
#include "session/session_folder_for_test.h"

namespace kvasir {
namespace {

class SessionTitleTest : public SessionFolderTest {
 protected:
  using Turns = std::vector<std::pair<std::string, std::string>>;  // roles and contents
  SessionState StateOf(const Turns& turns, std::string origin = "api") {
    SessionSetup setup;
    setup.origin = std::move(origin);
    std::vector<SessionMessage> messages;
    for (const auto& [role, content] : turns) messages.push_back(Said(role, content));
    return *Append(titled_, FreshState(titled_, std::move(setup)), std::move(messages));
  }
  std::string TitleOfText(const std::string& text) { return TitleOf(StateOf({{"user", text}})); }

  SessionStore titled_{SessionLimits()};
};

TEST_F(SessionTitleTest, IsTheFirstWordsOfTheFirstQuestion) {
  EXPECT_EQ(TitleOf(StateOf({})), "");
  EXPECT_EQ(TitleOf(StateOf({{"system", "Be kind."}, {"assistant", "Hello."}})), "");
  EXPECT_EQ(TitleOf(StateOf({{"system", "Be kind."}, {"user", "Who?"}, {"user", "Where?"}})),
            "Who?");
  EXPECT_EQ(TitleOfText(" \n Where  does\tAnna\r\nlive? \n"), "Where does Anna live?");
  EXPECT_EQ(TitleOfText(std::string(60, 'a')), std::string(60, 'a'));
  EXPECT_EQ(TitleOfText(std::string(61, 'a')), std::string(60, 'a') + "…");
  EXPECT_EQ(TitleOfText(std::string(50, 'a') + " " + std::string(20, 'b')),
            std::string(50, 'a') + "…");
  EXPECT_EQ(TitleOfText(std::string(60, 'a') + " b"), std::string(60, 'a') + "…");
  std::string owls, sixty;
  for (int i = 0; i < 100; ++i) owls += "🦉";
  for (int i = 0; i < 60; ++i) sixty += "🦉";
  EXPECT_EQ(TitleOfText(owls), sixty + "…") << "characters are counted, not bytes";
}

TEST_F(SessionTitleTest, IsInTheHeadWithTheOriginAndChangesWithTheQuestion) {
  const auto json_of = [](const SessionState& state) {
    return ToJson({.id = "sess_1", .tenant = "t", .created_s = 9, .state = state});
  };
  const SessionState state = StateOf({{"user", "Who is Anna?"}}, "page");
  std::string json = json_of(state);
  const auto head = ParseSessionHead(json);
  ASSERT_TRUE(head) << head.error().message;
  EXPECT_EQ(head->title, "Who is Anna?");
  EXPECT_EQ(head->setup.origin, "page");
  const auto record = ParseSessionRecord(titled_, json);
  ASSERT_TRUE(record) << record.error().message;
  EXPECT_EQ(record->state.setup->origin, "page");
  // What is taken out is in no head any more.
  EXPECT_EQ(json_of(RemoveMessages(state, {0, 1})).find("Anna"), std::string::npos);
  // A record of an older version has neither.
  for (const std::string part : {R"("origin":"page",)", R"("title":"Who is Anna?",)"}) {
    ASSERT_NE(json.find(part), std::string::npos);
    json.erase(json.find(part), part.size());
  }
  const auto older = ParseSessionHead(json);
  ASSERT_TRUE(older) << older.error().message;
  EXPECT_EQ(older->title, "");
  EXPECT_EQ(older->setup.origin, "api");
  ASSERT_TRUE(ParseSessionRecord(titled_, json));
}

TEST_F(SessionTitleTest, IsListedFromTheFileAlone) {
  {
    const auto store = OpenStore();
    ASSERT_TRUE(store->Create("t", StateOf({{"user", "Who is Anna?"}}, "page")));
  }
  const auto store = OpenStore();
  const auto page = store->List("t", std::nullopt, 10);
  ASSERT_TRUE(page) << page.error().message;
  ASSERT_EQ(page->entries.size(), 1u);
  EXPECT_EQ(page->entries[0].title, "Who is Anna?");
  EXPECT_EQ(page->entries[0].state->setup->origin, "page");
}

}  // namespace
}  // namespace kvasir
