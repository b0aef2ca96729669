#include "testing/recording.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "base/needs_for_test.h"
#include "source_paths.h"

namespace kvasir {
namespace {

TEST(Recording, ReadsARequestALine) {
  const auto recording = ParseRecording(
      "{\"timestamp\": 27482, \"input_length\": 6955, \"output_length\": 52, \"hash_ids\": [46, "
      "2354]}\r\n"
      "\n"
      R"({"hash_ids": [], "output_length": 0, "input_length": 1, "timestamp": 5000000000, "x": 1})",
      "t");
  ASSERT_TRUE(recording) << recording.error().message;
  ASSERT_EQ(recording->size(), 2u);
  EXPECT_EQ((*recording)[0].timestamp_ms, 27482u);
  EXPECT_EQ((*recording)[0].input_tokens, 6955u);
  EXPECT_EQ((*recording)[0].output_tokens, 52u);
  EXPECT_EQ((*recording)[0].block_ids, (std::vector<uint32_t>{46, 2354}));
  EXPECT_EQ((*recording)[1].timestamp_ms, 5'000'000'000u);
  EXPECT_TRUE((*recording)[1].block_ids.empty());
  EXPECT_TRUE(ParseRecording("", "t")->empty());
}

TEST(Recording, NamesTheLineAndTheKeyThatAreWrong) {
  const std::string good =
      "{\"timestamp\": 0, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [1]}\n";
  const auto error_of = [&](const std::string& line) {
    const auto recording = ParseRecording(good + line, "t.jsonl");
    EXPECT_FALSE(recording);
    EXPECT_EQ(recording.error().code, Code::kCorruption);
    return recording.error().message;
  };
  EXPECT_EQ(error_of(R"({"timestamp": 0, "input_length": 1, "output_length": 1})"),
            "t.jsonl line 2: the key hash_ids is missing");
  EXPECT_EQ(error_of(R"({"timestamp": 0, "input_length": -1, "output_length": 1, "hash_ids": []})"),
            "t.jsonl line 2: input_length: -1 is not a whole number from 0 to 4294967295");
  EXPECT_EQ(
      error_of(
          R"({"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [1, 4294967296]})"),
      "t.jsonl line 2: hash_ids: 4294967296 is not a whole number from 0 to 4294967295");
  EXPECT_EQ(error_of(R"({"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": 7})"),
            "t.jsonl line 2: hash_ids is not a list");
  EXPECT_NE(error_of("{\"timestamp\"").find("t.jsonl line 2"), std::string::npos);
  EXPECT_NE(error_of("[1]").find("t.jsonl line 2"), std::string::npos);
}

TEST(Recording, ReadsAFileAndSaysWhenThereIsNone) {
  const auto path = std::filesystem::path(testing::TempDir()) / "kvasir_trace_test.jsonl";
  std::ofstream(path) << R"({"timestamp":1,"input_length":2,"output_length":3,"hash_ids":[4]})";
  const auto recording = ReadRecording(path);
  ASSERT_TRUE(recording);
  EXPECT_EQ(recording->at(0).block_ids, std::vector<uint32_t>{4});
  std::filesystem::remove(path);
  EXPECT_EQ(ReadRecording(path).error().code, Code::kNotFound);
  EXPECT_EQ(ReadRecording(testing::TempDir()).error().code, Code::kIoError);  // a folder
}

const std::string kAzure = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n";

TEST(AzureRecording, ReadsTimesAndLengths) {
  const auto recording = ParseAzureRecording(kAzure +
                                                 "2023-11-16 23:59:59.9799600,600,44\r\n"
                                                 "\n"
                                                 "2023-11-17 00:00:01.2300000,1,0",
                                             "t");
  ASSERT_TRUE(recording) << recording.error().message;
  ASSERT_EQ(recording->size(), 2u);
  EXPECT_EQ((*recording)[0].timestamp_ms, 0u);
  EXPECT_EQ((*recording)[0].input_tokens, 600u);
  EXPECT_EQ((*recording)[0].output_tokens, 44u);
  EXPECT_NEAR((*recording)[1].timestamp_ms, 1250, 1);
  EXPECT_EQ((*recording)[0].block_ids, (std::vector<uint32_t>{0, 1}));
  EXPECT_EQ((*recording)[1].block_ids, (std::vector<uint32_t>{2})) << "it shares nothing";
}

TEST(AzureRecording, NamesTheLineAndTheFieldThatAreWrong) {
  const auto error_of = [&](const std::string& line) {
    const auto recording = ParseAzureRecording(kAzure + line, "t.csv");
    EXPECT_FALSE(recording) << line;
    return recording ? "" : recording.error().message;
  };
  EXPECT_EQ(error_of("2023-11-16 18:17:03,1"),
            "t.csv line 2: '2023-11-16 18:17:03,1' has fewer than 3 fields "
            "(TIMESTAMP,ContextTokens,GeneratedTokens)");
  EXPECT_EQ(error_of("2023-11-16 18:17:03,-1,2"),
            "t.csv line 2: ContextTokens: '-1' is not a count");
  EXPECT_EQ(error_of("2023-11-16 18:17:03,1,2,3"),
            "t.csv line 2: GeneratedTokens: '2,3' is not a count");
  for (const char* time : {"", "2023-11-16", "2023-02-30 18:17:03", "2023-11-16 24:17:03",
                           "2023-11-16 18:17:0x", "2023-11-16T18:17:03"}) {
    EXPECT_NE(error_of(std::string(time) + ",1,2").find("is not a time such as"),
              std::string::npos);
  }
  EXPECT_FALSE(ParseAzureRecording("TIMESTAMP,Tokens\n", "t.csv"));
}

TEST(Recording, MakesPromptsThatShareWhatTheirBlocksShare) {
  const RecordedRequest a{.input_tokens = 1100, .output_tokens = 1, .block_ids = {7, 8, 9}};
  const RecordedRequest b{.input_tokens = 1300, .output_tokens = 1, .block_ids = {7, 8, 10}};
  const auto prompt = PromptOf(a, 1 << 20), other = PromptOf(b, 1 << 20);
  ASSERT_EQ(prompt.size(), 1100u);
  ASSERT_EQ(other.size(), 1300u);
  const auto differ = std::ranges::mismatch(prompt, other).in1 - prompt.begin();
  EXPECT_EQ(differ, 1024);
  for (const TokenId token : PromptOf(b, 5)) EXPECT_LT(static_cast<uint32_t>(token), 5u);
  EXPECT_EQ(PromptOf({.input_tokens = 900, .output_tokens = 1, .block_ids = {1}}, 9).size(), 512u);
}

TEST(Recording, ReadsEitherFormat) {
  const auto path = std::filesystem::path(testing::TempDir()) / "kvasir_azure_test.csv";
  std::ofstream(path) << kAzure << "2023-11-16 18:17:03,4808,10\n";
  const auto recording = ReadRecording(path);
  std::filesystem::remove(path);
  ASSERT_TRUE(recording) << recording.error().message;
  EXPECT_EQ(recording->at(0).input_tokens, 4808u);
}

// The published files, beside the repository, and what was counted in them.
TEST(AzureRecording, ReadsThePublishedFile) {
  const std::string path = KVASIR_SHARED_DIR "/data/azure-llm-2023/AzureLLMInferenceTrace_conv.csv";
  KV_NEEDS(path);
  const auto recording = ReadRecording(path);
  ASSERT_TRUE(recording) << recording.error().message;
  uint64_t input = 0, output = 0;
  for (const RecordedRequest& request : *recording) {
    input += request.input_tokens;
    output += request.output_tokens;
  }
  EXPECT_EQ(recording->size(), 19366u);
  EXPECT_EQ(input, 22361870u);
  EXPECT_EQ(output, 4088665u);
  EXPECT_NEAR(static_cast<double>(recording->back().timestamp_ms), 3501722, 2);
}

}  // namespace
}  // namespace kvasir
