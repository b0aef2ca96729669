#include "api/adapter_fields.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "api/embedding_request.h"
#include "api/llama_request.h"
#include "api/openai_request.h"
#include "api/small_view_for_test.h"
#include "server/fake_engine_for_test.h"

namespace kvasir {
namespace {

class AdapterFields : public testing::Test {
 protected:
  AdapterFields() { model_.hidden_size = 4; }

  // Makes a model whose adapter "sql" is unloaded after so many looks at the list.
  ModelView UnloadedAfter(int looks) const {
    ModelView model = model_;
    model.adapters = [left = std::make_shared<int>(looks)] {
      std::vector<AdapterCard> cards;
      if ((*left)-- > 0) cards.push_back({.id = 3, .name = "sql", .path = {}, .is_model = true});
      return cards;
    };
    return model;
  }

  const std::unique_ptr<const Tokenizer> tokenizer_ =
      *Tokenizer::Parse(TinyTokenizerJson(), kTinyTokenizerConfig);
  ModelView model_ = SmallView(*tokenizer_);
};

constexpr std::pair<Result<GenerationCall> (*)(std::string_view, const ModelView&), const char*>
    kAsks[] = {{&ParseCompletionRequest, R"("prompt":"a")"},
               {&ParseLlamaRequest, R"("prompt":"a")"},
               {&ParseEmbeddingRequest, R"("input":"a")"}};

TEST_F(AdapterFields, AnAdapterThatIsUnloadedWhileARequestIsReadIsAnUnknownModel) {
  for (const auto& [parse, prompt] : kAsks) {
    const std::string body = std::string(R"({"model":"sql",)") + prompt + "}";
    const auto loaded = parse(body, UnloadedAfter(100));
    ASSERT_TRUE(loaded) << loaded.error().text();
    EXPECT_EQ(loaded->requests.front().adapters, (std::vector<AdapterChoice>{{3, 1.0}}));
    const auto gone = parse(body, UnloadedAfter(1));
    ASSERT_FALSE(gone) << "the model itself would answer: " << body;
    EXPECT_EQ(gone.error().code, Code::kNotFound);
    EXPECT_EQ(gone.error().field, "model");
    EXPECT_EQ(gone.error().message, parse(body, UnloadedAfter(0)).error().message);
  }
}

TEST_F(AdapterFields, WhatSaysItsAdaptersNeedsNoneOfThatName) {
  for (const auto& [parse, prompt] : kAsks) {
    const std::string body =
        std::string(R"({"model":"sql","lora":[{"id":5,"scale":2}],)") + prompt + "}";
    const auto call = parse(body, UnloadedAfter(1));
    ASSERT_TRUE(call) << call.error().text();
    EXPECT_EQ(call->requests.front().adapters, (std::vector<AdapterChoice>{{5, 2.0}}));
  }
}

TEST_F(AdapterFields, NamesOfTheModelAreTheModel) {
  for (const auto& [parse, prompt] : kAsks) {
    for (const char* name : {"m", "m:latest", "default", ""}) {
      const auto call =
          parse(std::string(R"({"model":")") + name + "\"," + prompt + "}", UnloadedAfter(0));
      ASSERT_TRUE(call) << call.error().text();
      EXPECT_EQ(call->requests.front().adapters, std::nullopt);
    }
    ModelView takes_any = UnloadedAfter(1);
    takes_any.takes_any_name = true;
    const auto call = parse(std::string(R"({"model":"sql",)") + prompt + "}", takes_any);
    ASSERT_TRUE(call) << call.error().text();
    EXPECT_EQ(call->requests.front().adapters, std::nullopt);
  }
}

}  // namespace
}  // namespace kvasir
