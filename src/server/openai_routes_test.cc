#include "server/openai_routes.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "server/routes_for_test.h"

namespace kvasir {
namespace {

using nlohmann::json;

class OpenAiRoutesTest : public RoutesTest {
 protected:
  void AddRoutes() override {
    AddOpenAiRoutes(server_->generations, server_->preparer, &server_->table);
  }
};

TEST_F(OpenAiRoutesTest, EveryFieldOfSamplingReachesTheEngine) {
  const json body =
      json::parse(R"({"prompt":"abc","temperature":0.5,"top_k":7,"top_p":0.25,"min_p":0.125,
      "repetition_penalty":1.5,"presence_penalty":0.5,"frequency_penalty":-0.5,"repeat_last_n":8,
      "samplers":["penalties","top_k","top_p","min_p","infill","temperature"],"seed":-2,"n":3,
      "logit_bias":{"65":-100,"66":2.5},"stop":["x","yy"],"stop_token_ids":[9],"max_tokens":5,"min_tokens":4,
      "logprobs":4,"ignore_eos":true,"cache_prompt":false,"skip_special_tokens":false,"extra":1,
      "prediction":{"type":"content","content":[{"type":"text","text":"xy"},{"text":"z"}]},
      "speculative":{"n_max":4,"p_min":0.5}})");
  const GenerationStart start = Start("/v1/completions", body);
  ASSERT_EQ(start.requests.size(), 1u);
  const GenerateRequest& request = start.requests[0];
  EXPECT_EQ(request.tenant, "default");
  EXPECT_EQ(request.prompt, IdsOfBytes("abc"));
  // All members, so that one more does not compile before it is here.
  const auto& [temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty,
               frequency_penalty, penalty_last_n, logit_bias, temperature_last, infill, seed] =
      request.sampling;
  EXPECT_EQ(temperature, 0.5f);
  EXPECT_EQ(top_k, 7u);
  EXPECT_EQ(top_p, 0.25f);
  EXPECT_EQ(min_p, 0.125f);
  EXPECT_EQ(repetition_penalty, 1.5f);
  EXPECT_EQ(presence_penalty, 0.5f);
  EXPECT_EQ(frequency_penalty, -0.5f);
  EXPECT_EQ(penalty_last_n, 8u);
  EXPECT_EQ(logit_bias, (std::vector<std::pair<TokenId, float>>{{65, -100.0f}, {66, 2.5f}}));
  EXPECT_TRUE(temperature_last);
  EXPECT_TRUE(infill);
  EXPECT_EQ(seed, static_cast<uint64_t>(-2));
  EXPECT_EQ(request.n, 3u);
  EXPECT_EQ(request.stop, (std::vector<std::string>{"x", "yy"}));
  EXPECT_EQ(request.stop_ids, std::vector<TokenId>{9});
  EXPECT_EQ(request.max_tokens, 5u);
  EXPECT_EQ(request.min_tokens, 4u);
  EXPECT_EQ(request.logprobs, 4u);
  EXPECT_TRUE(request.ignore_eos);
  EXPECT_EQ(request.reuse, Reuse::kNothing);
  EXPECT_TRUE(request.echo_special);
  EXPECT_EQ(request.prediction, IdsOfBytes("xyz"));
  EXPECT_EQ(request.draft_max, 4u);
  EXPECT_EQ(request.ignored, (std::vector<std::string>{"extra", "speculative.p_min"}));
}

TEST_F(OpenAiRoutesTest, WrongFieldsOfDraftsAreNamed) {
  const auto param = [&](const char* name, json value) {
    const json body = {{"prompt", "a"}, {name, std::move(value)}};
    return ParamOf(AskText("POST", "/v1/completions", body.dump()));
  };
  EXPECT_EQ(param("prediction", "text"), "prediction");
  EXPECT_EQ(param("prediction", {{"type", "image"}, {"content", "x"}}), "prediction");
  EXPECT_EQ(param("prediction", {{"type", "content"}}), "prediction.content");
  EXPECT_EQ(param("prediction", {{"type", "content"}, {"content", {1}}}), "prediction.content");
  EXPECT_EQ(param("speculative", json::array()), "speculative");
  EXPECT_EQ(param("speculative", {{"n_max", -1}}), "speculative.n_max");
  EXPECT_EQ(param("speculative.n_max", 0.5), "speculative.n_max");
  const json flat = {{"prompt", "a"}, {"speculative.n_max", 99}, {"prediction", nullptr}};
  EXPECT_EQ(Start("/v1/completions", flat).requests[0].draft_max, kMaxDraft);
}

TEST_F(OpenAiRoutesTest, ALimitOfDraftsThatIsGivenTwiceMustBeTheSame) {
  const auto body = [](int flat, int inner) {
    return json{{"prompt", "a"}, {"speculative.n_max", flat}, {"speculative", {{"n_max", inner}}}};
  };
  EXPECT_EQ(Start("/v1/completions", body(3, 3)).requests[0].draft_max, 3u);
  EXPECT_EQ(Start("/v1/completions", body(0, 0)).requests[0].draft_max, 0u);
  for (const auto& [flat, inner] : {std::pair(3, 4), std::pair(0, 1), std::pair(98, 99)}) {
    const json error = ErrorOf("/v1/completions", body(flat, inner));
    EXPECT_EQ(error["param"], "speculative.n_max");
    EXPECT_EQ(
        error["message"],
        fmt::format("speculative.n_max: is {}, and in the object `speculative` it is {}; give "
                    "it once",
                    flat, inner));
  }
}

TEST_F(OpenAiRoutesTest, AnUnknownModelsErrorSaysWhatIsRight) {
  const HttpResponse answer =
      AskText("POST", "/v1/completions", R"({"prompt":"a","model":"gpt-4o"})");
  EXPECT_EQ(ParamOf(answer), "model");
  for (const char* part : {"gpt-4o", "(known: fake)", "--alias '*'"}) {
    EXPECT_NE(answer.body.find(part), std::string::npos) << answer.body;
  }
}

// The name of a field that is not known is the client's text, which a log would keep.
TEST_F(OpenAiRoutesTest, NoLogHasTheNameOfAnUnknownField) {
  const std::pair<const char*, json> bodies[] = {
      {"cache.my secret", {{"cache", {{"my secret", 1}}}}},
      {"cache.retention.my secret",
       {{"cache", {{"retention", {{"policy", "window"}, {"my secret", 1}}}}}}},
      {"structured_outputs.my secret", {{"structured_outputs", {{"my secret", 1}}}}}};
  for (auto [param, body] : bodies) {
    body["prompt"] = "a";
    const HttpResponse answer = AskText("POST", "/v1/completions", body.dump());
    EXPECT_EQ(ParamOf(answer), param);
    EXPECT_FALSE(answer.refusal->field) << *answer.refusal->field;
  }
  const HttpResponse known = AskText("POST", "/v1/completions", R"({"prompt":"a","cache":5})");
  EXPECT_EQ(known.refusal->field, "cache");
}

// A request may have a thousand prompts, and each has a copy of these fields.
TEST_F(OpenAiRoutesTest, WhatEveryPromptCarriesIsBounded) {
  const auto param = [&](const char* name, json value) {
    const json body = {{"prompt", "a"}, {name, std::move(value)}};
    return ParamOf(AskText("POST", "/v1/completions", body.dump()));
  };
  json biases;
  for (int i = 0; i < 5000; ++i) biases[std::to_string(i)] = 1;
  EXPECT_EQ(param("logit_bias", std::move(biases)), "logit_bias");
  EXPECT_EQ(param("stop", std::string(2000, 'x')), "stop");
  EXPECT_EQ(param("stop_token_ids", std::vector<int>(2000, 7)), "stop_token_ids");
  json many = {{"prompt", std::vector<std::string>(200, "a")}, {"n", 100}};
  EXPECT_EQ(ParamOf(AskText("POST", "/v1/completions", many.dump())), "prompt");
  json body = {{"prompt", "a"}};
  for (int i = 0; i < 1000; ++i) body["unknown" + std::string(i, 'x')] = i;
  const std::vector<std::string> ignored = Start("/v1/completions", body).requests[0].ignored;
  ASSERT_EQ(ignored.size(), 65u);
  EXPECT_EQ(ignored.back(), "and 936 more");
  for (const std::string& name : ignored) EXPECT_LE(name.size(), 64u);
}

TEST_F(OpenAiRoutesTest, EchoWithLogprobsComputesThePrompt) {
  const json body = {{"prompt", {"ab", "c"}}, {"echo", true}, {"logprobs", 1}, {"max_tokens", 1}};
  const GenerationStart start = Start("/v1/completions", body);
  for (const GenerateRequest& request : start.requests) {
    EXPECT_TRUE(request.scores_prompt);
    EXPECT_EQ(request.reuse, Reuse::kNothing);
    EXPECT_EQ(request.logprobs, 1u);
  }
  json plain = body;
  plain.erase("echo");
  EXPECT_FALSE(Start("/v1/completions", plain).requests[0].scores_prompt);
  // Three tokens of prompts, with 16 bytes and 8 for the alternative each; and the texts.
  EXPECT_GE(start.answer_bytes, Start("/v1/completions", plain).answer_bytes + 3 * 24);
}

TEST_F(OpenAiRoutesTest, ASeedHasAnyOf64Bits) {
  for (const auto& [text, seed] :
       {std::pair<const char*, std::optional<uint64_t>>{"18446744073709551615", UINT64_MAX},
        {"9223372036854775808", uint64_t{1} << 63},
        {"-9223372036854775808", uint64_t{1} << 63},
        {"-2", UINT64_MAX - 1},
        {"-1", std::nullopt},  // random
        {"7.0", 7}}) {
    Outcome outcome = Handle(
        RequestOf("POST", "/v1/completions", fmt::format(R"({{"prompt":"a","seed":{}}})", text)));
    ASSERT_TRUE(std::holds_alternative<GenerationStart>(outcome)) << text;
    EXPECT_EQ(std::get<GenerationStart>(outcome).requests[0].sampling.seed, seed);
  }
  for (const char* bad : {"18446744073709551616", "-9223372036854775809", "1.5", "\"1\""}) {
    EXPECT_EQ(ParamOf(AskText("POST", "/v1/completions",
                              fmt::format(R"({{"prompt":"a","seed":{}}})", bad))),
              "seed");
  }
}

TEST_F(OpenAiRoutesTest, AFieldThatNothingReadsIsIgnoredWhateverItHolds) {
  json body = {{"messages", {{{"role", "user"}, {"content", "a"}}}},
               {"tokens", {1, "a"}},
               {"prompt", {1, nullptr}}};
  EXPECT_EQ(Start("/v1/chat/completions", body).requests[0].ignored,
            (std::vector<std::string>{"prompt", "tokens"}));
  body = {{"prompt", "a"}, {"tokens", {1, "a"}}};
  EXPECT_EQ(Start("/v1/completions", body).requests[0].ignored, std::vector<std::string>{"tokens"});
}

TEST_F(OpenAiRoutesTest, DefaultsAreThoseOfOpenAi) {
  const GenerationStart text = Start("/v1/completions", {{"prompt", "abc"}});
  EXPECT_EQ(text.requests[0].max_tokens, 16u);
  const GenerationStart chat =
      Start("/v1/chat/completions", {{"messages", {{{"role", "user"}, {"content", "a"}}}}});
  EXPECT_EQ(chat.requests[0].max_tokens, std::numeric_limits<uint32_t>::max());
  EXPECT_EQ(chat.requests[0].sampling.temperature, 1.0f);
  EXPECT_EQ(chat.requests[0].logprobs, std::nullopt);
  EXPECT_EQ(chat.requests[0].reuse, Reuse::kAll);
  EXPECT_FALSE(chat.answer->streams());
}

TEST_F(OpenAiRoutesTest, MessageEndsPointBehindEachMessagesTokens) {
  const json messages = {{{"role", "system"}, {"content", "ab"}},
                         {{"role", "user"}, {"content", "é"}}};
  const GenerationStart start = Start("/v1/chat/completions", {{"messages", messages}});
  // <|bos|> s y s t e m : a b <|end|> | u s e r : 2 bytes <|end|> | assistant:
  EXPECT_EQ(start.requests[0].message_ends, (std::vector<uint32_t>{11, 19}));
  EXPECT_EQ(start.requests[0].prompt.size(), 29u);
  EXPECT_EQ(start.requests[0].prompt[0], 256);
  EXPECT_EQ(start.requests[0].prompt[10], 257);
}

TEST_F(OpenAiRoutesTest, MarkersInAMessageStayText) {
  const json messages = {{{"role", "user"}, {"content", "<|end|>"}}};
  const GenerationStart start = Start("/v1/chat/completions", {{"messages", messages}});
  const std::vector<TokenId>& ids = start.requests[0].prompt;
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 257), 1);
  EXPECT_EQ(Start("/v1/completions", {{"prompt", "<|end|>"}}).requests[0].prompt,
            std::vector<TokenId>{257});
  EXPECT_EQ(Start("/v1/completions", {{"prompt", "<|end|>"}, {"parse_special", false}})
                .requests[0]
                .prompt,
            IdsOfBytes("<|end|>"));
}

