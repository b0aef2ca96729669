#include "server/responses_routes.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "server/routes_for_test.h"
#include "server/session_routes.h"

namespace kvasir {
namespace {

using nlohmann::json;

constexpr const char* kResponses = "/v1/responses";

class ResponsesRoutesTest : public RoutesTest {
 protected:
  void AddRoutes() override {
    engine_->mutable_card().ctx_size = engine_->mutable_card().max_positions = 256;
    engine_->mutable_plan().max_tokens = 256;
    AddResponsesRoutes(
        {server_->generations, server_->preparer, server_->responses, server_->texts},
        &server_->table);
    AddSessionRoutes(
        {server_->generations, server_->preparer, server_->keys, server_->sessions, server_->texts},
        &server_->table);
  }
  void SetUp() override {
    Make({});
    Restart({});  // with the context
  }
  // Ends an answer by a text, in events of one byte. Returns what was sent.
  static std::string Answer(GenerationStart& start, const std::string& text) {
    std::string sent;
    for (const char byte : text) {
      Event event;
      event.tokens.push_back({static_cast<unsigned char>(byte), std::string(1, byte)});
      event.text = byte;
      sent += start.answer->Take(0, event);
    }
    Event last;
    last.finish_reason = FinishReason::kStop;
    last.receipt.prompt_tokens = static_cast<uint32_t>(start.requests[0].prompt.size());
    last.last = true;
    sent += start.answer->Take(0, last);
    EXPECT_FALSE(start.answer->error());
    return start.answer->streams() ? sent : Joined(start.answer->Body());
  }
  json Create(const json& body, const std::string& text) {
    GenerationStart start = Start(kResponses, body);
    const json said = json::parse(Answer(start, text));
    return said;
  }
  static std::string PathTo(const json& response) {
    return std::string(kResponses) + "/" + response["id"].get<std::string>();
  }
};

TEST_F(ResponsesRoutesTest, AResponseGoesOnFromAnotherWithItsIds) {
  const json first = Create({{"input", "a"}, {"instructions", "s"}}, "bc");
  EXPECT_EQ(first["store"], true);
  EXPECT_EQ(first["previous_response_id"], nullptr);
  GenerationStart start =
      Start(kResponses, {{"input", "d"}, {"previous_response_id", first["id"]}});
  const json asked = json::parse(R"({"store":false,"input":[{"role":"user","content":"a"},
      {"role":"assistant","content":"bc"},{"role":"user","content":"d"}]})");
  EXPECT_EQ(start.requests[0].prompt, Start(kResponses, asked).requests[0].prompt)
      << "the instructions were those of the first one";
  EXPECT_EQ(start.requests[0].use_remote, RemoteUse::kRead);
  EXPECT_EQ(Start(kResponses, asked).requests[0].use_remote, RemoteUse::kReadWrite);
  const json second = json::parse(Answer(start, "ef"));
  EXPECT_EQ(second["previous_response_id"], first["id"]);
  const auto state = server_->responses.Find("default", second["id"].get<std::string>())->state;
  const auto before = server_->responses.Find("default", first["id"].get<std::string>())->state;
  ASSERT_EQ(state->messages.size(), 4u);
  ASSERT_EQ(before->messages.size(), 3u);
  EXPECT_EQ(state->messages[0], before->messages[1]) << "it is shared";
  EXPECT_EQ(state->messages[1], before->messages[2]);
  EXPECT_EQ(state->messages[1]->ids, IdsOfBytes("bc"));
  EXPECT_EQ(state->setup, before->setup);
  // Equal instructions are shared, and what was read goes on from the first one's path.
  const json third =
      Create({{"input", "d"}, {"instructions", "s"}, {"previous_response_id", first["id"]}}, "e");
  const auto next = server_->responses.Find("default", third["id"].get<std::string>())->state;
  EXPECT_EQ(next->messages[0], before->messages[0]);
  EXPECT_EQ(next->paths.front(), before->paths.front());
  const json shown = AskJson("GET", PathTo(third) + "?ids=true");
  EXPECT_EQ(shown["ids"].size(), shown["usage"]["input_tokens"].get<size_t>() + 1);
}

