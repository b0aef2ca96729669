#include "server/llama_routes.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "kvasir/sampling_ranges.h"
#include "server/openai_routes.h"
#include "server/routes_for_test.h"

namespace kvasir {
namespace {

using nlohmann::json;

class LlamaRoutesTest : public RoutesTest {
 protected:
  void AddRoutes() override {
    AddLlamaRoutes(server_->options, server_->generations, &server_->table);
    AddOpenAiRoutes(server_->generations, server_->preparer, &server_->table);
  }
  std::vector<std::vector<TokenId>> Prompts(const json& prompt) {
    std::vector<std::vector<TokenId>> prompts;
    for (auto& request : Start("/completion", {{"prompt", prompt}}).requests) {
      prompts.push_back(std::move(request.prompt));
    }
    return prompts;
  }
};

using Ids = std::vector<TokenId>;

// Makes an event with the one token of one choice, which ends the request.
Event OnlyToken(TokenId id, std::string text, FinishReason reason) {
  Event event;
  event.tokens.push_back({id, text});
  event.text = std::move(text);
  event.finish_reason = reason;
  event.last = true;
  event.completion_tokens = 1;
  event.receipt.prompt_tokens = event.receipt.computed = 2;
  return event;
}

TEST_F(LlamaRoutesTest, PromptsHaveAllForms) {
  EXPECT_EQ(Prompts("ab"), (std::vector<Ids>{{97, 98}}));
  EXPECT_EQ(Prompts({5, 6}), (std::vector<Ids>{{5, 6}}));
  EXPECT_EQ(Prompts({5, "ab", 6}), (std::vector<Ids>{{5, 97, 98, 6}}));
  EXPECT_EQ(Prompts({"ab", 6}), (std::vector<Ids>{{97, 98, 6}}));
  EXPECT_EQ(Prompts({"a", "b"}), (std::vector<Ids>{{97}, {98}}));
  EXPECT_EQ(Prompts({{{"prompt_string", "a"}}, {5, "b"}, {7}}),
            (std::vector<Ids>{{97}, {5, 98}, {7}}));
  EXPECT_EQ(Prompts({{"prompt_string", {1, "a"}}}), (std::vector<Ids>{{1, 97}}));
  for (const json& bad : {json(), json(5), json::object(), json({5, "a", nullptr}), json({-1, "a"}),
                          json({{{"prompt_string", "a"}, {"multimodal_data", {"eA=="}}}})}) {
    EXPECT_EQ(ErrorOf("/completion", {{"prompt", bad}})["param"], "prompt") << bad;
  }
}

TEST_F(LlamaRoutesTest, DefaultsAreLlamaServers) {
  const GenerateRequest request = std::move(Start("/completion", {{"prompt", "a"}}).requests[0]);
  EXPECT_EQ(request.sampling.temperature, 0.8f);
  EXPECT_EQ(request.sampling.top_k, 40u);
  EXPECT_EQ(request.sampling.top_p, 0.95f);
  EXPECT_EQ(request.sampling.min_p, 0.05f);
  EXPECT_EQ(request.sampling.repetition_penalty, 1.0f);
  EXPECT_EQ(request.sampling.penalty_last_n, 64u);
  EXPECT_TRUE(request.sampling.temperature_last);
  EXPECT_FALSE(request.sampling.seed);
  EXPECT_EQ(request.max_tokens, UINT32_MAX);
  EXPECT_FALSE(request.logprobs);
  // OpenAI's path keeps its own.
  const GenerateRequest other = std::move(Start("/v1/completions", {{"prompt", "a"}}).requests[0]);
  EXPECT_EQ(other.sampling.temperature, 1.0f);
  EXPECT_FALSE(other.sampling.penalty_last_n);
  EXPECT_FALSE(other.sampling.temperature_last);
}

TEST_F(LlamaRoutesTest, EveryFieldReachesTheEngine) {
  const json body = json::parse(R"({"prompt":"abc","n_predict":-1,"seed":-1,"n_probs":3,
      "post_sampling_probs":true,"repeat_last_n":-1,"t_max_predict_ms":500,"id_slot":2,"n_cmpl":2,
      "stream":true,"return_progress":true,"n_keep":0,"n_cache_reuse":0,"cache_prompt":false,
      "n_indent":4,
      "samplers":["top_k","typ_p","top_p","min_p","temperature"],"dry_multiplier":0,"unknown":1,
      "logit_bias":[[65,-2.5],["ab",1],[66,false]]})");
  const GenerationStart start = Start("/completions", body);
  const GenerateRequest& request = start.requests[0];
  EXPECT_EQ(request.max_tokens, UINT32_MAX);
  EXPECT_FALSE(request.sampling.seed);
  EXPECT_EQ(request.logprobs, 3u);
  EXPECT_TRUE(request.llama_quirks.sampled_logprobs);
  EXPECT_EQ(request.sampling.penalty_last_n, UINT32_MAX);
  EXPECT_EQ(request.llama_quirks.line_timeout_ms, 500u);
  EXPECT_EQ(request.llama_quirks.min_indent, 4u);
  EXPECT_EQ(request.n, 2u);
  EXPECT_TRUE(request.reports_progress);
  EXPECT_EQ(request.reuse, Reuse::kNothing);
  EXPECT_EQ(request.ignored, std::vector<std::string>{"unknown"});
  EXPECT_EQ(request.sampling.logit_bias,
            (std::vector<std::pair<TokenId, float>>{
                {65, -2.5f}, {97, 1.0f}, {98, 1.0f}, {66, kForbidden}}));
  EXPECT_EQ(Start("/completion", {{"prompt", "a"}, {"seed", 7}}).requests[0].sampling.seed, 7u);
}

TEST_F(LlamaRoutesTest, WhatIsNotThereIsRefusedByName) {
  const std::pair<const char*, json> fields[] = {
      {"dry_multiplier", 0.5}, {"xtc_probability", 0.1}, {"mirostat", 2},   {"typical_p", 0.9},
      {"dynatemp_range", 0.5}, {"n_keep", "5"},          {"n_keep", -2},    {"n_cache_reuse", 256},
      {"n_indent", -1},        {"min_keep", 1},          {"n_probs", 21},   {"id_slot", -2},
      {"samplers", {"other"}}, {"top_n_sigma", 1},       {"n_predict", -2}, {"max_tokens", -2}};
  for (const auto& [name, value] : fields) {
    EXPECT_EQ(ErrorOf("/completion", {{"prompt", "a"}, {name, value}})["param"], name) << value;
  }
}

TEST_F(LlamaRoutesTest, SamplersThatAreNotListedAreOff) {
  struct Case {
    json samplers;
    float temperature, top_p, min_p;
    uint32_t top_k;
    bool last, infill;
  };
  const Case cases[] = {
      {json(), 0.8f, 0.95f, 0.05f, 40, true, false},
      {{"top_k", "top_p", "infill"}, 1, 0.95f, 0, 40, false, true},
      {{"top_k", "top_p", "infill", "temperature"}, 0.8f, 0.95f, 0, 40, true, true},
      {{"temperature", "top-k", "infill"}, 0.8f, 1, 0, 40, false, true},
      {{"min_p", "temperature"}, 0.8f, 1, 0.05f, 0, true, false},
      {{"temp", "topk", "nucleus"}, 0.8f, 0.95f, 0, 40, false, false},
      {{"min_p", "top_k"}, 1, 1, 0.05f, 40, false, false},
      {json::array(), 1, 1, 0, 0, false, false},
      {"edkypmxt", 0.8f, 0.95f, 0.05f, 40, true, false}};
  for (const Case& one : cases) {
    for (const char* target : {"/completion", "/v1/completions"}) {
      json body = {{"prompt", "a"}, {"samplers", one.samplers}};
      if (target[1] == 'v') {
        if (one.samplers.is_null()) continue;
        body.update({{"temperature", 0.8}, {"top_k", 40}, {"top_p", 0.95}, {"min_p", 0.05}});
      }
      const SamplingParams sampling = Start(target, body).requests[0].sampling;
      EXPECT_EQ(sampling.temperature, one.temperature) << body;
      EXPECT_EQ(sampling.top_k, one.top_k) << body;
      EXPECT_EQ(sampling.top_p, one.top_p) << body;
      EXPECT_EQ(sampling.min_p, one.min_p) << body;
      EXPECT_EQ(sampling.temperature_last, one.last) << body;
      EXPECT_EQ(sampling.infill, one.infill) << body;
    }
  }
}

TEST_F(LlamaRoutesTest, OrdersThatWouldChangeTheAnswerAreRefused) {
  const json orders[] = {{"top_p", "top_k"},
                         {"min_p", "top_p"},
                         {"top_p", "temperature", "min_p"},
                         {"infill", "top_k"},
                         {"top_k", "top_p", "temperature", "infill"},
                         {"top_k", "penalties"},
                         {"top_k", "top_k"},
                         "kz"};
  for (const json& order : orders) {
    EXPECT_EQ(ErrorOf("/completion",
                      {{"prompt", "a"}, {"samplers", order}, {"repeat_penalty", 1.1}})["param"],
              "samplers")
        << order;
  }
  // The same names change nothing where what they name is off.
  for (const json& order : {json{"top_p", "top_k"}, json{"top_k", "penalties", "dry", "xtc"}}) {
    Start("/completion", {{"prompt", "a"}, {"samplers", order}, {"top_p", 1}});
  }
}

TEST_F(LlamaRoutesTest, APromptThatDoesNotFitSaysByHowMuch) {
  for (const char* target : {"/completion", "/v1/completions"}) {
    const json error = ErrorOf(target, {{"prompt", std::string(70, 'a')}});
    EXPECT_EQ(error["type"], "exceed_context_size_error");
    EXPECT_EQ(error["code"], "context_length_exceeded");
    EXPECT_EQ(error["n_prompt_tokens"], 70);
    EXPECT_EQ(error["n_ctx"], 64);
  }
}

TEST_F(LlamaRoutesTest, AnswersInLlamaServersForm) {
  const GenerationStart start = Start("/completion", {{"prompt", "ab"},
                                                      {"n_predict", 1},
                                                      {"n_probs", 1},
                                                      {"return_tokens", true},
                                                      {"stop", {"\n"}}});
  Event event = OnlyToken(99, "c\n", FinishReason::kStop);
  event.text = "c";
  event.stop_match = "\n";
  event.tokens[0].logprob = -1;
  event.tokens[0].top = {{100, -0.5f}};
  start.answer->Take(0, event);
  const json body = json::parse(Joined(start.answer->Body()));
  EXPECT_EQ(body["content"], "c");
  EXPECT_EQ(body["tokens"], json({99}));
  EXPECT_EQ(body["stop"], true);
  EXPECT_EQ(body["stop_type"], "word");
  EXPECT_EQ(body["stopping_word"], "\n");
  EXPECT_EQ(body["prompt"], "ab");
  EXPECT_EQ(body["model"], "fake");
  EXPECT_EQ(body["tokens_predicted"], 1);
  EXPECT_EQ(body["tokens_evaluated"], 2);
  EXPECT_EQ(body["tokens_cached"], 2);
  EXPECT_EQ(body["truncated"], false);
  EXPECT_EQ(body["has_new_line"], false);
  EXPECT_EQ(body["index"], 0);
  EXPECT_EQ(body["id_slot"], -1);
  EXPECT_EQ(body["generation_settings"]["n_predict"], 1);
  EXPECT_EQ(body["generation_settings"]["seed"], 4294967295);
  EXPECT_EQ(body["timings"]["prompt_n"], 2);
  EXPECT_EQ(body["kvasir"]["computed"], 2);
  EXPECT_EQ(body["completion_probabilities"], json::parse(R"([{"id":99,"token":"c","bytes":[99],
      "logprob":-1.0,"top_logprobs":[{"id":100,"token":"d","bytes":[100],"logprob":-0.5}]}])"));
  EXPECT_FALSE(body.contains("choices"));
}

