#include "api/stored_response.h"

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/responses_request.h"
#include "api/session_for_test.h"

namespace kvasir {
namespace {

class StoredResponseTest : public ByteSessionTest {
 protected:
  using Json = nlohmann::ordered_json;

  // Reads a request that is to be stored; `previous` is the response "resp_1".
  Result<ResponsesCall> Parse(const std::string& body,
                              std::shared_ptr<const SessionState> previous = nullptr) {
    const FindResponse find =
        [&](std::string_view id) -> Result<std::shared_ptr<const SessionState>> {
      if (previous && id == "resp_1") return previous;
      return Fail(Code::kNotFound, "no such response");
    };
    return ParseResponsesRequest(body, model_, find);
  }
  SessionState Stored(const std::string& body,
                      std::shared_ptr<const SessionState> previous = nullptr) {
    auto call = Parse(body, std::move(previous));
    EXPECT_TRUE(call) << call.error().text();
    return call ? call->to_store->state : SessionState();
  }
  // Adds the answer to what is stored of a request.
  std::shared_ptr<const SessionState> Answered(SessionState state, std::string text) {
    std::vector<SessionMessage> answer;
    answer.push_back(Said("assistant", std::move(text)));
    return std::make_shared<const SessionState>(*Append(store_, state, std::move(answer)));
  }
  Json Items(const SessionState& state, const ItemPage& page = {.is_ascending = true}) {
    const auto list = InputItems("resp_7f", state, page);
    return list ? Json::parse(*list) : Json(list.error().text());
  }
  // Shows the text of each item.
  std::string Texts(const Json& list) const {
    std::string texts;
    for (const Json& item : list.at("data")) texts += item["content"][0]["text"];
    return texts;
  }
};

TEST_F(StoredResponseTest, InstructionsAreThoseOfOneResponse) {
  const SessionMessage plain = Said("user", "a");
  EXPECT_EQ(WithoutInstructions(plain), "a");
  const SessionState alone = Stored(R"({"instructions":"I","input":"a"})");
  EXPECT_EQ(WithoutInstructions(*alone.messages[0]), std::nullopt) << "it says nothing else";
  SessionMessage joined = Said("system", "\xC3\xA9\xC3\xA9\nS");
  SessionMessage::More more;
  more.segments.push_back({std::string(kInstructionsPart), 0, 2});
  joined.SetMore(std::move(more));
  EXPECT_EQ(WithoutInstructions(joined), "S");
  SessionMessage other = Said("system", "abc");
  SessionMessage::More of_client;
  of_client.segments.push_back({"s", 0, 1});
  other.SetMore(std::move(of_client));
  EXPECT_EQ(WithoutInstructions(other), "abc") << "a part of another name";
}

TEST_F(StoredResponseTest, WhatThePreviousOneHasIsTheSame) {
  const auto first = Answered(Stored(R"({"instructions":"I","input":"a"})"), "b");
  const SessionState next =
      Stored(R"({"instructions":"I","input":"c","previous_response_id":"resp_1"})", first);
  ASSERT_EQ(next.messages.size(), 4u);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(next.messages[i], first->messages[i]) << i;
  EXPECT_EQ(next.setup, first->setup);
  const SessionState other =
      Stored(R"({"instructions":"J","input":"c","previous_response_id":"resp_1",
                 "chat_template_kwargs":{"x":1}})",
             first);
  ASSERT_EQ(other.messages.size(), 4u);
  EXPECT_NE(other.messages[0], first->messages[0]) << "it has other instructions";
  EXPECT_EQ(other.messages[0]->content, "J");
  EXPECT_EQ(other.messages[1], first->messages[1]);
  EXPECT_NE(other.setup, first->setup);
  EXPECT_EQ(other.setup->fields, R"({"chat_template_kwargs":{"x":1}})");
}

TEST_F(StoredResponseTest, TheSetupKeepsWhatThePromptDependsOn) {
  const SessionState state = Stored(R"({"input":"a","model":"m","cache":{"disk":false},
      "truncation":"auto","temperature":0.5})");
  EXPECT_EQ(state.setup->fields, "");
  EXPECT_EQ(state.setup->model, "m");
  EXPECT_FALSE(state.setup->on_disk);
  EXPECT_TRUE(state.setup->drops_oldest);
  EXPECT_TRUE(Stored(R"({"input":"a"})").setup->on_disk);
  const auto refused = Parse(R"({"input":"a","model":"unknown"})");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kNotFound);
  EXPECT_EQ(refused.error().field, "model");
}

TEST_F(StoredResponseTest, MarksLeaveTheMessages) {
  auto call = Parse(R"({"input":[{"role":"user","content":[{"type":"input_text","text":"a",
      "prompt_cache_breakpoint":true}]},{"role":"user","content":"b"}]})");
  ASSERT_TRUE(call) << call.error().text();
  for (const auto& message : call->to_store->state.messages) {
    EXPECT_EQ(message->more().fields, "");
  }
  EXPECT_EQ(call->call.requests.front().keeps.size(), 1u);
}

TEST_F(StoredResponseTest, ThePromptBeginsEachMessageOnce) {
  auto call = Parse(R"({"input":[{"role":"user","content":"ab"},{"role":"user","content":"c"}]})");
  ASSERT_TRUE(call) << call.error().text();
  const auto& begins = call->to_store->begins;
  ASSERT_EQ(begins.size(), 2u);
  EXPECT_EQ(begins[0].at, 0u);
  EXPECT_EQ(begins[1].at, 3u);
  EXPECT_EQ(begins[1].number, call->to_store->state.messages[1]->number);
}

