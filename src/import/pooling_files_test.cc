#include "import/pooling_files.h"

#include <gtest/gtest.h>

namespace kvasir {
namespace {

std::string ErrorOf(std::string_view text) {
  const auto pooling = ParsePoolingConfig(text, "1_Pooling/config.json");
  return pooling ? "" : pooling.error().message;
}

TEST(PoolingFiles, ReadWhatSentenceTransformersWrites) {
  EXPECT_EQ(ParsePoolingConfig(R"({"word_embedding_dimension":1024,"pooling_mode_cls_token":false,
      "pooling_mode_mean_tokens":false,"pooling_mode_lasttoken":true,"include_prompt":true})",
                               "f"),
            Pooling::kLast);
  EXPECT_EQ(ParsePoolingConfig(R"({"pooling_mode_mean_tokens":true})", "f"), Pooling::kMean);
  EXPECT_EQ(ParsePoolingConfig(R"({"embedding_dimension":64,"pooling_mode":"mean"})", "f"),
            Pooling::kMean);
  EXPECT_EQ(ParsePoolingConfig(R"({"pooling_mode":"lasttoken"})", "f"), Pooling::kLast);
}

TEST(PoolingFiles, OtherPoolingIsRefusedByName) {
  EXPECT_NE(ErrorOf(R"({"pooling_mode_cls_token":true})").find("'cls_token'"), std::string::npos);
  EXPECT_NE(ErrorOf(R"({"pooling_mode":"max"})").find("'max'"), std::string::npos);
  EXPECT_NE(ErrorOf(R"({"pooling_mode_mean_tokens":true,"pooling_mode_max_tokens":true})")
                .find("'max_tokens and mean_tokens'"),
            std::string::npos);
  EXPECT_NE(ErrorOf("{}").find("names no pooling"), std::string::npos);
  EXPECT_NE(ErrorOf("{").find("1_Pooling/config.json"), std::string::npos);
}

TEST(PoolingFiles, ReadAGgufFilesKey) {
  const auto pooling_of = [](GgufValue type) {
    GgufFile gguf;
    gguf.metadata["general.architecture"] = std::string("qwen3");
    gguf.metadata["qwen3.pooling_type"] = std::move(type);
    return GgufPooling(gguf, "m.gguf");
  };
  EXPECT_EQ(pooling_of(uint64_t{1}), Pooling::kMean);
  EXPECT_EQ(pooling_of(uint64_t{3}), Pooling::kLast);
  EXPECT_EQ(pooling_of(uint64_t{0}), std::nullopt);
  EXPECT_EQ(pooling_of(int64_t{-1}), std::nullopt);
  EXPECT_EQ(GgufPooling(GgufFile(), "m.gguf"), std::nullopt);
  EXPECT_NE(pooling_of(uint64_t{2}).error().message.find("'cls'"), std::string::npos);
  EXPECT_NE(pooling_of(uint64_t{4}).error().message.find("'rank'"), std::string::npos);
}

}  // namespace
}  // namespace kvasir
