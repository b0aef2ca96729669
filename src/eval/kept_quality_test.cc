#include "eval/kept_quality.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <limits>

#include "base/file_limit_for_test.h"

namespace kvasir::eval {
namespace {

namespace fs = std::filesystem;

class KeptQualityTest : public ::testing::Test {
 protected:
  KeptQualityTest()
      : folder_(fs::temp_directory_path() / ("kvasir-kept-" + std::to_string(getpid()))) {
    fs::remove_all(folder_);
  }
  ~KeptQualityTest() override { fs::remove_all(folder_); }

  static KeptQuality Sample() {
    return {.content = std::string(64, 'a'),
            .kv_format = "int8; f16 in layers 0",
            .model = "demo",
            .weights = "bf16",
            .text = "some text",
            .date = "2026-11-21",
            .tokens = 20480,
            .kl = {0.00123456, 0.0001},
            .kl_p99 = 0.02,
            .same_top = {0.991, 0.001}};
  }
  std::optional<KeptQuality> Find() const {
    return FindQuality(folder_.string(), Sample().content, Sample().kv_format);
  }
  fs::path File() const {
    for (const auto& entry : fs::directory_iterator(folder_)) return entry.path();
    return {};
  }
  void Write(const std::string& bytes) const { std::ofstream(File(), std::ios::binary) << bytes; }

  fs::path folder_;
};

TEST_F(KeptQualityTest, IsFoundByContentAndFormatAlone) {
  EXPECT_FALSE(Find());
  ASSERT_TRUE(KeepQuality(folder_.string(), Sample()));
  const auto found = Find();
  ASSERT_TRUE(found);
  EXPECT_EQ(found->tokens, 20480u);
  EXPECT_EQ(found->kl.value, 0.00123456);
  EXPECT_EQ(QualityText(*found),
            "int8; f16 in layers 0: KL 0.00123 +- 0.0001 nats, top-1 99.1% against f32 over 20,480 "
            "tokens (kvasir eval, 2026-11-21)");
  EXPECT_FALSE(FindQuality(folder_.string(), Sample().content, "int8"));
  EXPECT_FALSE(FindQuality(folder_.string(), std::string(64, 'b'), Sample().kv_format));
  EXPECT_EQ(ListQualities(folder_.string()).size(), 1u);
}

TEST_F(KeptQualityTest, TheNewestMeasurementReplacesTheOlder) {
  KeptQuality quality = Sample();
  ASSERT_TRUE(KeepQuality(folder_.string(), quality));
  quality.tokens = 7;
  ASSERT_TRUE(KeepQuality(folder_.string(), quality));
  EXPECT_EQ(Find()->tokens, 7u);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);
}

TEST_F(KeptQualityTest, DamagedAndForeignFilesAreIgnored) {
  ASSERT_TRUE(KeepQuality(folder_.string(), Sample()));
  std::string good;
  std::getline(std::ifstream(File(), std::ios::binary), good, '\0');
  const auto with = [&good](const std::string& from, const std::string& to) {
    std::string text = good;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return text.replace(at, from.size(), to);
  };
  for (const std::string& bytes :
       {std::string(), good.substr(0, good.size() / 2), std::string(100, '\0'),
        std::string("[1, 2]"), std::string("null"), std::string(1 << 20, '{'),
        good + std::string(1 << 20, ' '), with("\"tokens\": 20480", "\"tokens\": -1"),
        with("\"tokens\": 20480", "\"tokens\": \"many\""), with("\"top1\": 0.991", "\"top1\": 1.5"),
        with("\"top1\": 0.991", "\"top1\": null"), with("0.00123456", "-0.5"),
        with("0.00123456", "1e999"), with("2026-11-21", "yesterday"),
        with("\"kvasir_eval\": 1", "\"kvasir_eval\": 2"), with("int8;", "int4;"),
        with("aaaa", "bbbb")}) {
    Write(bytes);
    EXPECT_FALSE(Find()) << bytes.substr(0, 200);
    EXPECT_TRUE(ListQualities(folder_.string()).empty());
  }
  Write(good);
  EXPECT_TRUE(Find());
}

TEST_F(KeptQualityTest, WhatIsShownHasNoControlCharacters) {
  KeptQuality quality = Sample();
  quality.model = "a\x1b[31m\nb";
  ASSERT_TRUE(KeepQuality(folder_.string(), quality));
  EXPECT_EQ(Find()->model, "a?[31m?b");
}

TEST_F(KeptQualityTest, AFolderThatCannotBeIsAnError) {
  std::ofstream(folder_.string()) << "a file";
  const Status kept = KeepQuality(folder_.string(), Sample());
  ASSERT_FALSE(kept);
  EXPECT_EQ(kept.error().code, Code::kNotFound);
  EXPECT_EQ(kept.error().message,
            "cannot make the folder " + folder_.string() + ": Not a directory");
  EXPECT_FALSE(Find());
}

TEST_F(KeptQualityTest, AWriteThatFallsShortSaysWhyAndChangesNothing) {
  ASSERT_TRUE(KeepQuality(folder_.string(), Sample()));
  KeptQuality newer = Sample();
  newer.tokens = 7;
  for (const rlim_t max_bytes : {0, 100}) {
    Status kept;
    {
      const FileLimit limit(max_bytes);
      kept = KeepQuality(folder_.string(), newer);
    }
    ASSERT_FALSE(kept);
    EXPECT_EQ(kept.error().code, Code::kIoError);
    EXPECT_TRUE(kept.error().message.starts_with("cannot write " + folder_.string() + "/eval-"));
    EXPECT_TRUE(kept.error().message.ends_with(": File too large")) << kept.error().message;
    EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1) << "no draft";
    EXPECT_EQ(Find()->tokens, Sample().tokens);
  }
}

TEST_F(KeptQualityTest, TheOldestGoWhenThereAreTooMany) {
  KeptQuality quality = Sample();
  for (size_t i = 0; i < kMaxKeptQualities + 3; ++i) {
    quality.content = std::to_string(i);
    ASSERT_TRUE(KeepQuality(folder_.string(), quality));
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), ptrdiff_t{kMaxKeptQualities});
  EXPECT_TRUE(FindQuality(folder_.string(), quality.content, quality.kv_format));
}

TEST(QualityFigures, AreShort) {
  EXPECT_EQ(KlText(0), "0");
  EXPECT_EQ(KlText(0.00123456), "0.00123");
  EXPECT_EQ(KlText(4.56e-8), "4.56e-08");
  EXPECT_EQ(CountText(7), "7");
  EXPECT_EQ(CountText(999), "999");
  EXPECT_EQ(CountText(1000), "1,000");
  EXPECT_EQ(CountText(1234567), "1,234,567");
}

}  // namespace
}  // namespace kvasir::eval