TEST_F(StoredResponseTest, AFullContextIsAnErrorOrDropsTheOldestTurns) {
  model_.ctx_size = 10;
  const auto first = Answered(Stored(R"({"input":"abc"})"), "de");  // abc;de;
  const auto next = [&](const char* more) {
    return Parse(R"({"previous_response_id":"resp_1",)" + std::string(more) + "}", first);
  };
  const auto fits = next(R"("input":"f")");  // abc;de;f; and one token of answer
  ASSERT_TRUE(fits) << fits.error().text();
  EXPECT_EQ(fits->call.requests.front().prompt.size(), 9u);
  const auto full = next(R"("input":"fg")");
  ASSERT_FALSE(full);
  EXPECT_EQ(full.error().code, Code::kInvalidArgument);
  EXPECT_EQ(full.error().cause, Cause::kContext);
  EXPECT_EQ(full.error().field, "input");
  ASSERT_TRUE(full.error().excess);
  EXPECT_EQ(full.error().excess->prompt_tokens, 10u);
  EXPECT_EQ(full.error().excess->ctx_size, 10u);
  const auto drops = next(R"("input":"fg","truncation":"auto")");
  ASSERT_TRUE(drops) << drops.error().text();
  EXPECT_EQ(Text(drops->call.requests.front().prompt), "fg;");
  EXPECT_EQ(drops->to_store->state.dropped, 2u);
  ASSERT_TRUE(drops->call.spec.session);
  EXPECT_EQ(drops->call.spec.session->dropped_messages, 2u);
  ASSERT_EQ(drops->to_store->begins.size(), 1u) << "of messages that are left out none begins";
  EXPECT_EQ(drops->to_store->begins[0].at, 0u);
}

TEST_F(StoredResponseTest, ItemsAreTheInputWithoutInstructionsAndAnswer) {
  const Json empty = Items(*Answered(Session({}), "b"));
  EXPECT_EQ(empty["data"], Json::array());
  EXPECT_EQ(empty["first_id"], nullptr);
  EXPECT_EQ(empty["last_id"], nullptr);
  EXPECT_EQ(empty["has_more"], false);
  const Json one = Items(*Answered(Stored(R"({"instructions":"I","input":"a"})"), "b"));
  ASSERT_EQ(one["data"].size(), 1u);
  EXPECT_EQ(one["data"][0], Json::parse(R"({"type":"message","role":"user","content":[
      {"type":"input_text","text":"a"}],"status":"completed","id":"msg_7fi00000"})"));
  EXPECT_EQ(one["first_id"], "msg_7fi00000");
  EXPECT_EQ(one["last_id"], "msg_7fi00000");
}

TEST_F(StoredResponseTest, ItemsAreThoughtsAnswersCallsAndResults) {
  const Json list = Items(*Answered(Stored(R"({"input":[{"role":"user","content":"a"},
      {"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"Hm."}]},
      {"type":"message","role":"assistant","content":[{"type":"output_text","text":"A"}]},
      {"type":"function_call","call_id":"c1","name":"f","arguments":"{\"x\": 1}"},
      {"type":"function_call_output","call_id":"c1","output":"3"}]})"),
                                    "b"));
  std::vector<std::string> ids;
  for (const Json& item : list["data"]) ids.push_back(item["id"]);
  EXPECT_EQ(ids, (std::vector<std::string>{"msg_7fi00000", "rs_7fi00001", "msg_7fi00002",
                                           "fc_7fi00003", "fco_7fi00004"}));
  ASSERT_EQ(list["data"].size(), 5u);
  EXPECT_EQ(list["data"][1]["content"][0]["text"], "Hm.");
  EXPECT_EQ(list["data"][2]["content"][0]["type"], "output_text");
  EXPECT_EQ(list["data"][3]["name"], "f");
  EXPECT_EQ(list["data"][3]["arguments"], R"({"x": 1})");
  EXPECT_EQ(list["data"][4]["call_id"], "c1");
  EXPECT_EQ(list["data"][4]["output"], "3");
}

TEST_F(StoredResponseTest, ListsAreReadInPagesFromEitherEnd) {
  const auto state =
      Answered(Session({{"user", "a"}, {"user", "b"}, {"user", "c"}, {"user", "d"}}), "answer");
  EXPECT_EQ(Texts(Items(*state)), "abcd");
  EXPECT_EQ(Texts(Items(*state, {})), "dcba");
  Json page = Items(*state, {.limit = 1, .is_ascending = true});
  EXPECT_EQ(Texts(page), "a");
  EXPECT_EQ(page["has_more"], true);
  page = Items(*state, {.limit = 3, .is_ascending = true, .after = page["last_id"]});
  EXPECT_EQ(Texts(page), "bcd");
  EXPECT_EQ(page["has_more"], false);
  EXPECT_EQ(Texts(Items(*state, {.limit = 2, .after = "msg_7fi00002"})), "ba");
  page = Items(*state, {.is_ascending = true, .after = "msg_7fi00003"});
  EXPECT_EQ(page["data"], Json::array()) << "nothing comes after the last one";
  EXPECT_EQ(page["has_more"], false);
  EXPECT_EQ(Items(*state, {.limit = 4, .is_ascending = true})["has_more"], false);
  EXPECT_EQ(Items(*state, {.after = "msg_7fi00004"}),
            Json("after: the response has no input item of this id"));
  EXPECT_EQ(InputItems("resp_7f", *state, {.after = "x"}).error().code, Code::kNotFound);
}

}  // namespace
}  // namespace kvasir