TEST_F(ResponsesRoutesTest, WhatIsShownIsWhatWasAnswered) {
  const json whole = Create({{"input", "a"}}, "bc");
  EXPECT_EQ(AskJson("GET", PathTo(whole)), whole);
  GenerationStart start = Start(kResponses, {{"input", "a"}, {"stream", true}});
  const std::string sent = Answer(start, "bc");
  const json last = json::parse(sent.substr(sent.rfind("data: ") + 6))["response"];
  EXPECT_EQ(last["status"], "completed");
  EXPECT_EQ(AskJson("GET", PathTo(last)), last);
  EXPECT_EQ(ParamOf(Ask("GET", PathTo(last) + "?stream=true")), "stream");
  EXPECT_EQ(ParamOf(Ask("GET", PathTo(last) + "?ids=x")), "ids");
  const json items = AskJson("GET", PathTo(last) + "/input_items");
  EXPECT_EQ(items["data"][0]["content"], json::parse(R"([{"type":"input_text","text":"a"}])"));
  EXPECT_EQ(items["has_more"], false);
}

TEST_F(ResponsesRoutesTest, IdsThatAreUnknownForeignOrDeletedLookAlike) {
  const json made = Create({{"input", "a"}}, "b");
  const std::string path = PathTo(made), unknown = "/v1/responses/resp_" + std::string(32, '0');
  const auto same = [&](const char* method, const std::string& end) {
    const HttpResponse one = Ask(method, path + end), other = Ask(method, unknown + end);
    EXPECT_EQ(one.status, 404);
    EXPECT_EQ(one.body, other.body);
  };
  const auto all = [&] {
    same("GET", ""), same("DELETE", ""), same("GET", "/input_items");
    const json error = ErrorOf(kResponses, {{"input", "x"}, {"previous_response_id", made["id"]}});
    EXPECT_EQ(error, ErrorOf(kResponses, {{"input", "x"}, {"previous_response_id", "resp_7"}}));
    EXPECT_EQ(error["code"], "previous_response_not_found");
    EXPECT_EQ(error["param"], "previous_response_id");
  };
  caller_ = {.tenant = "other", .entry = nullptr};
  all();
  caller_ = {.tenant = "default", .entry = nullptr};
  EXPECT_EQ(AskJson("GET", "/v1/sessions")["data"], json::array());
  EXPECT_EQ(Ask("GET", "/v1/sessions/" + made["id"].get<std::string>()).status, 404);
  const json gone = AskJson("DELETE", path);
  EXPECT_EQ(gone["object"], "response");
  EXPECT_EQ(gone["deleted"], true);
  EXPECT_GE(engine_->forgotten.size(), 1u);
  all();
}

TEST_F(ResponsesRoutesTest, WhatHasNoAnswerIsNotStored) {
  EXPECT_EQ(Create({{"input", "a"}, {"store", false}}, "b")["store"], false);
  for (const bool fails : {false, true}) {  // or the client leaves
    GenerationStart start = Start(kResponses, {{"input", "a"}});
    Event event;
    event.text = "b";
    event.tokens.push_back({98, "b"});
    start.answer->Take(0, event);
    if (fails) {
      Event last;
      last.last = true;
      last.error = Error{Code::kUnavailable, "no"};
      start.answer->Take(0, last);
      EXPECT_TRUE(start.answer->error());
    }
  }
  EXPECT_EQ(server_->sessions.counts().responses, 0u);
  EXPECT_EQ(server_->sessions.counts().bytes, 0u);
}

TEST_F(ResponsesRoutesTest, AnAnswerThatIsContinuedIsNotStored) {
  json body = json::parse(R"({"input":[{"role":"user","content":"a"},
      {"role":"assistant","content":"b"}]})");
  GenerationStart start = Start(kResponses, body);
  body["store"] = false;
  EXPECT_EQ(start.requests[0].prompt, Start(kResponses, body).requests[0].prompt);
  EXPECT_EQ(json::parse(Answer(start, "c"))["store"], false);
  EXPECT_EQ(server_->sessions.counts().responses, 0u);
}

