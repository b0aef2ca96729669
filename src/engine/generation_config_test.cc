#include "engine/generation_config.h"

#include <gtest/gtest.h>

namespace kvasir {
namespace {

TEST(GenerationConfig, ItsValuesAreDefaultsAndTheRestStays) {
  const auto defaults = ParseGenerationConfig(
      R"({"temperature": 0.6, "top_k": 20, "top_p": null, "do_sample": false,
          "max_new_tokens": 7, "eos_token_id": [1, 2]})",
      "g.json");
  ASSERT_TRUE(defaults) << defaults.error().message;
  EXPECT_EQ(defaults->Text(), "temperature 0.6, top_k 20");
  SamplingParams params;
  params.top_p = 0.5f;
  params = defaults->Over(params);
  EXPECT_EQ(params.temperature, 0.6f);
  EXPECT_EQ(params.top_k, 20u);
  EXPECT_EQ(params.top_p, 0.5f);
  EXPECT_EQ(ParseGenerationConfig(R"({"top_k": -1})", "g")->top_k, 0u);
  EXPECT_EQ(ParseGenerationConfig("", "g")->Text(), std::nullopt);
}

TEST(GenerationConfig, WrongValuesAreNamedWithTheFlagThatGoesOn) {
  for (const char* text : {R"({"temperature": -1})", R"({"top_p": 1.5})", R"({"min_p": "0"})",
                           R"({"repetition_penalty": 0})", R"({"top_k": true})"}) {
    const auto wrong = ParseGenerationConfig(text, "g.json");
    ASSERT_FALSE(wrong) << text;
    EXPECT_EQ(wrong.error().code, Code::kInvalidArgument);
    EXPECT_NE(wrong.error().message.find("--generation-config none"), std::string::npos);
  }
  EXPECT_EQ(ParseGenerationConfig(R"({"top_p": 1.5})", "g.json").error().message,
            "g.json: top_p is 1.5; it must be a number from 0 to 1; correct it, or start with "
            "--generation-config none");
  EXPECT_EQ(ParseGenerationConfig("[", "g").error().code, Code::kCorruption);
}

}  // namespace
}  // namespace kvasir
