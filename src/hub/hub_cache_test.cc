#include "hub/hub_cache.h"

#include <gtest/gtest.h>
#include <sys/file.h>

#include "hub/cache_for_test.h"
#include "hub/cache_listing.h"

namespace kvasir::hub {
namespace {

namespace fs = std::filesystem;

RepoRef Ref(const char* text) { return *ParseRepoRef(text); }

TEST(HubCache, FindsARevisionsModel) {
  CacheForTest test("hub_cache_find");
  const HubCache& cache = test.cache();
  EXPECT_EQ(cache.Find(Ref("a/b")).error().code, Code::kNotFound);
  test.Add(kOldCommit, "config.json", "{}");
  test.Add(kOldCommit, "model.safetensors", "weights");
  test.Add(kNewCommit, "sub/m-Q8_0.gguf", "gguf");
  EXPECT_EQ(cache.Find(Ref("a/b")).error().code, Code::kNotFound) << "no ref leads there yet";
  ASSERT_TRUE(cache.WriteRef(Ref("a/b@v1"), kOldCommit));
  ASSERT_TRUE(cache.WriteRef(Ref("a/b"), kNewCommit));
  EXPECT_EQ(cache.Find(Ref("a/b"))->path, cache.Snapshot("a/b", kNewCommit) / "sub/m-Q8_0.gguf");
  EXPECT_EQ(cache.Find(Ref("a/b@v1"))->path, cache.Snapshot("a/b", kOldCommit));
  const RepoRef by_commit{"a/b", kOldCommit, "safetensors"};
  EXPECT_EQ(cache.Find(by_commit)->commit, kOldCommit);
  EXPECT_NE(cache.Find(Ref("a/b:Q4_0")).error().message.find("'kvasir pull a/b:Q4_0' fetches it"),
            std::string::npos);
}

TEST(HubCache, AConfigAloneIsAFolder) {
  CacheForTest test("hub_cache_config");
  test.Add(kOldCommit, "config.json", "{}");
  ASSERT_TRUE(test.cache().WriteRef(Ref("a/b"), kOldCommit));
  const auto found = test.cache().Find(Ref("a/b"));
  EXPECT_EQ(found->path, test.cache().Snapshot("a/b", kOldCommit));
  EXPECT_EQ(found->missing, std::vector<std::string>{"model.safetensors"});
}

TEST(HubCache, AFolderWithoutAllOfItsWeightsNamesTheRest) {
  CacheForTest test("hub_cache_shards");
  test.Add(kOldCommit, "config.json", "{}");
  test.Add(kOldCommit, "model.safetensors.index.json",
           R"({"weight_map": {"a": "1.safetensors", "b": "2.safetensors", "c": "3.safetensors"}})");
  test.Add(kOldCommit, "2.safetensors", "2");
  ASSERT_TRUE(test.cache().WriteRef(Ref("a/b"), kOldCommit));
  const auto missing = [&] { return test.cache().Find(Ref("a/b"))->missing; };
  EXPECT_EQ(missing(), (std::vector<std::string>{"1.safetensors", "3.safetensors"}));
  EXPECT_EQ(ListCache(test.cache()).front().missing, missing());
  EXPECT_EQ(TextOf(missing()), "1.safetensors and 1 more file");
  test.Add(kOldCommit, "1.safetensors", "1");
  const std::string blob = test.Add(kOldCommit, "3.safetensors", "3");
  EXPECT_EQ(missing(), std::vector<std::string>());
  fs::remove(test.cache().Blob("a/b", blob));
  EXPECT_EQ(TextOf(missing()), "3.safetensors") << "the link alone has no bytes";
}

TEST(HubCache, LinksAreRelativeAndReplaceWhatIsThere) {
  CacheForTest test("hub_cache_links");
  const std::string first = test.Add(kOldCommit, "sub/x", "1");
  const fs::path link = test.cache().Snapshot("a/b", kOldCommit) / "sub/x";
  EXPECT_EQ(fs::read_symlink(link), fs::path("../../../blobs") / first);
  const std::string second = test.Add(kOldCommit, "sub/x", "22");
  EXPECT_EQ(fs::read_symlink(link).filename(), second);
  EXPECT_EQ(fs::file_size(link), 2u);
}

TEST(HubCache, ALinkWithoutItsBlobIsNoFile) {
  CacheForTest test("hub_cache_dangling");
  const std::string blob = test.Add(kOldCommit, "x", "1");
  test.Add(kOldCommit, "y", "2");
  fs::remove(test.cache().Blob("a/b", blob));
  EXPECT_EQ(test.cache().FilesOf("a/b", kOldCommit), std::vector<std::string>{"y"});
}

TEST(HubCache, ADamagedRefLeadsNowhere) {
  CacheForTest test("hub_cache_ref");
  test.Add(kOldCommit, "m.gguf", "1");
  const fs::path refs = test.cache().Repo("a/b") / "refs";
  fs::create_directories(refs);
  for (const char* text : {"", "../../../..", "main", "1111"}) {
    std::ofstream(refs / "main") << text;
    EXPECT_FALSE(test.cache().CommitOf(Ref("a/b"))) << text;
  }
}

TEST(HubCache, ALockKeepsOthersOutUntilItGoes) {
  CacheForTest test("hub_cache_lock");
  const auto never = [] { ADD_FAILURE() << "no other process holds it"; };
  auto lock = test.cache().Lock("a/b", "id", never);
  ASSERT_TRUE(lock) << lock.error().message;
  const fs::path path = test.cache().root() / ".locks/models--a--b/id.lock";
  const Descriptor other(open(path.c_str(), O_RDWR));
  EXPECT_EQ(flock(other.fd(), LOCK_EX | LOCK_NB), -1);
  ASSERT_TRUE(test.cache().Lock("a/b", "other", never));
  lock->reset();
  EXPECT_EQ(flock(other.fd(), LOCK_EX | LOCK_NB), 0);
  bool has_waited = false;
  const auto after = test.cache().Lock("a/b", "id", [&] {
    has_waited = true;
    fs::remove(path);  // as a holder of huggingface_hub does when it is done
    flock(other.fd(), LOCK_UN);
  });
  ASSERT_TRUE(after);
  EXPECT_TRUE(has_waited);
  EXPECT_TRUE(fs::exists(path)) << "the lock of the file that has the name";
}

TEST(HubCache, ListsWhatCanRun) {
  CacheForTest test("hub_cache_list");
  test.Add(kOldCommit, "README.md", "text");
  test.Add(kNewCommit, "m-Q8_0-00001-of-00002.gguf", "12");
  test.Add(kNewCommit, "m-Q8_0-00002-of-00002.gguf", "345");
  ASSERT_TRUE(test.cache().WriteRef(Ref("a/b@x/y"), kNewCommit));
  ASSERT_TRUE(test.cache().WriteRef(Ref("a/b"), kNewCommit));
  fs::create_directories(test.cache().root() / "datasets--a--b/snapshots" / kOldCommit);
  fs::create_directories(test.cache().root() / "models--..--b/snapshots" / kOldCommit);
  const std::vector<CachedModel> models = ListCache(test.cache());
  ASSERT_EQ(models.size(), 1u);
  EXPECT_EQ(models[0].repo, "a/b");
  EXPECT_EQ(models[0].refs, (std::vector<std::string>{"main", "x/y"}));
  EXPECT_EQ(models[0].bytes, 5u);
  EXPECT_EQ(models[0].path.filename(), "m-Q8_0-00001-of-00002.gguf");
}

}  // namespace
}  // namespace kvasir::hub
