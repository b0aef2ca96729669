#include "server/service.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "server/fake_engine_for_test.h"

namespace kvasir {
namespace {

using nlohmann::json;

// A Service in front of a FakeEngine with the tiny tokenizer and template.
class ServiceTest : public testing::Test {
 protected:
  void SetUp() override { Make({}); }

  void Make(const ServerOptions& options) {
    auto tokenizer = Tokenizer::Parse(TinyTokenizerJson(), kTinyTokenizerConfig);
    ASSERT_TRUE(tokenizer) << tokenizer.error().message;
    auto chat_template = ChatTemplate::Parse(kTinyTemplate);
    ASSERT_TRUE(chat_template) << chat_template.error().message;
    service_.reset();
    tokenizer_ = std::move(*tokenizer);
    template_ = std::move(*chat_template);
    engine_ = std::make_unique<FakeEngine>(tokenizer_.get(), template_.get());
    service_ = *Service::Make(options, *engine_);
  }

  HttpResponse Ask(const HttpRequest& request) { return AskService(*service_, request); }
  HttpResponse Ask(std::string method, std::string target, std::string body = "") {
    return Ask(RequestOf(std::move(method), std::move(target), std::move(body)));
  }

  GenerationStart Start(const std::string& target, const json& body) {
    Outcome outcome = service_->Handle(RequestOf("POST", target, body.dump()));
    auto* start = std::get_if<GenerationStart>(&outcome);
    EXPECT_NE(start, nullptr) << std::get<HttpResponse>(outcome).body;
    return start ? std::move(*start) : GenerationStart{};
  }