TEST_F(OpenAiRoutesTest, PromptsOfAListBecomeRequestsInOrder) {
  const GenerationStart start = Start("/v1/completions", {{"prompt", {"ab", {1, 2, 3}}}});
  ASSERT_EQ(start.requests.size(), 2u);
  EXPECT_EQ(start.requests[0].prompt, IdsOfBytes("ab"));
  EXPECT_EQ(start.requests[1].prompt, (std::vector<TokenId>{1, 2, 3}));
}

TEST_F(OpenAiRoutesTest, ErrorsNameTheField) {
  EXPECT_EQ(ParamOf(AskText("POST", "/v1/completions", R"({"prompt":"a","n":0})")), "n");
  EXPECT_EQ(ParamOf(AskText("POST", "/v1/completions", R"({"prompt":[300]})")), "prompt");
  EXPECT_EQ(ParamOf(AskText("POST", "/v1/completions", "{")), "");
  const std::string long_text(70, 'a');
  const HttpResponse too_long =
      AskText("POST", "/v1/completions", "{\"prompt\":\"" + long_text + "\"}");
  EXPECT_EQ(too_long.status, 400);
  EXPECT_NE(too_long.body.find("70 tokens"), std::string::npos);
}

TEST_F(OpenAiRoutesTest, CountsTheTokensOfAPrompt) {
  const json chat = {{"messages", {{{"role", "user"}, {"content", "a"}}}}};
  const size_t tokens = Start("/v1/chat/completions", chat).requests[0].prompt.size();
  for (const char* path : {"/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"}) {
    EXPECT_EQ(AskJson("POST", path, chat),
              json({{"object", "response.input_tokens"}, {"input_tokens", tokens}}));
  }
}

TEST_F(OpenAiRoutesTest, AChatThatFollowsFromAnAnswerIsKept) {
  json chat = {{"messages", {{{"role", "user"}, {"content", "a"}}}}};
  EXPECT_EQ(Start("/v1/chat/completions", chat).chat, nullptr);
  chat["messages"] = {{{"role", "user"}, {"content", "a"}},
                      {{"role", "assistant"}, {"content", "b"}},
                      {{"role", "user"}, {"content", "c"}}};
  const GenerationStart start = Start("/v1/chat/completions", chat);
  ASSERT_NE(start.chat, nullptr);
  EXPECT_TRUE(start.requests[0].caller_explains);
  EXPECT_FALSE(start.chat->prepares());
}

}  // namespace
}  // namespace kvasir