TEST_F(LlamaRoutesTest, SamplingProbabilitiesAreNotLogarithms) {
  const GenerationStart start =
      Start("/completion", {{"prompt", "ab"}, {"n_probs", 2}, {"post_sampling_probs", true}});
  Event event = OnlyToken(200, "", FinishReason::kLength);  // half a character
  event.tokens[0].logprob = 0;
  event.tokens[0].top = {{200, 0}};
  start.answer->Take(0, event);
  EXPECT_EQ(json::parse(Joined(start.answer->Body()))["completion_probabilities"],
            json::parse(R"([{"id":200,"token":"\ufffd","bytes":[200],"prob":1.0,
                "top_probs":[{"id":200,"token":"\ufffd","bytes":[200],"prob":1.0}]}])"));
}

TEST_F(LlamaRoutesTest, SeveralAnswersAreAList) {
  const GenerationStart start = Start("/completion", {{"prompt", {"a", "b"}}, {"n_predict", 1}});
  start.answer->Take(1, OnlyToken(99, "c", FinishReason::kLength));
  start.answer->Take(0, OnlyToken(100, "d", FinishReason::kStop));
  const json body = json::parse(Joined(start.answer->Body()));
  ASSERT_EQ(body.size(), 2u);
  EXPECT_EQ(body[0]["content"], "d");
  EXPECT_EQ(body[0]["stop_type"], "eos");
  EXPECT_EQ(body[1]["content"], "c");
  EXPECT_EQ(body[1]["stop_type"], "limit");
  EXPECT_EQ(body[1]["index"], 1);
  // A list of one prompt is not.
  const GenerationStart one = Start("/completion", {{"prompt", {"a"}}});
  one.answer->Take(0, OnlyToken(99, "c", FinishReason::kStop));
  EXPECT_TRUE(json::parse(Joined(one.answer->Body())).is_object());
}

