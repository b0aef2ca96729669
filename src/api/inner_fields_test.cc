// Unknown fields of objects within a request are listed by their paths.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "api/infill_prompt.h"
#include "api/llama_request.h"
#include "api/openai_request.h"
#include "api/session_body.h"
#include "api/small_view_for_test.h"
#include "http/json_body.h"
#include "server/fake_engine_for_test.h"

namespace kvasir {
namespace {

using Paths = std::vector<std::string>;

class InnerFields : public testing::Test {
 protected:
  InnerFields() { model_.fim.prefix = 1, model_.fim.suffix = 2, model_.fim.middle = 3; }

  Paths IgnoredBy(Result<GenerationCall> (*parse)(std::string_view, const ModelView&),
                  std::string_view body) const {
    const auto call = parse(body, model_);
    return call ? call->requests.front().ignored : Paths{call.error().text()};
  }

  const std::unique_ptr<const Tokenizer> tokenizer_ =
      *Tokenizer::Parse(TinyTokenizerJson(), kTinyTokenizerConfig);
  ModelView model_ = SmallView(*tokenizer_);
};

TEST_F(InnerFields, OfPromptsAndAdaptersAreNamed) {
  for (const auto parse : {&ParseLlamaRequest, &ParseCompletionRequest}) {
    EXPECT_EQ(IgnoredBy(parse, R"({"prompt":{"prompt_string":"a","x":1}})"), Paths{"prompt.x"});
    EXPECT_EQ(IgnoredBy(parse, R"({"prompt":["b",{"prompt_string":[5],"multimodal_data":[],
                                   "x":1}]})"),
              Paths{"prompt[1].x"});
    EXPECT_EQ(IgnoredBy(parse, R"({"prompt":"a","lora":[{"id":0,"scale":1},
                                   {"id":1,"scale":1,"x":2}]})"),
              Paths{"lora[1].x"});
    EXPECT_EQ(IgnoredBy(parse, R"({"prompt":"a","lora":[5]})"),
              Paths{"lora: [0]: needs an id, a whole number from GET /lora-adapters"});
  }
}

TEST_F(InnerFields, OfFilesAreNamed) {
  EXPECT_EQ(IgnoredBy(&ParseInfillRequest, R"({"input_prefix":"a","input_suffix":"b",
      "input_extra":[{"filename":"f","text":"t"},{"text":"t","name":"g"}]})"),
            Paths{"input_extra[1].name"});
}

TEST_F(InnerFields, OfPredictionsAreNamed) {
  model_.drafts = true;
  EXPECT_EQ(IgnoredBy(&ParseCompletionRequest, R"({"prompt":"a","prediction":{"type":"content",
      "content":[{"type":"text","text":"a","y":1}],"zz":1}})"),
            (Paths{"prediction.zz", "prediction.content[0].y"}));
  EXPECT_EQ(IgnoredBy(&ParseCompletionRequest, R"({"prompt":"a","web_search_options":{}})"),
            Paths{"web_search_options"});
  EXPECT_EQ(IgnoredBy(&ParseCompletionRequest, R"({"prompt":"a","functions":[]})"), Paths{});
}

TEST_F(InnerFields, OfSegmentsAreNamed) {
  const auto body = ParseBody(R"({"messages":[{"role":"user","content":"a"},{"role":"user",
      "content":"ab","segments":[{"name":"s","begin":0,"end":1,"x":1}]}],
      "content":"ab","segments":[{"name":"s","begin":0,"end":1,"y":1}]})");
  ASSERT_TRUE(body);
  JsonTree tree;
  JsonFields whole(body->fields), one(body->fields);
  ASSERT_TRUE(ReadSessionMessages(whole, model_, &tree));
  EXPECT_EQ(whole.inner_unread()[0], "messages[1].segments[0].x");
  ASSERT_TRUE(ReadContent(one, "user", model_, &tree));
  EXPECT_EQ(one.inner_unread()[0], "segments[0].y");
}

TEST_F(InnerFields, OfASessionsCacheAreRefusedAsInGenerate) {
  const auto set_up = [&](std::string_view text) {
    const auto body = ParseBody(text);
    JsonTree tree;
    JsonFields fields(body->fields);
    const auto setup = ReadSetup(fields, model_, &tree);
    return setup ? std::string(setup->on_disk ? "disk" : "memory") : *setup.error().field;
  };
  EXPECT_EQ(set_up(R"({"cache":{"x":1}})"), "cache.x");
  EXPECT_EQ(set_up(R"({"cache":{"disk":5}})"), "cache.disk");
  EXPECT_EQ(set_up(R"({"cache":{"disk":false}})"), "memory");
  EXPECT_EQ(set_up(R"({"cache":{"remote":false}})"), "disk");
}

}  // namespace
}  // namespace kvasir
