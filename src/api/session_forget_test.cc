#include "api/session_forget.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "api/session_for_test.h"

namespace kvasir {
namespace {

class SessionForgetTest : public ByteSessionTest {
 protected:
  using Texts = std::vector<std::string>;

  // Shows the mark that ends a message as "|", and the end of a path that was cut as "~".
  static std::string TextOf(std::span<const TokenId> ids) {
    std::string text = Text(ids);
    std::ranges::replace(text, '\x01', '|');
    std::ranges::replace(text, '\xFF', '~');
    return text;
  }
  // Shows each request as "before[forgotten]after", with the salt before it.
  static Texts Shown(const std::vector<ForgetRequest>& requests) {
    Texts shown;
    for (const ForgetRequest& request : requests) {
      std::string text = TextOf(request.ids);
      EXPECT_LE(request.first, request.last);
      EXPECT_LT(request.last, text.size());
      text.insert(request.last + 1, "]").insert(request.first, "[");
      shown.push_back(request.cache_salt.value_or("") + text);
    }
    return shown;
  }
  // Gives the model a tokenizer whose token 256 is "a" and another token. Returns it: it must
  // outlive what the test does.
  std::unique_ptr<const Tokenizer> UsePairOfA(const std::string& second) {
    std::string json = TinyTokenizerJson();
    json.replace(json.find("257"), 3, "258").replace(json.find("256"), 3, "257");
    json.insert(json.find("},\"merges\":["), ",\"a" + second + "\":256");
    json.insert(json.find("\"merges\":[") + 10, "\"a " + second + "\"");
    auto tokenizer = Tokenizer::Parse(json, kTinyTokenizerConfig);
    EXPECT_TRUE(tokenizer) << tokenizer.error().text();
    model_.tokenizer = tokenizer->get();
    model_.vocab_size = 259;
    return std::move(*tokenizer);
  }
  Texts PathsOf(const SessionState& state) const {
    Texts texts;
    for (size_t i = 0; i < state.paths.size(); ++i) texts.push_back(TextOf(IdsOf(state.paths, i)));
    return texts;
  }
  // Forgets messages [begin, end).
  Forgetting Forget(const SessionState& state, size_t begin, size_t end) {
    const MessageRange range{begin, end};
    return ForgetMessages(store_, state, RemoveMessages(state, range), range, scope_);
  }
  // Forgets code points [begin, end) of a message.
  Result<Forgetting> ForgetPoints(const SessionState& state, size_t index, uint32_t begin,
                                  uint32_t end) {
    return ForgetPart(store_, state, {index, begin, end}, scope_);
  }

