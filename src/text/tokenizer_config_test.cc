#include "text/tokenizer_config.h"

#include <gtest/gtest.h>

namespace kvasir {
namespace {

TEST(TokenizerConfig, ReadsTextsTokensAndIds) {
  const auto config = ParseTokenizerConfig(
      R"({"bos_token":{"content":"<s>"},"eos_token_id":7,"add_bos_token":true,"add_eos_token":null})",
      "");
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->bos, "<s>");
  EXPECT_EQ(config->eos, std::nullopt);
  EXPECT_EQ(config->eos_id, 7);
  EXPECT_TRUE(config->add_bos);
  EXPECT_FALSE(config->add_eos);
  EXPECT_FALSE(config->decides_bos);
  EXPECT_EQ(config->additions, "");
}

TEST(TokenizerConfig, TakesFromTheOtherFileWhatItLacks) {
  const auto config = ParseTokenizerConfig(
      R"({"bos_token":null})", R"({"bos_token":"<b>","eos_token":"<e>","add_bos_token":true})");
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->bos, std::nullopt) << "null says that there is no BOS";
  EXPECT_EQ(config->eos, "<e>");
  EXPECT_TRUE(config->add_bos);
  EXPECT_TRUE(config->decides_bos);
  EXPECT_FALSE(config->decides_eos);
  EXPECT_EQ(config->additions, R"({"add_bos_token":true,"eos_token":"<e>"})");
}

TEST(TokenizerConfig, NamesTheFileAndTheField) {
  const auto error = [](std::string_view config, std::string_view others) {
    const auto parsed = ParseTokenizerConfig(config, others);
    return parsed ? "" : parsed.error().message;
  };
  EXPECT_EQ(error(R"({"bos_token":7})", ""),
            "tokenizer_config.json: bos_token is neither a string nor a token");
  EXPECT_EQ(error("", "[]"), "special_tokens_map.json: not a JSON object");
}

}  // namespace
}  // namespace kvasir