TEST_F(LlamaRoutesTest, ResponseFieldsAreAllThatIsSaid) {
  const GenerationStart start = Start(
      "/completion",
      {{"prompt", "a"},
       {"n_predict", 4},
       {"response_fields", {"content", "generation_settings/n_predict", "nope", "a/b", "stop/x"}}});
  start.answer->Take(0, OnlyToken(99, "c", FinishReason::kStop));
  EXPECT_EQ(json::parse(Joined(start.answer->Body())),
            (json{{"content", "c"}, {"generation_settings/n_predict", 4}}));
  const GenerationStart none = Start("/completion", {{"prompt", "a"}, {"response_fields", {"x"}}});
  none.answer->Take(0, OnlyToken(99, "c", FinishReason::kStop));
  EXPECT_EQ(json::parse(Joined(none.answer->Body())), json::object());
}

TEST_F(LlamaRoutesTest, AStreamHasNeitherChoicesNorDone) {
  const GenerationStart start = Start("/completion", {{"prompt", "ab"},
                                                      {"stream", true},
                                                      {"n_probs", 1},
                                                      {"return_progress", true},
                                                      {"timings_per_token", true}});
  Event event;
  event.progress = {.total = 2, .processed = 1, .cached = 1, .prompt_ms = 3};
  std::string text = start.answer->Take(0, event);
  event.progress->processed = 2;
  event.tokens.push_back({99, "c\n"});
  event.text = "c\n";
  text += start.answer->Take(0, event);
  event = OnlyToken(100, "d", FinishReason::kLength);
  event.progress = {.total = 2, .processed = 2, .cached = 1, .prompt_ms = 3, .answer_ms = 4};
  text += start.answer->Take(0, event);
  std::vector<json> events;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find("\n\n", at);
    ASSERT_EQ(text.substr(at, 6), "data: ");
    events.push_back(json::parse(text.substr(at + 6, end - at - 6)));
    at = end + 2;
  }
  ASSERT_EQ(events.size(), 5u);
  for (const json& one : events) EXPECT_FALSE(one.contains("choices"));
  EXPECT_EQ(events[0]["prompt_progress"],
            json::parse(R"({"total":2,"cache":1,"processed":1,"time_ms":3.0})"));
  EXPECT_EQ(events[1]["prompt_progress"]["processed"], 2);
  EXPECT_EQ(events[2]["content"], "c\n");
  EXPECT_EQ(events[2]["tokens"], json({99}));
  EXPECT_EQ(events[2]["completion_probabilities"][0]["id"], 99);
  EXPECT_EQ(events[2]["timings"]["predicted_n"], 1);
  EXPECT_FALSE(events[3].contains("prompt_progress"));
  EXPECT_EQ(events[3]["tokens_predicted"], 2);
  EXPECT_EQ(events[3]["timings"]["predicted_per_second"], 250);
  EXPECT_EQ(events[3]["stop"], false);
  EXPECT_EQ(events[4]["stop"], true);
  EXPECT_EQ(events[4]["content"], "");
  EXPECT_EQ(events[4]["tokens"], json::array());
  EXPECT_EQ(events[4]["has_new_line"], true);
  EXPECT_TRUE(events[4].contains("kvasir"));
  EXPECT_FALSE(events[4].contains("completion_probabilities"));
}

