#include "hub/cache_removal.h"

#include <gtest/gtest.h>

#include "hub/cache_for_test.h"
#include "hub/cache_listing.h"

namespace kvasir::hub {
namespace {

namespace fs = std::filesystem;

void Never() { ADD_FAILURE() << "no other process holds a lock"; }

Result<Removed> Remove(const CacheForTest& test, const char* text) {
  return RemoveModel(test.cache(), *ParseRepoRef(text), Never);
}

TEST(CacheRemoval, ABlobGoesWithItsLastLink) {
  CacheForTest test("hub_removal_shared");
  const HubCache& cache = test.cache();
  const std::string shared = test.Add(kOldCommit, "m-Q8_0.gguf", "shared");
  test.Add(kNewCommit, "m-Q8_0.gguf", "shared");
  const std::string own = test.Add(kOldCommit, "m-Q4_0.gguf", "own");
  ASSERT_TRUE(cache.WriteRef(*ParseRepoRef("a/b@old"), kOldCommit));
  ASSERT_TRUE(cache.WriteRef(*ParseRepoRef("a/b"), kNewCommit));

  const auto first = Remove(test, "a/b@old");
  ASSERT_TRUE(first) << first.error().message;
  EXPECT_EQ(first->num_files, 2u);
  EXPECT_EQ(first->freed_bytes, 3u) << "the shared blob stays";
  EXPECT_FALSE(fs::exists(cache.Blob("a/b", own)));
  EXPECT_TRUE(fs::exists(cache.Snapshot("a/b", kNewCommit) / "m-Q8_0.gguf"));
  EXPECT_FALSE(fs::exists(cache.Snapshot("a/b", kOldCommit)));
  EXPECT_FALSE(fs::exists(cache.Repo("a/b") / "refs/old"));

  std::ofstream(cache.Blob("a/b", own).string() + ".incomplete") << "beginning";
  const auto second = Remove(test, "a/b");
  ASSERT_TRUE(second) << second.error().message;
  EXPECT_EQ(second->freed_bytes, 6u + 9u);
  EXPECT_FALSE(fs::exists(cache.Blob("a/b", shared)));
  EXPECT_FALSE(fs::exists(cache.Repo("a/b")));
}

TEST(CacheRemoval, OneModelOfSeveralKeepsTheOthers) {
  CacheForTest test("hub_removal_choice");
  test.Add(kOldCommit, "m-Q8_0-00001-of-00002.gguf", "11");
  test.Add(kOldCommit, "m-Q8_0-00002-of-00002.gguf", "222");
  test.Add(kOldCommit, "m-Q4_0.gguf", "4");
  EXPECT_EQ(Remove(test, "a/b:Q2_K").error().code, Code::kNotFound);
  const auto removed = Remove(test, "a/b:Q8_0");
  ASSERT_TRUE(removed) << removed.error().message;
  EXPECT_EQ(removed->num_files, 2u);
  EXPECT_EQ(removed->freed_bytes, 5u);
  EXPECT_EQ(test.cache().FilesOf("a/b", kOldCommit), std::vector<std::string>{"m-Q4_0.gguf"});
  ASSERT_TRUE(Remove(test, "a/b:m-Q4_0.gguf"));
  EXPECT_FALSE(fs::exists(test.cache().Repo("a/b"))) << "nothing is left of it";
}

TEST(CacheRemoval, TextStaysWhileAnotherModelOfTheSnapshotMayReadIt) {
  CacheForTest test("hub_removal_text");
  for (const char* file : {"config.json", "tokenizer.json", "model.safetensors", "m-Q4_0.gguf"}) {
    test.Add(kOldCommit, file, file);
  }
  const auto removed = Remove(test, "a/b:safetensors");
  ASSERT_TRUE(removed) << removed.error().message;
  EXPECT_EQ(removed->num_files, 1u);
  EXPECT_EQ(test.cache().FilesOf("a/b", kOldCommit),
            (std::vector<std::string>{"config.json", "m-Q4_0.gguf", "tokenizer.json"}));
  ASSERT_TRUE(Remove(test, "a/b:Q4_0"));
  EXPECT_FALSE(fs::exists(test.cache().Repo("a/b"))) << "text alone is not a model";
}

TEST(CacheRemoval, AFolderGoesWithTheShardsThatItsIndexNames) {
  CacheForTest test("hub_removal_shards");
  test.Add(kOldCommit, "config.json", "{}");
  test.Add(kOldCommit, "model.safetensors.index.json",
           R"({"weight_map": {"x": "first.safetensors", "y": "more/second.safetensors"}})");
  test.Add(kOldCommit, "first.safetensors", "11");
  test.Add(kOldCommit, "more/second.safetensors", "222");
  test.Add(kOldCommit, "model-00001-of-00001.safetensors", "of another index");
  test.Add(kOldCommit, "m-Q4_0.gguf", "4");
  const std::vector<CachedModel> models = ListCache(test.cache());
  ASSERT_EQ(models.size(), 2u);
  EXPECT_EQ(models[1].bytes, 2u + 74 + 2 + 3);
  const auto removed = Remove(test, "a/b:safetensors");
  ASSERT_TRUE(removed) << removed.error().message;
  EXPECT_EQ(removed->freed_bytes, 74u + 2 + 3);
  EXPECT_EQ(
      test.cache().FilesOf("a/b", kOldCommit),
      (std::vector<std::string>{"config.json", "m-Q4_0.gguf", "model-00001-of-00001.safetensors"}));
}

TEST(CacheRemoval, ADamagedIndexNamesNothing) {
  CacheForTest test("hub_removal_index");
  test.Add(kOldCommit, "config.json", "{}");
  test.Add(kOldCommit, "model.safetensors.index.json",
           R"({"weight_map": {"x": "model-1.safetensors", "y": "../../../precious"}})");
  test.Add(kOldCommit, "model-1.safetensors", "1");
  EXPECT_TRUE(test.cache().ShardsOf("a/b", kOldCommit).empty());
  ASSERT_EQ(ListCache(test.cache()).size(), 1u);
  ASSERT_TRUE(Remove(test, "a/b:safetensors"));
  EXPECT_EQ(test.cache().FilesOf("a/b", kOldCommit),
            std::vector<std::string>{"model-1.safetensors"});
}

TEST(CacheRemoval, ASplitFileWithoutAllPartsIsListedAsSuchAndRemoved) {
  CacheForTest test("hub_removal_parts");
  test.Add(kOldCommit, "m-Q8_0-00002-of-00003.gguf", "22");
  test.Add(kOldCommit, "m-Q4_0.gguf", "4");
  const std::vector<CachedModel> models = ListCache(test.cache());
  ASSERT_EQ(models.size(), 2u);
  EXPECT_EQ(models[1].label, "m-Q8_0-00002-of-00003.gguf");
  EXPECT_EQ(models[1].files, 1u);
  EXPECT_EQ(models[1].parts, 3u);
  EXPECT_FALSE(test.cache().Find(*ParseRepoRef("a/b@" + kOldCommit + ":Q8_0")));
  const auto removed = Remove(test, "a/b:Q8_0");
  ASSERT_TRUE(removed) << removed.error().message;
  EXPECT_EQ(removed->freed_bytes, 2u);
}

TEST(CacheRemoval, NothingBehindALinkOutOfTheRepositoryIsRemoved) {
  CacheForTest test("hub_removal_outside");
  const fs::path outside = test.cache().root() / "precious";
  test.Add(kOldCommit, "m.gguf", "1");
  std::ofstream(outside) << "precious";
  fs::create_symlink(outside, test.cache().Snapshot("a/b", kOldCommit) / "x.gguf");
  fs::create_symlink(outside, test.cache().Repo("a/b") / "blobs" / std::string(64, 'c'));
  const auto removed = Remove(test, "a/b");
  ASSERT_TRUE(removed) << removed.error().message;
  EXPECT_EQ(removed->freed_bytes, 1u);
  EXPECT_TRUE(fs::exists(outside));
}

TEST(CacheRemoval, WhatIsNotThereIsAnError) {
  CacheForTest test("hub_removal_missing");
  EXPECT_EQ(Remove(test, "a/b").error().code, Code::kNotFound);
  test.Add(kOldCommit, "m.gguf", "1");
  EXPECT_EQ(Remove(test, "a/b@main").error().code, Code::kNotFound);
  EXPECT_TRUE(fs::exists(test.cache().Repo("a/b")));
}

}  // namespace
}  // namespace kvasir::hub