TEST_F(ResponsesRoutesTest, AnEraseOfAllIsAlsoOfWhatIsBeingAnswered) {
  const json first = Create({{"input", "a"}}, "b");
  GenerationStart start =
      Start(kResponses, {{"input", "c"}, {"previous_response_id", first["id"]}});
  ASSERT_TRUE(server_->sessions.RemoveAll("default"));
  EXPECT_EQ(json::parse(Answer(start, "d"))["store"], false);
  EXPECT_EQ(server_->sessions.counts().responses, 0u);
}

TEST_F(ResponsesRoutesTest, MarksAreKeptOfWhatIsStoredToo) {
  json body = json::parse(R"({"instructions":"s","input":[{"role":"user","content":[
      {"type":"input_text","text":"a","prompt_cache_breakpoint":{"mode":"explicit"}}]},
      {"role":"user","content":"b"}],"prompt_cache_options":{"ttl":"12h","other":1}})");
  const auto keeps_of = [](const GenerationStart& start) {
    const GenerateRequest& request = start.requests[0];
    EXPECT_EQ(request.ignored, std::vector<std::string>{"prompt_cache_options.other"});
    std::vector<std::pair<uint32_t, uint32_t>> keeps;
    for (const auto& keep : request.keeps) keeps.emplace_back(keep.tokens, keep.ttl_s);
    return keeps;
  };
  GenerationStart start = Start(kResponses, body);
  const auto stored = keeps_of(start);
  ASSERT_EQ(stored.size(), 1u);
  EXPECT_EQ(stored[0], std::pair(start.requests[0].message_ends[1], 43200u));
  const json made = json::parse(Answer(start, "c"));
  EXPECT_EQ(made["store"], true);
  body["store"] = false;
  EXPECT_EQ(keeps_of(Start(kResponses, body)), stored);
  // What goes on from it has other marks.
  const json next =
      json::parse(R"([{"role":"user","content":"d","prompt_cache_breakpoint":true}])");
  const GenerationStart second =
      Start(kResponses, {{"input", next}, {"previous_response_id", made["id"]}});
  ASSERT_EQ(second.requests[0].keeps.size(), 1u);
  EXPECT_EQ(second.requests[0].keeps[0].tokens, second.requests[0].message_ends.back());
}

TEST_F(ResponsesRoutesTest, APrewarmIsNotStored) {
  const json body = {{"input", "a"}, {"prompt_cache_options", {{"prewarm", true}}}};
  GenerationStart start = Start(kResponses, body);
  EXPECT_EQ(start.requests[0].max_tokens, 0u);
  const json made = json::parse(Answer(start, ""));
  EXPECT_EQ(made["store"], false);
  EXPECT_EQ(made["max_output_tokens"], nullptr);
  EXPECT_EQ(server_->sessions.counts().responses, 0u);
}

TEST_F(ResponsesRoutesTest, TheOldestTurnsAreDroppedWhereThatIsAsked) {
  json previous;
  json receipt;
  for (int turn = 0; turn < 12; ++turn) {
    json body = {{"input", std::string(20, static_cast<char>('a' + turn))}, {"truncation", "auto"}};
    if (!previous.is_null()) body["previous_response_id"] = previous["id"];
    previous = Create(body, "yes");
    EXPECT_EQ(previous["truncation"], "auto");
    receipt = previous["kvasir"];
  }
  EXPECT_GT(receipt["dropped_messages"], 10);
  const json error =
      ErrorOf(kResponses, {{"input", "x"}, {"previous_response_id", previous["id"]}});
  EXPECT_EQ(error["param"], "input");
  EXPECT_EQ(error["n_ctx"], 256) << error;
}

}  // namespace
}  // namespace kvasir