TEST_F(LlamaRoutesTest, TheErrorOfAStreamHasNoChoices) {
  const GenerationStart start = Start("/completion", {{"prompt", "ab"}, {"stream", true}});
  const std::string event = start.answer->ErrorEvent({Code::kUnavailable, "x"});
  const json error = json::parse(event.substr(6));
  EXPECT_EQ(error["error"]["message"], "x");
  EXPECT_FALSE(error.contains("choices"));
}

TEST_F(LlamaRoutesTest, InfillNeedsTheTokens) {
  const HttpResponse refused =
      Ask("POST", "/infill", {{"input_prefix", "a"}, {"input_suffix", "b"}});
  EXPECT_EQ(refused.status, 501);
  const json error = json::parse(refused.body)["error"];
  EXPECT_EQ(error["type"], "not_supported_error");
  EXPECT_NE(error["message"].get<std::string>().find("prefix, suffix, middle"), std::string::npos);
}

TEST_F(LlamaRoutesTest, InfillPutsFilesBeforeWhatChanges) {
  Make({}, FimTokenizerJson());
  const auto bytes = [](Ids& ids, std::string_view text) {
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  };
  const json body = {{"input_prefix", "p<|fim_suffix|>"},
                     {"input_suffix", "s"},
                     {"prompt", "q"},
                     {"input_extra", {{{"filename", "f"}, {"text", "t"}}}}};
  const GenerationStart start = Start("/infill", body);
  Ids expected = {261};
  bytes(expected, "f\nt");
  expected.push_back(261);
  bytes(expected, "file\n");
  expected.push_back(258);
  bytes(expected, "p<|fim_suffix|>q");  // what a user writes marks nothing
  expected.push_back(259);
  bytes(expected, "s");
  expected.push_back(260);
  EXPECT_EQ(start.requests[0].prompt, expected);
  EXPECT_EQ(start.requests[0].stop_ids, Ids{261});
  EXPECT_EQ(start.requests[0].sampling.temperature, 0.8f);
  for (const auto& [field, value] : {std::pair<const char*, json>{"input_prefix", nullptr},
                                     {"input_suffix", 5},
                                     {"prompt", {"a"}},
                                     {"input_extra", "x"}}) {
    json wrong = body;
    wrong[field] = value;
    EXPECT_EQ(ErrorOf("/infill", wrong)["param"], field);
  }
  json wrong = body;
  wrong["input_extra"] = json::array({json{{"filename", "f"}}});
  EXPECT_EQ(ErrorOf("/infill", wrong)["param"], "input_extra[0].text");
}

}  // namespace
}  // namespace kvasir