  static std::string ParamOf(const HttpResponse& response) {
    const json error = json::parse(response.body).at("error");
    return error.at("param").is_null() ? "" : error.at("param").get<std::string>();
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<ChatTemplate> template_;
  std::unique_ptr<FakeEngine> engine_;
  std::unique_ptr<Service> service_;
};

std::vector<TokenId> Bytes(std::string_view text) {
  std::vector<TokenId> ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

TEST_F(ServiceTest, EveryFieldOfSamplingReachesTheEngine) {
  const json body =
      json::parse(R"({"prompt":"abc","temperature":0.5,"top_k":7,"top_p":0.25,"min_p":0.125,
      "repetition_penalty":1.5,"presence_penalty":0.5,"frequency_penalty":-0.5,"seed":-2,"n":3,
      "logit_bias":{"65":-100,"66":2.5},"stop":["x","yy"],"stop_token_ids":[9],"max_tokens":5,"min_tokens":4,
      "logprobs":4,"ignore_eos":true,"cache_prompt":false,"skip_special_tokens":false,"extra":1})");
  const GenerationStart start = Start("/v1/completions", body);
  ASSERT_EQ(start.requests.size(), 1u);
  const GenerateRequest& request = start.requests[0];
  EXPECT_EQ(request.tenant, "default");
  EXPECT_EQ(request.prompt, Bytes("abc"));
  EXPECT_EQ(request.sampling.temperature, 0.5f);
  EXPECT_EQ(request.sampling.top_k, 7u);
  EXPECT_EQ(request.sampling.top_p, 0.25f);
  EXPECT_EQ(request.sampling.min_p, 0.125f);
  EXPECT_EQ(request.sampling.repetition_penalty, 1.5f);
  EXPECT_EQ(request.sampling.presence_penalty, 0.5f);
  EXPECT_EQ(request.sampling.frequency_penalty, -0.5f);
  EXPECT_EQ(request.sampling.seed, static_cast<uint64_t>(-2));
  EXPECT_EQ(request.sampling.logit_bias,
            (std::vector<std::pair<TokenId, float>>{{65, -100.0f}, {66, 2.5f}}));
  EXPECT_EQ(request.n, 3u);
  EXPECT_EQ(request.stop, (std::vector<std::string>{"x", "yy"}));
  EXPECT_EQ(request.stop_ids, std::vector<TokenId>{9});
  EXPECT_EQ(request.max_tokens, 5u);
  EXPECT_EQ(request.min_tokens, 4u);
  EXPECT_EQ(request.logprobs, 4u);
  EXPECT_TRUE(request.ignore_eos);
  EXPECT_EQ(request.reuse, Reuse::kNothing);
  EXPECT_TRUE(request.echo_special);
  EXPECT_EQ(request.ignored, std::vector<std::string>{"extra"});
}

// A request may have a thousand prompts, and each has a copy of these fields.
TEST_F(ServiceTest, WhatEveryPromptCarriesIsBounded) {
  const auto param = [&](const char* name, json value) {
    const json body = {{"prompt", "a"}, {name, std::move(value)}};
    return ParamOf(Ask("POST", "/v1/completions", body.dump()));
  };
  json biases;
  for (int i = 0; i < 5000; ++i) biases[std::to_string(i)] = 1;
  EXPECT_EQ(param("logit_bias", std::move(biases)), "logit_bias");
  EXPECT_EQ(param("stop", std::string(2000, 'x')), "stop");
  EXPECT_EQ(param("stop_token_ids", std::vector<int>(2000, 7)), "stop_token_ids");
  json many = {{"prompt", std::vector<std::string>(200, "a")}, {"n", 100}};
  EXPECT_EQ(ParamOf(Ask("POST", "/v1/completions", many.dump())), "prompt");
  json body = {{"prompt", "a"}};
  for (int i = 0; i < 1000; ++i) body["unknown" + std::string(i, 'x')] = i;
  const std::vector<std::string> ignored = Start("/v1/completions", body).requests[0].ignored;
  EXPECT_EQ(ignored.size(), 64u);
  for (const std::string& name : ignored) EXPECT_LE(name.size(), 64u);
}

TEST_F(ServiceTest, EchoWithLogprobsComputesThePrompt) {
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

TEST_F(ServiceTest, ASeedHasAnyOf64Bits) {
  for (const auto& [text, seed] :
       {std::pair<const char*, std::optional<uint64_t>>{"18446744073709551615", UINT64_MAX},
        {"9223372036854775808", uint64_t{1} << 63},
        {"-9223372036854775808", uint64_t{1} << 63},
        {"-2", UINT64_MAX - 1},
        {"-1", std::nullopt},  // random
        {"7.0", 7}}) {
    Outcome outcome = service_->Handle(
        RequestOf("POST", "/v1/completions", fmt::format(R"({{"prompt":"a","seed":{}}})", text)));
    ASSERT_TRUE(std::holds_alternative<GenerationStart>(outcome)) << text;
    EXPECT_EQ(std::get<GenerationStart>(outcome).requests[0].sampling.seed, seed);
  }
  for (const char* bad : {"18446744073709551616", "-9223372036854775809", "1.5", "\"1\""}) {
    EXPECT_EQ(
        ParamOf(Ask("POST", "/v1/completions", fmt::format(R"({{"prompt":"a","seed":{}}})", bad))),
        "seed");
  }
}

TEST_F(ServiceTest, AFieldThatNothingReadsIsIgnoredWhateverItHolds) {
  json body = {{"messages", {{{"role", "user"}, {"content", "a"}}}},
               {"tokens", {1, "a"}},
               {"prompt", {1, nullptr}}};
  EXPECT_EQ(Start("/v1/chat/completions", body).requests[0].ignored,
            (std::vector<std::string>{"prompt", "tokens"}));
  body = {{"prompt", "a"}, {"tokens", {1, "a"}}};
  EXPECT_EQ(Start("/v1/completions", body).requests[0].ignored, std::vector<std::string>{"tokens"});
}

TEST_F(ServiceTest, DefaultsAreThoseOfOpenAi) {
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

TEST_F(ServiceTest, MessageEndsPointBehindEachMessagesTokens) {
  const json messages = {{{"role", "system"}, {"content", "ab"}},
                         {{"role", "user"}, {"content", "é"}}};
  const GenerationStart start = Start("/v1/chat/completions", {{"messages", messages}});
  // <|bos|> s y s t e m : a b <|end|> | u s e r : 2 bytes <|end|> | assistant:
  EXPECT_EQ(start.requests[0].message_ends, (std::vector<uint32_t>{11, 19}));
  EXPECT_EQ(start.requests[0].prompt.size(), 29u);
  EXPECT_EQ(start.requests[0].prompt[0], 256);
  EXPECT_EQ(start.requests[0].prompt[10], 257);
}

TEST_F(ServiceTest, MarkersInAMessageStayText) {
  const json messages = {{{"role", "user"}, {"content", "<|end|>"}}};
  const GenerationStart start = Start("/v1/chat/completions", {{"messages", messages}});
  const std::vector<TokenId>& ids = start.requests[0].prompt;
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 257), 1);
  EXPECT_EQ(Start("/v1/completions", {{"prompt", "<|end|>"}}).requests[0].prompt,
            std::vector<TokenId>{257});
  EXPECT_EQ(Start("/v1/completions", {{"prompt", "<|end|>"}, {"parse_special", false}})
                .requests[0]
                .prompt,
            Bytes("<|end|>"));
}

TEST_F(ServiceTest, ToolsKeepTheOrderOfTheirKeys) {
  const std::string body =
      R"({"messages":[{"role":"user","content":"x"}],"tools":[{"zeta":1,"name":"f","alpha":{"b":1,"a":2}}]})";
  const HttpResponse response = Ask("POST", "/apply-template", body);
  EXPECT_NE(
      response.body.find(R"([{\"zeta\": 1, \"name\": \"f\", \"alpha\": {\"b\": 1, \"a\": 2}}])"),
      std::string::npos)
      << response.body;
}

TEST_F(ServiceTest, PromptsOfAListBecomeRequestsInOrder) {
  const GenerationStart start = Start("/v1/completions", {{"prompt", {"ab", {1, 2, 3}}}});
  ASSERT_EQ(start.requests.size(), 2u);
  EXPECT_EQ(start.requests[0].prompt, Bytes("ab"));
  EXPECT_EQ(start.requests[1].prompt, (std::vector<TokenId>{1, 2, 3}));
}

TEST_F(ServiceTest, ATenantComesFromTheKeyOnly) {
  ServerOptions options;
  options.api_keys = {"alpha", "beta"};
  Make(options);
  HttpRequest request =
      RequestOf("POST", "/v1/completions", R"({"prompt":"a","tenant":"default","user":"default"})");
  EXPECT_EQ(Ask(request).status, 401);
  std::vector<std::string> tenants;
  for (const char* key : {"Bearer alpha", "bearer alpha", "Bearer beta"}) {
    request.authorization = key;
    Outcome outcome = service_->Handle(request);
    tenants.push_back(std::get<GenerationStart>(outcome).requests[0].tenant);
  }
  EXPECT_EQ(tenants[0], tenants[1]);
  EXPECT_NE(tenants[0], tenants[2]);
  EXPECT_NE(tenants[0], "default");
  EXPECT_EQ(tenants[0].find("alpha"), std::string::npos);
  HttpRequest erase = RequestOf("DELETE", "/v1/cache");
  erase.api_key = "beta";
  engine_->erasure = {.blocks = 1, .tokens = 17, .cursors = 2};
  const HttpResponse erased = Ask(erase);
  EXPECT_EQ(erased.status, 200);
  EXPECT_EQ(engine_->erased, std::vector<std::string>{tenants[2]});
  EXPECT_EQ(json::parse(erased.body), json({{"erased", true},
                                            {"tiers", {"pool"}},
                                            {"blocks", 1},
                                            {"tokens", 17},
                                            {"cursors", 2},
                                            {"sessions", 0}}));
}

TEST_F(ServiceTest, AHeadIsRefusedBeforeItsBodyIsRead) {
  const HttpRequest post = RequestOf("POST", "/v1/completions");
  EXPECT_EQ(service_->CheckHead(post, uint64_t{8} << 20), std::nullopt);
  EXPECT_EQ(service_->CheckHead(post, (uint64_t{8} << 20) + 1)->status, 413);
  EXPECT_EQ(service_->CheckHead(RequestOf("GET", "/v1/completions"), 0)->status, 405);
  EXPECT_EQ(service_->CheckHead(RequestOf("GET", "/no"), 0)->status, 404);
  service_->BeginDrain();
  EXPECT_EQ(service_->CheckHead(post, 5)->status, 503);
  EXPECT_EQ(Ask("GET", "/ready").status, 503);
  EXPECT_EQ(Ask("GET", "/health").status, 200);
}

TEST_F(ServiceTest, ReadyEndsWhenTheModelIsChanged) {
  EXPECT_EQ(Ask("GET", "/ready").status, 200);
  engine_->model_status =
      tl::unexpected(Error{Code::kModelChanged, "/secret/path/model.gguf was written to"});
  const HttpResponse response = Ask("GET", "/ready");
  EXPECT_EQ(response.status, 503);
  EXPECT_NE(response.body.find("\"model_changed\""), std::string::npos) << response.body;
  EXPECT_EQ(response.body.find("/secret/path"), std::string::npos) << response.body;
  EXPECT_EQ(Ask("GET", "/health").status, 200);
}

TEST_F(ServiceTest, OriginsCanBeNarrowed) {
  const auto allowed = [this](const ServerOptions& options, std::string origin) -> std::string {
    Make(options);
    HttpRequest request = RequestOf("GET", "/health");
    request.origin = std::move(origin);
    for (const auto& [name, value] : service_->CommonHeaders(request)) {
      if (name == "Access-Control-Allow-Origin") return value;
    }
    return "";
  };
  ServerOptions options;
  EXPECT_EQ(allowed(options, "http://a"), "*");
  EXPECT_EQ(allowed(options, ""), "");
  options.cors_origins = {"http://a", "http://b"};
  EXPECT_EQ(allowed(options, "http://b"), "http://b");
  EXPECT_EQ(allowed(options, "http://c"), "");
  options.cors_origins = {"none"};
  EXPECT_EQ(allowed(options, "http://a"), "");
}

TEST_F(ServiceTest, AnAnswerThatNeverFitsIsRefused) {
  engine_->mutable_options().request_memory_bytes = 16 << 20;
  service_ = *Service::Make({}, *engine_);
  json body = {{"prompt", std::vector(100, std::vector<int>{1})}, {"max_tokens", 1000}, {"n", 8}};
  const uint64_t bytes = Start("/v1/completions", body).answer_bytes;
  body["logprobs"] = 1;  // 16 bytes and 8 for each token of the 63 that the context leaves
  EXPECT_EQ(Start("/v1/completions", body).answer_bytes, bytes + 800 * 63 * 24);
  body["logprobs"] = 20;
  const HttpResponse refused = Ask("POST", "/v1/completions", body.dump());
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(ParamOf(refused), "max_tokens");
  EXPECT_NE(refused.body.find("50400 tokens in 800 answers"), std::string::npos) << refused.body;
  EXPECT_NE(refused.body.find(std::to_string((16 << 20) / 20 * 4)), std::string::npos);
  body["stream"] = true;
  EXPECT_LT(Start("/v1/completions", body).answer_bytes, bytes);
}

TEST_F(ServiceTest, ErrorsNameTheField) {
  EXPECT_EQ(ParamOf(Ask("POST", "/v1/completions", R"({"prompt":"a","n":0})")), "n");
  EXPECT_EQ(ParamOf(Ask("POST", "/v1/completions", R"({"prompt":[300]})")), "prompt");
  EXPECT_EQ(ParamOf(Ask("POST", "/v1/completions", "{")), "");
  const std::string long_text(70, 'a');
  const HttpResponse too_long =
      Ask("POST", "/v1/completions", "{\"prompt\":\"" + long_text + "\"}");
  EXPECT_EQ(too_long.status, 400);
  EXPECT_NE(too_long.body.find("70 tokens"), std::string::npos);
}

TEST_F(ServiceTest, AModelWithoutATokenizerTakesIds) {
  engine_ = std::make_unique<FakeEngine>(nullptr, nullptr);
  service_ = *Service::Make({}, *engine_);
  EXPECT_EQ(Ask("POST", "/v1/completions", R"({"prompt":"a"})").status, 400);
  EXPECT_EQ(
      Ask("POST", "/v1/chat/completions", R"({"messages":[{"role":"user","content":"a"}]})").status,
      400);
  EXPECT_EQ(Ask("POST", "/tokenize", R"({"content":"a"})").status, 400);
  EXPECT_EQ(Ask("POST", "/detokenize", R"({"tokens":[1]})").status, 400);
  const GenerationStart start = Start("/v1/completions", {{"prompt", {1, 2}}});
  Event event;
  event.tokens.push_back({5, ""});
  event.finish_reason = FinishReason::kLength;
  event.last = true;
  start.answer->Take(0, event);
  const json choice = json::parse(Joined(start.answer->Body()))["choices"][0];
  EXPECT_EQ(choice["tokens"], json({5}));
  EXPECT_EQ(choice["text"], "");
}

TEST_F(ServiceTest, AnOwnTemplateReplacesTheModels) {
  ServerOptions options;
  options.chat_template = "{{ messages[0].content }}!";
  Make(options);
  const HttpResponse response =
      Ask("POST", "/apply-template", R"({"messages":[{"role":"user","content":"hey"}]})");
  EXPECT_EQ(json::parse(response.body)["prompt"], "hey!");
  options.chat_template = "{% if %}";
  EXPECT_EQ(Service::Make(options, *engine_).error().code, Code::kInvalidArgument);
}

TEST_F(ServiceTest, MetricsHaveEachNameOnce) {
  engine_->stats.decode_rows = 12;
  engine_->stats.decode_steps = 5;
  engine_->stats.reused_pool = 3;
  engine_->stats.reused_partial = 4;
  const std::string text = Ask("GET", "/metrics").body;
  EXPECT_NE(text.find("\nkvasir_mean_decode_batch 2.4"), std::string::npos);
  EXPECT_NE(text.find("\nvllm:prefix_cache_hits_total{model_name=\"fake\",engine=\"0\"} 7\n"),
            std::string::npos);
  EXPECT_NE(text.find("\nkvasir_misses_total{reason=\"diverged\"} 0\n"), std::string::npos);
  EXPECT_EQ(text.find("# TYPE kvasir_blocks "), text.rfind("# TYPE kvasir_blocks "));
}

}  // namespace
}  // namespace kvasir