  ForgetScope scope_{.model = model_, .cache_owner = "o", .others = {}};
};

TEST_F(SessionForgetTest, AMessageIsForgottenWithItsEndAndAnAnswerWithout) {
  SessionState state = Session({{"user", "ab"}, {"assistant", "cd"}, {"user", "ef"}});
  EXPECT_EQ(Shown(Forget(state, 1, 2).requests), Texts{"ab;[cd];ef;"}) << "it was not read yet";
  Read(&state);
  const auto paths_left = [&](size_t begin, size_t end, const char* request) {
    const Forgetting forgetting = Forget(state, begin, end);
    EXPECT_EQ(Shown(forgetting.requests), Texts{request});
    EXPECT_EQ(forgetting.state.messages.size(), 3 - (end - begin));
    return PathsOf(forgetting.state);
  };
  EXPECT_EQ(paths_left(0, 1, "[ab;]cd;ef;"), Texts{});
  EXPECT_EQ(paths_left(1, 2, "ab;[cd];ef;"), Texts{"ab;"});
  EXPECT_EQ(paths_left(2, 3, "ab;cd;[ef;]"), Texts{"ab;cd;"});
  EXPECT_EQ(paths_left(0, 3, "[ab;]cd;ef;"), Texts{}) << "what comes after it goes with it";
}

TEST_F(SessionForgetTest, NoMessagesAskForNothing) {
  SessionState state = Session({{"user", "ab"}});
  Read(&state);
  for (const size_t at : {0u, 1u}) {
    const Forgetting forgetting = Forget(state, at, at);
    EXPECT_TRUE(forgetting.requests.empty());
    EXPECT_EQ(PathsOf(forgetting.state), Texts{"ab;"});
  }
}

TEST_F(SessionForgetTest, EachNamespaceInWhichItWasReadIsAsked) {
  SessionState state = Session({{"user", "ab"}});
  Read(&state, {.owner = "o", .salt = "s:"});
  Read(&state, {.owner = "p", .salt = {}, .adapters = "d"});
  const Forgetting forgetting = Forget(state, 0, 1);
  EXPECT_EQ(Shown(forgetting.requests), (Texts{"s:[ab;]", "[ab;]", "[ab;]"}));
  ASSERT_EQ(forgetting.requests.size(), 3u);
  EXPECT_EQ(forgetting.requests[1].owner, "p");
  EXPECT_EQ(forgetting.requests[1].adapters, "d");
  EXPECT_EQ(forgetting.requests[2].owner, "o") << "where the next prompt would be read";
  EXPECT_EQ(PathsOf(forgetting.state), Texts{});
}

TEST_F(SessionForgetTest, AnOlderTextOfTheMessageGoesToo) {
  SessionState state = Session({{"user", "ab"}, {"user", "XYZ"}});
  Read(&state);
  state = *Edit(store_, state, 1, Said("", "cd"), LaterMessages::kStay);
  const Forgetting forgetting = Forget(state, 1, 2);
  EXPECT_EQ(Shown(forgetting.requests), (Texts{"ab;[XYZ;]", "ab;[cd;]"}));
  EXPECT_EQ(PathsOf(forgetting.state), Texts{"ab;"});
}

TEST_F(SessionForgetTest, AMessageThatThePromptLeavesOutIsForgottenWhereItWasRead) {
  SessionState state =
      Session({{"system", "s"}, {"user", "ab"}, {"assistant", "cd"}, {"user", "ef"}});
  state.dropped = 2;
  EXPECT_EQ(Shown(Forget(state, 1, 2).requests), Texts{}) << "it was never read";
  EXPECT_EQ(Shown(Forget(state, 1, 4).requests), Texts{"s;[ef;]"});
  state.dropped = 0;
  Read(&state);
  state.dropped = 2;
  EXPECT_EQ(Shown(Forget(state, 1, 2).requests), Texts{"s;[ab;]cd;ef;"});
}

TEST_F(SessionForgetTest, APartIsItsCodePoints) {
  SessionState state = Session({{"user", "a\xC3\xA9xy"}, {"user", "z"}});
  Read(&state);
  const auto forgotten = ForgetPoints(state, 0, 1, 3);  // é and x
  ASSERT_TRUE(forgotten) << forgotten.error().text();
  EXPECT_EQ(Shown(forgotten->requests), Texts{"a[\xC3\xA9x]y;z;"});
  EXPECT_EQ(forgotten->state.messages[0]->content, "ay");
  EXPECT_EQ(PathsOf(forgotten->state), Texts{"a"});
  const auto last = ForgetPoints(state, 1, 0, 1);
  ASSERT_TRUE(last);
  EXPECT_EQ(Shown(last->requests), Texts{"a\xC3\xA9xy;[z];"});
  EXPECT_EQ(last->state.messages[1]->content, "");
}

// Token 256 is "a" and the first byte of the part's first character.
TEST_F(SessionForgetTest, ATokenThatEndsWithinTheFirstCharacterGoesToo) {
  const auto tokenizer = UsePairOfA("\xC3\x83");
  SessionState state = Session({{"user", "xa\xC3\xA9y"}});
  Read(&state);
  ASSERT_EQ(IdsOf(state.paths, 0), (std::vector<TokenId>{'x', 256, 0xA9, 'y', ';'}));
  const auto forgotten = ForgetPoints(state, 0, 2, 3);  // é
  ASSERT_TRUE(forgotten) << forgotten.error().text();
  ASSERT_EQ(forgotten->requests.size(), 1u);
  EXPECT_EQ(forgotten->requests[0].first, 1u);
  EXPECT_EQ(forgotten->requests[0].last, 2u);
  EXPECT_EQ(PathsOf(forgotten->state), Texts{"x"});
}

// Token 256 is "ab": the end of one message and the beginning of the next one.
TEST_F(SessionForgetTest, ATokenOfTwoMessagesGoesWithTheSecond) {
  const auto tokenizer = UsePairOfA("b");
  const auto bare = ChatTemplate::Parse("{% for m in messages %}{{ m.content }}{% endfor %}");
  model_.chat_template = bare->get();
  SessionState state = Session({{"user", "xa"}, {"user", "by"}});
  Read(&state);
  ASSERT_EQ(IdsOf(state.paths, 0), (std::vector<TokenId>{'x', 256, 'y'}));
  state = *Edit(store_, state, 0, Said("", "z"), LaterMessages::kStay);
  const std::vector<ForgetRequest> asked = Forget(state, 1, 2).requests;
  ASSERT_EQ(asked.size(), 2u);
  EXPECT_EQ(asked[0].ids, (std::vector<TokenId>{'x', 256, 'y'}));
  EXPECT_EQ(asked[0].first, 1u);
}

// Else a prompt that parts from the older one after the part would keep it.
TEST_F(SessionForgetTest, APartIsFoundAfterAnOlderTextToo) {
  SessionState state = Session({{"user", "ab"}, {"assistant", "cdef"}});
  Read(&state);
  state = *Edit(store_, state, 0, Said("", "gh"), LaterMessages::kStay);
  const auto forgotten = ForgetPoints(state, 1, 1, 2);
  ASSERT_TRUE(forgotten) << forgotten.error().text();
  EXPECT_EQ(Shown(forgotten->requests), (Texts{"ab;c[d]ef;", "gh;c[d]ef;"}));
  EXPECT_EQ(PathsOf(forgotten->state), Texts{"ab;c"});
}

// The tokenizer composes characters: the text of the tokens is shorter than the chat.
TEST_F(SessionForgetTest, ATextBehindOneThatIsNormalisedIsFound) {
  std::string json = TinyTokenizerJson();
  json.replace(json.find("null"), 4, R"({"type":"NFC"})");
  const auto tokenizer = Tokenizer::Parse(json, kTinyTokenizerConfig);
  ASSERT_TRUE(tokenizer) << tokenizer.error().text();
  model_.tokenizer = tokenizer->get();
  const auto with_marks =
      ChatTemplate::Parse("{% for m in messages %}{{ m.content }}<|end|>{% endfor %}");
  model_.chat_template = with_marks->get();
  SessionState state =
      Session({{"user", "e\u0301e\u0301e\u0301"}, {"user", "abcd"}, {"user", "z"}});
  Read(&state);
  const std::string first = "\u00e9\u00e9\u00e9";
  ASSERT_EQ(PathsOf(state), Texts{first + "|abcd|z|"});
  EXPECT_EQ(Shown(Forget(state, 1, 2).requests), Texts{first + "|[abcd|]z|"});
  const auto part = ForgetPoints(state, 1, 1, 3);
  ASSERT_TRUE(part);
  EXPECT_EQ(Shown(part->requests), Texts{first + "|a[bc]d|z|"});
  EXPECT_EQ(Shown(Forget(state, 0, 1).requests), Texts{"[" + first + "|]abcd|z|"});
}

TEST_F(SessionForgetTest, ATextThatTheTemplateTrimsIsFound) {
  const auto trims =
      ChatTemplate::Parse("{% for m in messages %}{{ m.content | trim }};{% endfor %}");
  model_.chat_template = trims->get();
  SessionState state = Session({{"user", " ab\n"}, {"user", "c"}});
  Read(&state);
  EXPECT_EQ(Shown(Forget(state, 0, 1).requests), Texts{"[ab;]c;"});
  const auto part = ForgetPoints(state, 0, 2, 4);  // "b\n"
  ASSERT_TRUE(part);
  EXPECT_EQ(Shown(part->requests), Texts{"a[b];c;"});
  const auto space = ForgetPoints(state, 0, 0, 1);
  ASSERT_TRUE(space);
  EXPECT_EQ(Shown(space->requests), Texts{"[a]b;c;"}) << "which is not in the prompt";
}

TEST_F(SessionForgetTest, WhiteSpaceThatTheTemplateTrimsAtTheEndOfAPathIsInNoToken) {
  const auto trims =
      ChatTemplate::Parse("{% for m in messages %}{{ m.content | trim }}{% endfor %}");
  model_.chat_template = trims->get();
  SessionState state = Session({{"user", "a"}, {"user", "bc \n"}});
  Read(&state);
  state = *Edit(store_, state, 0, Said("", "d"), LaterMessages::kStay);
  const auto space = ForgetPoints(state, 1, 2, 4);
  ASSERT_TRUE(space);
  EXPECT_EQ(Shown(space->requests), Texts{"a[bc]"}) << "the message goes where it was read";
}

TEST_F(SessionForgetTest, APartOutsideTheSessionIsRefused) {
  const SessionState state = Session({{"user", "ab"}});
  const auto field = [&](size_t index, uint32_t begin, uint32_t end) {
    const auto forgotten = ForgetPoints(state, index, begin, end);
    if (forgotten) return std::string("it is taken");
    EXPECT_EQ(forgotten.error().code, Code::kInvalidArgument);
    return *forgotten.error().field;
  };
  EXPECT_EQ(field(1, 0, 1), "index");
  EXPECT_EQ(field(0, 1, 1), "end");
  EXPECT_EQ(field(0, 1, 3), "end");
  EXPECT_EQ(field(0, 0, 2), "it is taken");
}

// Each message is "#CONTENT" and a mark, which no content has; a prompt ends with ">".
class SessionForgetMarksTest : public SessionForgetTest {
 protected:
  SessionForgetMarksTest() { model_.chat_template = with_marks_.get(); }

