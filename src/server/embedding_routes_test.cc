#include "server/embedding_routes.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "api/embedding_writer.h"
#include "base/base64.h"
#include "server/routes_for_test.h"

namespace kvasir {
namespace {

using nlohmann::json;

class EmbeddingRoutesTest : public RoutesTest {
 protected:
  void SetUp() override { MakeSmall(TinyTokenizerJson()); }
  // Makes a model whose hidden states have four numbers.
  void MakeSmall(const std::string& tokenizer_json) {
    Make({}, tokenizer_json);
    engine_->mutable_card().hidden_size = 4;
    Restart({});
  }
  void AddRoutes() override { AddEmbeddingRoutes(server_->generations, &server_->table); }

  json Answer(const json& body, const std::vector<std::vector<float>>& embeddings) {
    GenerationStart start = Start("/v1/embeddings", body);
    for (size_t i = 0; i < embeddings.size(); ++i) {
      Event event;
      event.embedding = embeddings[i];
      event.finish_reason = FinishReason::kLength;
      event.receipt.prompt_tokens = 3;
      event.receipt.computed = 1;
      event.receipt.reused_pool = 2;
      event.last = true;
      start.answer->Take(i, event);
    }
    EXPECT_TRUE(start.answer->done());
    return json::parse(Joined(start.answer->Body()));
  }
  std::string Refused(const json& body, int status = 400) {
    const HttpResponse response = Ask("POST", "/v1/embeddings", body);
    EXPECT_EQ(response.status, status) << response.body;
    return ParamOf(response);
  }
};

TEST_F(EmbeddingRoutesTest, EveryInputBecomesARequest) {
  const json body = {{"input", {"abc", "de"}},    {"cache_salt", "s"}, {"priority", 2},
                     {"timeout_ms", 500},         {"user", "u"},       {"other", 1},
                     {"cache", {{"disk", false}}}};
  const GenerationStart start = Start("/v1/embeddings", body);
  ASSERT_EQ(start.requests.size(), 2u);
  EXPECT_EQ(start.at_once, 64u);
  EXPECT_EQ(start.requests[1].prompt, IdsOfBytes("de"));
  for (const GenerateRequest& request : start.requests) {
    EXPECT_EQ(request.embeds, Pooling::kLast);
    EXPECT_EQ(request.reuse, Reuse::kAll);
    EXPECT_EQ(request.max_tokens, 0u);
    EXPECT_EQ(request.retention, RetentionChoice());
    EXPECT_EQ(request.cache_salt, "s");
    EXPECT_EQ(request.priority, 2);
    EXPECT_EQ(request.timeout_ms, 500u);
    EXPECT_FALSE(request.use_disk);
    EXPECT_EQ(request.ignored, std::vector<std::string>{"other"});
  }
  const auto prompts_of = [&](const json& input) {
    std::vector<std::vector<TokenId>> prompts;
    for (auto& one : Start("/v1/embeddings", {{"input", input}}).requests) {
      prompts.push_back(one.prompt);
    }
    return prompts;
  };
  using Prompts = std::vector<std::vector<TokenId>>;
  EXPECT_EQ(prompts_of("a"), Prompts{{97}});
  EXPECT_EQ(prompts_of({5, 6}), (Prompts{{5, 6}}));
  EXPECT_EQ(prompts_of({{5, 6}, {7}}), (Prompts{{5, 6}, {7}}));
  EXPECT_EQ(prompts_of({"a", {7}}), (Prompts{{97}, {7}}));
}

TEST_F(EmbeddingRoutesTest, WhatTheTokenizerAddsEndsAText) {
  std::string tokenizer = TinyTokenizerJson();
  const std::string none = R"("post_processor":null)";
  tokenizer.replace(tokenizer.find(none), none.size(),
                    R"("post_processor":{"type":"TemplateProcessing","single":[
      {"Sequence":{"id":"A","type_id":0}},{"SpecialToken":{"id":"<|end|>","type_id":0}}],"pair":[],
      "special_tokens":{"<|end|>":{"id":"<|end|>","ids":[257],"tokens":["<|end|>"]}}})");
  MakeSmall(tokenizer);
  EXPECT_EQ(Start("/v1/embeddings", {{"input", "a"}}).requests[0].prompt,
            (std::vector<TokenId>{97, 257}));
  EXPECT_EQ(
      Start("/v1/embeddings", {{"input", "a"}, {"add_special_tokens", false}}).requests[0].prompt,
      std::vector<TokenId>{97});
}

