#include "hub/repo_ref.h"

#include <gtest/gtest.h>

namespace kvasir::hub {
namespace {

TEST(RepoRef, ReadsEachPart) {
  const auto plain = ParseRepoRef("Qwen/Qwen3-0.6B");
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain->repo, "Qwen/Qwen3-0.6B");
  EXPECT_FALSE(plain->revision || plain->choice);
  EXPECT_EQ(plain->Revision(), "main");

  const auto all = ParseRepoRef("a/b@refs/pr/1:sub/x-Q8_0.gguf");
  ASSERT_TRUE(all);
  EXPECT_EQ(all->repo, "a/b");
  EXPECT_EQ(all->revision, "refs/pr/1");
  EXPECT_EQ(all->choice, "sub/x-Q8_0.gguf");
  EXPECT_EQ(all->Text(), "a/b@refs/pr/1:sub/x-Q8_0.gguf");
}

TEST(RepoRef, TheTagLatestIsNoChoice) {
  for (const char* text : {"a/b:latest", "a/b@main:latest"}) {
    const auto ref = ParseRepoRef(text);
    ASSERT_TRUE(ref) << text;
    EXPECT_EQ(ref->choice, std::nullopt);
  }
  EXPECT_EQ(ParseRepoRef("a/b:latest.gguf")->choice, "latest.gguf");
  EXPECT_EQ(ParseRepoRef("a/b:Q8_0:latest")->choice, "Q8_0");
  EXPECT_FALSE(ParseRepoRef(":latest"));
}

TEST(RepoRef, TakesWhatABrowserShows) {
  for (const char* text : {"https://huggingface.co/Qwen/Qwen3-0.6B",
                           "huggingface.co/Qwen/Qwen3-0.6B", "hf.co/Qwen/Qwen3-0.6B"}) {
    const auto ref = ParseRepoRef(text);
    ASSERT_TRUE(ref) << text;
    EXPECT_EQ(ref->repo, "Qwen/Qwen3-0.6B");
  }
  EXPECT_FALSE(ParseRepoRef("https://example.org/Qwen/Qwen3-0.6B"));
}

TEST(RepoRef, RefusesWhatCouldLeaveTheCache) {
  for (const char* text : {"",
                           "name",
                           "a/b/c",
                           "/a/b",
                           "a/",
                           "/b",
                           "../b",
                           "a/..",
                           "a/b..c",
                           "a--b/c",
                           ".a/b",
                           "a/b.",
                           "-a/b",
                           "a/b ",
                           "a/b\n",
                           "a/b@",
                           "a/b@../x",
                           "a/b@x/../../y",
                           "a/b@/x",
                           "a/b@-x",
                           "a/b@x y",
                           "a/b:",
                           "a/b:../x.gguf",
                           "a/b:/etc/passwd",
                           "a/b:x\\y",
                           "a/b:x//y",
                           "a/b:./x",
                           "a/b:\x01"}) {
    EXPECT_FALSE(ParseRepoRef(text)) << text;
  }
  EXPECT_FALSE(ParseRepoRef("a/" + std::string(97, 'b')));
  EXPECT_TRUE(ParseRepoRef("a/" + std::string(96, 'b')));
}

TEST(RepoRef, ACommitHasFortyDigits) {
  EXPECT_TRUE(IsCommit(std::string(40, 'a')));
  EXPECT_FALSE(IsCommit(std::string(40, 'A')));
  EXPECT_FALSE(IsCommit(std::string(39, 'a')));
  EXPECT_FALSE(IsCommit("main"));
}

}  // namespace
}  // namespace kvasir::hub