  const std::unique_ptr<const ChatTemplate> with_marks_ = *ChatTemplate::Parse(
      "{% for m in messages %}#{{ m.content }}<|end|>.{% endfor %}"
      "{% if add_generation_prompt %}>{% endif %}");
};

// Else a message that goes on where this one ends would go too.
TEST_F(SessionForgetMarksTest, AMessageEndsWithItsMark) {
  SessionState state = Session({{"system", "s"}, {"user", "ab"}, {"assistant", "cd"}});
  Read(&state);
  EXPECT_EQ(Shown(ForgetAll(state, scope_)), Texts{"[#s|.#ab|].#cd|.>"});
  EXPECT_EQ(Shown(Forget(state, 1, 2).requests), Texts{"#s|.#[ab|].#cd|.>"});
  EXPECT_EQ(Shown(Forget(state, 0, 1).requests), Texts{"#[s|].#ab|.#cd|.>"});
  EXPECT_EQ(Shown(Forget(state, 2, 3).requests), Texts{"#s|.#ab|.#[cd]|.>"}) << "an answer";
  EXPECT_EQ(Shown(ForgetPoints(state, 1, 0, 2)->requests), Texts{"#s|.#[ab]|.#cd|.>"});
}

TEST_F(SessionForgetMarksTest, AnOlderTextEndsWithItsMarkToo) {
  SessionState state = Session({{"user", "abc"}, {"user", "d"}});
  Read(&state);
  for (const std::string now : {"ab", "xyz"}) {
    const SessionState edited = *Edit(store_, state, 0, Said("", now), LaterMessages::kStay);
    EXPECT_EQ(Shown(ForgetAll(edited, scope_)), (Texts{"[#abc|].#d|.>", "[#" + now + "|].#d|.>"}));
    EXPECT_EQ(Shown(Forget(edited, 0, 1).requests),
              (Texts{"[#abc|].#d|.>", "#[" + now + "|].#d|.>"}));
  }
  std::vector<SessionMessage> other;
  other.push_back(Said("user", "ab"));
  const SessionState cut = *Append(store_, *Truncate(state, 0), std::move(other));
  EXPECT_EQ(Shown(ForgetAll(cut, scope_)), (Texts{"[#abc|].#d|.>", "[#ab|].>"}));
}

// An answer was cut off, and what was computed after it goes too.
TEST_F(SessionForgetMarksTest, AnOlderAnswerGoesWithAllThatGoesOnFromIt) {
  SessionState state = Session({{"user", "ab"}, {"assistant", "cd"}});
  std::vector<SessionPath::Begin> begins = BeginsOf(state, PromptOf(state, model_)->chat);
  std::vector<TokenId> ids = PromptOf(state, model_)->chat.ids;
  ids.resize(8);  // "#ab|.#cd"
  state.paths = *AddPath(store_, state.paths, std::move(ids), std::move(begins), {});
  state = *Edit(store_, state, 1, Said("", "xyz"), LaterMessages::kStay);
  EXPECT_EQ(Shown(Forget(state, 1, 2).requests), (Texts{"#ab|.[#cd]", "#ab|.#[xyz]|.>"}));
}

// Only its place is known. It ends as any message of the user does, before what asks for its
// answer, which no client waited for.
TEST_F(SessionForgetMarksTest, AMessageThatIsGoneEndsWithItsMark) {
  SessionState state = Session({{"system", "s"}, {"user", "ab"}});
  Read(&state);
  EXPECT_EQ(Shown(ForgetAll(*Truncate(state, 1), scope_)), (Texts{"[#s|.#ab|].>", "[#s|.>]"}));
  EXPECT_EQ(Shown(ForgetAll(*Truncate(state, 0), scope_)), Texts{"[#s|.#ab|].>"});
  state.messages[1] = *store_.Keep(Said("user", "xyz"));
  EXPECT_EQ(Shown(ForgetAll(state, scope_)), (Texts{"[#s|.#ab|].>", "[#s|.#xyz|].>"}));
}

// What is left of a path is how others begin too: they stay.
TEST_F(SessionForgetMarksTest, FromAPathThatWasCutOthersGoOn) {
  SessionState state = Session({{"system", "s"}, {"user", "abcd"}});
  Read(&state);
  const SessionState fork = *ForkOf(store_, state, 1);
  EXPECT_EQ(Shown(ForgetAll(fork, scope_)), (Texts{"[#s|.~]", "[#s|.>]"}));
  const SessionState without = Forget(state, 1, 2).state;
  EXPECT_EQ(PathsOf(without), Texts{"#s|.#"});
  EXPECT_EQ(Shown(ForgetAll(without, scope_)), (Texts{"[#s|.#~]", "[#s|.>]"}));
  EXPECT_EQ(Shown(Forget(without, 0, 1).requests), Texts{"#[s|].#"});
  const SessionState rest = ForgetPoints(state, 1, 1, 2)->state;
  EXPECT_EQ(PathsOf(rest), Texts{"#s|.#a"});
  EXPECT_EQ(Shown(ForgetAll(rest, scope_)), (Texts{"[#s|.#a~]", "[#s|.#acd|].>"}));
  const Forgetting all = Forget(rest, 1, 2);
  EXPECT_EQ(Shown(all.requests), (Texts{"#s|.[#a~]", "#s|.#[acd|].>"}));
  EXPECT_EQ(PathsOf(all.state), Texts{"#s|."});
  // The message is not known any more, and what goes on from its rest is still another one.
  EXPECT_EQ(Shown(ForgetAll(*Truncate(rest, 1), scope_)), (Texts{"[#s|.#a~]", "[#s|.>]"}));
}

TEST_F(SessionForgetMarksTest, FromTheRestOfAnAnswerOthersGoOnToo) {
  SessionState state = Session({{"user", "ab"}, {"assistant", "cde"}});
  Read(&state);
  const SessionState rest = ForgetPoints(state, 1, 1, 2)->state;
  EXPECT_EQ(PathsOf(rest), Texts{"#ab|.#c"});
  EXPECT_EQ(Shown(Forget(rest, 1, 2).requests), (Texts{"#ab|.[#c~]", "#ab|.#[ce]|.>"}));
  EXPECT_EQ(Shown(ForgetAll(rest, scope_)), Texts{"[#ab|].#c"});
  const SessionState edited = *Edit(store_, state, 1, Said("", "xy"), LaterMessages::kStay);
  const SessionState without = ForgetMessages(store_, state, edited, {1, 2}, scope_).state;
  EXPECT_EQ(PathsOf(without), Texts{"#ab|.#"});
  EXPECT_EQ(Shown(Forget(without, 1, 2).requests), (Texts{"#ab|.[#~]", "#ab|.#[xy]|.>"}));
}

// A block may end in what the template writes before the text: the session must still find it.
TEST_F(SessionForgetMarksTest, WhatComesBeforeAForgottenMessageGoesWithTheSession) {
  const auto tools = ChatTemplate::Parse(
      "T{% for m in messages %}#{{ m.content }}<|end|>.{% endfor %}"
      "{% if add_generation_prompt %}>{% endif %}");
  model_.chat_template = tools->get();
  SessionState state = Session({{"user", "ab"}});
  Read(&state);
  const Forgetting forgetting = Forget(state, 0, 1);
  EXPECT_EQ(Shown(forgetting.requests), Texts{"T#[ab|].>"});
  EXPECT_EQ(PathsOf(forgetting.state), Texts{"T#"});
  EXPECT_EQ(Shown(ForgetAll(forgetting.state, scope_)), Texts{"[T#~]"});
}

// A path that was read with a template without marks was not cut: all that goes on from it goes.
TEST_F(SessionForgetMarksTest, AnotherTemplateCutsNoPath) {
  const auto bare = ChatTemplate::Parse("{% for m in messages %}#{{ m.content }}{% endfor %}");
  model_.chat_template = bare->get();
  SessionState state = Session({{"user", "ab"}});
  Read(&state);
  model_.chat_template = with_marks_.get();
  EXPECT_EQ(Shown(ForgetAll(state, scope_)), Texts{"[#ab]"});
  state = *Edit(store_, state, 0, Said("", "cd"), LaterMessages::kStay);
  EXPECT_EQ(Shown(Forget(state, 0, 1).requests), (Texts{"[#ab]", "#[cd|].>"}));
}

// What comes before the first message that somebody said, such as a system message, may be that of
// other sessions too: the engine keeps it where they have it.
TEST_F(SessionForgetTest, AWholeSessionIsForgottenUpToTheEndOfItsFirstSaidMessage) {
  EXPECT_TRUE(ForgetAll(Session({}), scope_).empty());
  EXPECT_EQ(Shown(ForgetAll(Session({{"system", "s"}}), scope_)), Texts{"[s;]"});
  EXPECT_EQ(Shown(ForgetAll(Session({{"user", "ab"}}), scope_)), Texts{"[ab;]"});
  SessionState state =
      Session({{"system", "s"}, {"developer", "d"}, {"user", "ab"}, {"assistant", "c"}});
  Read(&state, {}, "more");
  EXPECT_EQ(Shown(ForgetAll(state, scope_)), Texts{"[s;d;ab;]c;more"});
  state.messages.erase(state.messages.begin() + 2);  // the question, whose path stays
  EXPECT_EQ(Shown(ForgetAll(state, scope_)), (Texts{"[s;d;ab;]c;more", "[s;d;c];"}));
}

TEST_F(SessionForgetTest, OthersThatSayTheSameAreNamedToTheEngine) {
  SessionState state = Session({{"system", "s"}, {"user", "ab"}});
  Read(&state);
  SessionState other = Session({{"system", "s"}, {"user", "ac"}});
  Read(&other);
  scope_.others.push_back(std::make_shared<const SessionState>(other));
  const std::vector<ForgetRequest> requests = ForgetAll(state, scope_);
  ASSERT_EQ(requests.size(), 1u);
  ASSERT_EQ(requests[0].kept.size(), 1u);
  EXPECT_EQ(Text(requests[0].kept[0]), "s;a");
}

TEST_F(SessionForgetTest, APromptOfNoSessionIsForgottenWhole) {
  for (const char* text : {"a", "ab;c"}) {
    const ForgetRequest request = ForgetPrompt(Ids(text), {.owner = {}, .salt = "s"}, scope_);
    EXPECT_EQ(Shown({request}), Texts{"s[" + std::string(text) + "]"});
    EXPECT_EQ(request.owner, "o");
    EXPECT_TRUE(request.kept.empty());
  }
}

}  // namespace
}  // namespace kvasir