TEST_F(EmbeddingRoutesTest, AnswersHaveUnitLengthAndTheReceipt) {
  const json answer = Answer({{"input", {"a", "b"}}}, {{0, 3, 0, 4}, {0, 0, 0, 0}});
  EXPECT_EQ(answer["object"], "list");
  EXPECT_EQ(answer["model"], "fake");
  EXPECT_EQ(answer["data"][0],
            json({{"object", "embedding"}, {"index", 0}, {"embedding", {0, 0.6, 0, 0.8}}}));
  EXPECT_EQ(answer["data"][1]["embedding"], json({0, 0, 0, 0})) << "no division by 0";
  EXPECT_EQ(answer["usage"], json({{"prompt_tokens", 6},
                                   {"total_tokens", 6},
                                   {"prompt_tokens_details", {{"cached_tokens", 4}}}}));
  EXPECT_EQ(answer["kvasir"]["computed"], 2);
  const json cut =
      Answer({{"input", "a"}, {"dimensions", 2}, {"encoding_format", "base64"}}, {{3, 4, 9, 9}});
  const auto bytes = DecodeBase64(cut["data"][0]["embedding"].get<std::string>());
  ASSERT_TRUE(bytes);
  const float want[] = {0.6f, 0.8f};
  EXPECT_EQ(*bytes, std::string(reinterpret_cast<const char*>(want), sizeof(want)));
}

TEST_F(EmbeddingRoutesTest, TheMeanReusesNothing) {
  Restart({.pooling = Pooling::kMean});
  const GenerationStart start = Start("/v1/embeddings", {{"input", "a"}});
  EXPECT_EQ(start.requests[0].embeds, Pooling::kMean);
  EXPECT_EQ(start.requests[0].reuse, Reuse::kNothing);
}

TEST_F(EmbeddingRoutesTest, BadInputIsNamed) {
  EXPECT_EQ(Refused(json::object()), "input");
  EXPECT_EQ(Refused({{"input", ""}}), "input");
  EXPECT_EQ(Refused({{"input", json::array()}}), "input");
  EXPECT_EQ(Refused({{"input", 5}}), "input");
  EXPECT_EQ(Refused({{"input", {"a", ""}}}), "input[1]");
  EXPECT_EQ(Refused({{"input", {{5}, json::array()}}}), "input[1]");
  EXPECT_EQ(Refused({{"input", {"a", nullptr}}}), "input[1]");
  EXPECT_EQ(Refused({{"input", {5, -1}}}), "input");
  EXPECT_EQ(Refused({{"input", {5, 999999}}}), "input");
  EXPECT_EQ(Refused({{"input", std::vector<std::string>(2049, "a")}}), "input");
  EXPECT_EQ(Refused({{"input", {"a", std::string(65, 'a')}}}), "input[1]");
  for (const json& dimensions : {json(0), json(-1), json(5), json("2")}) {
    EXPECT_EQ(Refused({{"input", "a"}, {"dimensions", dimensions}}), "dimensions");
  }
  EXPECT_EQ(Refused({{"input", "a"}, {"encoding_format", "int8"}}), "encoding_format");
  EXPECT_EQ(Refused({{"input", "a"}, {"truncate_prompt_tokens", 5}}), "truncate_prompt_tokens");
  EXPECT_EQ(Refused({{"input", "a"}, {"model", "other"}}, 404), "model");
}

TEST_F(EmbeddingRoutesTest, AModelWhoseFilesSayAnotherPoolingIsRefused) {
  engine_->mutable_card().no_embeddings = "the pooling 'cls' is not supported";
  Restart({});
  const json error = ErrorOf("/v1/embeddings", {{"input", "a"}});
  EXPECT_EQ(error["param"], "model");
  EXPECT_NE(error["message"].get<std::string>().find("'cls'"), std::string::npos);
  Restart({.pooling = Pooling::kLast});
  EXPECT_EQ(Start("/v1/embeddings", {{"input", "a"}}).requests.size(), 1u);
}

TEST_F(EmbeddingRoutesTest, WhatIsHeldCoversTextsAndEmbeddings) {
  const std::vector<std::string> texts(100, std::string(50, 'a'));
  const GenerationStart start = Start("/v1/embeddings", {{"input", texts}});
  EXPECT_GT(start.answer_bytes, 100 * (50 * sizeof(TokenId) + 4 * sizeof(float)));
  const std::string salt(200, 's');  // each request has it
  const GenerationStart salted = Start("/v1/embeddings", {{"input", texts}, {"cache_salt", salt}});
  EXPECT_GE(salted.answer_bytes, start.answer_bytes + 100 * salt.size());
}

}  // namespace
}  // namespace kvasir
