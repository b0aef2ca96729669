#include "tier/set_aside.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "base/log.h"
#include "tier/sim_storage_for_test.h"
#include "tier/store_files.h"
#include "tier/tier_folder_for_test.h"

namespace kvasir {
namespace {

class SetAsideTest : public testing::Test {
 protected:
  SetAsideTest() { SetLogLevel(LogLevel::kError); }

  void Put(const std::string& name, std::string_view text) {
    EXPECT_TRUE(PublishFile(storage_, root_, name, text, FileSync::kSynced));
  }
  // Returns what a file has; "-" where the file does not exist.
  std::string Get(const std::string& name) {
    return ReadSmallFile(storage_, root_, name, 100).value_or("-");
  }

  SimStorage storage_{1};
  const FileId root_ = *storage_.OpenRoot("/sim");
};

TEST_F(SetAsideTest, GivesEachFileANameThatIsFree) {
  for (const char* text : {"one", "two"}) {
    Put("store", text);
    EXPECT_TRUE(SetAside(storage_, root_, "store"));
    EXPECT_EQ(Get("store"), "-");
  }
  EXPECT_EQ(Get("store.aside-1"), "one");
  EXPECT_EQ(Get("store.aside-2"), "two");
  EXPECT_FALSE(SetAside(storage_, root_, "store")) << "an earlier call has moved it";
}

TEST(SetAside, TheNewNameIsDurable) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    SimStorage storage(seed);
    const FileId root = *storage.OpenRoot("/sim");
    EXPECT_TRUE(PublishFile(storage, root, "store", "text", FileSync::kSynced));
    EXPECT_TRUE(SetAside(storage, root, "store"));
    storage.Crash();
    EXPECT_TRUE(storage.HasFile("store.aside-1") && !storage.HasFile("store")) << seed;
  }
}

TEST(NameBeforeAside, IsThatOfWhatWasSetAside) {
  EXPECT_EQ(NameBeforeAside("keys.aside-1"), "keys");
  EXPECT_EQ(NameBeforeAside("keys.aside-999"), "keys");
  EXPECT_EQ(NameBeforeAside("a.aside-1.aside-2"), "a.aside-1");
  for (const char* name : {"keys", "keys.aside-", "keys.aside-x", "keys.aside-1000", ".aside-1"}) {
    EXPECT_EQ(NameBeforeAside(name), std::nullopt) << name;
    EXPECT_EQ(NameOfOrigin(name), name);
  }
  EXPECT_EQ(NameOfOrigin("keys.aside-7"), "keys");
}

TEST_F(SetAsideTest, RemovesAllThatWasSetAsideForANameAndNothingElse) {
  for (const char* name : {"a", "a.aside-1", "a.aside-12", "ab.aside-1", "a.aside-x"})
    Put(name, name);
  EXPECT_EQ(RemoveAsidesOf(storage_, root_, "a"), true);
  EXPECT_EQ(Get("a.aside-1") + Get("a.aside-12"), "--");
  for (const char* name : {"a", "ab.aside-1", "a.aside-x"}) EXPECT_EQ(Get(name), name);
  EXPECT_EQ(RemoveAsidesOf(storage_, root_, "a"), false);
  EXPECT_EQ(RemoveFile(storage_, root_, "a"), true);
  EXPECT_EQ(RemoveFile(storage_, root_, "a"), false);
}

TEST_F(SetAsideTest, AFolderTakesThePlaceOfAFile) {
  Put("keys", "a file");
  const auto made = OpenOrMake(storage_, root_, "keys");
  ASSERT_TRUE(made);
  EXPECT_TRUE(PublishFile(storage_, made->id(), "inner", "text", FileSync::kSynced));
  EXPECT_EQ(Get("keys.aside-1"), "a file");
  const auto again = OpenOrMake(storage_, root_, "keys");
  ASSERT_TRUE(again);
  EXPECT_EQ(ReadSmallFile(storage_, again->id(), "inner", 100), "text");
}

TEST(OpenOrMake, TheNewFoldersNameIsDurable) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    SimStorage storage(seed);
    EXPECT_TRUE(OpenOrMake(storage, *storage.OpenRoot("/sim"), "keys"));
    storage.Crash();
    EXPECT_TRUE(storage.HasFile("keys")) << seed;
  }
}

// What the simulated disk has not: links.
class LinksAsideTest : public TierFolderTest {
 protected:
  LinksAsideTest() { SetLogLevel(LogLevel::kError); }

  void Link(const std::string& name) {
    std::filesystem::create_symlink(parent_ / "elsewhere", parent_ / name);
  }

  RealStorage storage_;
  const OpenedFile root_{storage_, *storage_.OpenRoot(parent_)};
};

TEST_F(LinksAsideTest, ALinkIsNeverFollowedAndStays) {
  std::filesystem::create_directory(parent_ / "elsewhere");
  Link("lock");
  Link("keys");
  EXPECT_TRUE(OpenLockFile(storage_, root_.id(), "lock"));
  EXPECT_TRUE(OpenOrMake(storage_, root_.id(), "keys"));
  for (const char* name : {"lock.aside-1", "keys.aside-1"}) {
    EXPECT_TRUE(std::filesystem::is_symlink(parent_ / name)) << name;
  }
  EXPECT_TRUE(std::filesystem::is_regular_file(std::filesystem::symlink_status(parent_ / "lock")));
  EXPECT_TRUE(std::filesystem::is_directory(std::filesystem::symlink_status(parent_ / "keys")));
  EXPECT_TRUE(std::filesystem::is_empty(parent_ / "elsewhere"));
}

TEST_F(LinksAsideTest, OnlyLinksInThePlaceOfKeysAreLinksToKeys) {
  std::filesystem::create_directory(parent_ / "keys.aside-3");
  EXPECT_EQ(HasLinkedKeys(storage_, root_.id()), false) << "a folder";
  Link("locks");
  EXPECT_EQ(HasLinkedKeys(storage_, root_.id()), false) << "another name";
  Link("keys.aside-1");
  EXPECT_EQ(HasLinkedKeys(storage_, root_.id()), true);
  EXPECT_EQ(LinksToKeys(storage_, root_.id()), std::vector<std::string>{"keys.aside-1"});
}

TEST_F(LinksAsideTest, ListsTheLinksOfStoresTheirKeysAndThoseOfRows) {
  const std::string store(kStoreDigits, 'a'), other(kStoreDigits, 'b');
  std::filesystem::create_directory(parent_ / store);
  for (const std::string& name : {other, other + ".aside-1", store + "/keys", std::string("any"),
                                  std::string(kRowsKeysName), std::string("x.aside-1")}) {
    Link(name);
  }
  auto links = ListLinks(storage_, root_.id());
  ASSERT_TRUE(links);
  std::ranges::sort(*links);
  std::vector<std::string> expected = {other + ".aside-1", store + "/keys",
                                       std::string(kRowsKeysName)};
  std::ranges::sort(expected);
  EXPECT_EQ(*links, expected) << "the name of a store alone does not say that it is ours";
}

}  // namespace
}  // namespace kvasir
