#include "plan/trace.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace kvasir {
namespace {

TEST(Trace, ReadsARequestALine) {
  const auto trace = ParseTrace(
      "{\"timestamp\": 27482, \"input_length\": 6955, \"output_length\": 52, \"hash_ids\": [46, "
      "2354]}\r\n"
      "\n"
      R"({"hash_ids": [], "output_length": 0, "input_length": 1, "timestamp": 5000000000, "x": 1})",
      "t");
  ASSERT_TRUE(trace) << trace.error().message;
  ASSERT_EQ(trace->size(), 2u);
  EXPECT_EQ((*trace)[0].timestamp_ms, 27482u);
  EXPECT_EQ((*trace)[0].input_tokens, 6955u);
  EXPECT_EQ((*trace)[0].output_tokens, 52u);
  EXPECT_EQ((*trace)[0].block_ids, (std::vector<uint32_t>{46, 2354}));
  EXPECT_EQ((*trace)[1].timestamp_ms, 5'000'000'000u);
  EXPECT_TRUE((*trace)[1].block_ids.empty());
  EXPECT_TRUE(ParseTrace("", "t")->empty());
}

TEST(Trace, NamesTheLineAndTheKeyThatAreWrong) {
  const std::string good =
      "{\"timestamp\": 0, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [1]}\n";
  const auto error_of = [&](const std::string& line) {
    const auto trace = ParseTrace(good + line, "t.jsonl");
    EXPECT_FALSE(trace);
    EXPECT_EQ(trace.error().code, Code::kCorruption);
    return trace.error().message;
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

TEST(Trace, ReadsAFileAndSaysWhenThereIsNone) {
  const auto path = std::filesystem::path(testing::TempDir()) / "kvasir_trace_test.jsonl";
  std::ofstream(path) << R"({"timestamp":1,"input_length":2,"output_length":3,"hash_ids":[4]})";
  const auto trace = ReadTrace(path);
  ASSERT_TRUE(trace);
  EXPECT_EQ(trace->at(0).block_ids, std::vector<uint32_t>{4});
  std::filesystem::remove(path);
  EXPECT_EQ(ReadTrace(path).error().code, Code::kNotFound);
  EXPECT_EQ(ReadTrace(testing::TempDir()).error().code, Code::kIoError);  // a folder
}

}  // namespace
}  // namespace kvasir
