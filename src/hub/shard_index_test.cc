#include "hub/shard_index.h"

#include <gtest/gtest.h>

#include "hub/cache_for_test.h"

namespace kvasir::hub {
namespace {

Result<std::vector<std::string>> NamesIn(const std::string& text) {
  CacheForTest test("hub_shard_index");
  test.Add(kOldCommit, std::string(kIndexFile), text);
  return ReadShardNames(test.cache().Snapshot("a/b", kOldCommit) / kIndexFile);
}

TEST(ShardIndex, NamesEachFileOnceInOrder) {
  const auto names = NamesIn(
      R"({"metadata": {}, "weight_map": {"x": "b.safetensors", "y": "a/c.safetensors",
          "z": "b.safetensors"}})");
  ASSERT_TRUE(names) << names.error().message;
  EXPECT_EQ(*names, (std::vector<std::string>{"a/c.safetensors", "b.safetensors"}));
}

TEST(ShardIndex, WhatIsNotAnIndexIsRefused) {
  for (const char* text :
       {"", "[]", "{}", R"({"weight_map": ["b.safetensors"]})", "{\"weight_map"}) {
    EXPECT_EQ(NamesIn(text).error().code, Code::kCorruption) << text;
  }
}

TEST(ShardIndex, AFileOutsideOfTheFolderOrOfAnotherKindIsRefusedWithItsTensor) {
  for (const char* name :
       {R"("../b.safetensors")", R"("/b.safetensors")", R"("a//b.safetensors")", R"("")", "7",
        R"("m-Q8_0.gguf")", R"("tokenizer.json")", R"("b\u0000.safetensors")"}) {
    const auto names = NamesIn(std::string(R"({"weight_map": {"wq": )") + name + "}}");
    ASSERT_FALSE(names) << name;
    EXPECT_EQ(names.error().code, Code::kCorruption);
    EXPECT_NE(names.error().message.find("tensor 'wq' must name a .safetensors file"),
              std::string::npos)
        << names.error().message;
  }
}

}  // namespace
}  // namespace kvasir::hub
