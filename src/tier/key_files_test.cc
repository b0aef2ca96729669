#include "tier/key_files.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/log.h"
#include "tier/sim_storage_for_test.h"

namespace kvasir {
namespace {

class KeyFilesTest : public testing::Test {
 protected:
  KeyFilesTest() { SetLogLevel(LogLevel::kError); }

  static OwnerKey KeyOfOwner(uint8_t owner) {
    OwnerKey key;
    key.owner.fill(owner);
    key.key.fill(static_cast<uint8_t>(owner + 100));
    key.namespace_id.fill(static_cast<uint8_t>(owner + 200));
    return key;
  }
  static std::string NameOfOwner(uint8_t owner) {
    return KeyFileName(kSecret, KeyOfOwner(owner).owner);
  }
  void Write(uint8_t owner) {
    EXPECT_TRUE(WriteKeyFile(storage_, keys_, kSecret, kStore, KeyOfOwner(owner)));
  }
  void Put(const std::string& name, const std::string& text) {
    EXPECT_TRUE(PublishFile(storage_, keys_, name, text, FileSync::kSynced));
  }
  void Damage(uint8_t owner) {
    std::string bytes = *ReadSmallFile(storage_, keys_, NameOfOwner(owner), kKeyFileBytes);
    bytes[bytes.size() / 2] ^= 1;
    Put(NameOfOwner(owner), bytes);
  }
  // Returns the first bytes of the owners whose keys are loaded, in order.
  std::vector<int> Owners(const Secret& secret = kSecret, const StoreId& store = kStore) {
    const auto loaded = LoadKeys(storage_, keys_, secret, store);
    EXPECT_TRUE(loaded);
    std::vector<int> owners;
    for (const OwnerKey& key : *loaded) owners.push_back(key.owner[0]);
    std::ranges::sort(owners);
    return owners;
  }
  std::vector<std::string> Unread(const Secret& secret = kSecret) {
    auto unread = UnreadKeys(storage_, keys_, secret, kStore);
    EXPECT_TRUE(unread);
    std::ranges::sort(*unread);
    return *unread;
  }
  bool HasFile(const std::string& name) { return storage_.FactsOf(keys_, name).has_value(); }

  static constexpr Secret kSecret{1}, kOtherSecret{2};
  static constexpr StoreId kStore{3};
  SimStorage storage_{1};
  const FileId keys_ = *storage_.OpenRoot("/sim");
};

TEST_F(KeyFilesTest, GiveEachOwnerItsKeyBack) {
  Write(1);
  Write(2);
  Put("notes", "not a key file");
  EXPECT_EQ(Owners(), (std::vector<int>{1, 2}));
  EXPECT_EQ(Unread(), std::vector<std::string>{});
  const auto loaded = LoadKeys(storage_, keys_, kSecret, kStore);
  for (const OwnerKey& key : *loaded) {
    EXPECT_EQ(key.key, KeyOfOwner(key.owner[0]).key);
    EXPECT_EQ(key.namespace_id, KeyOfOwner(key.owner[0]).namespace_id);
  }
}

TEST_F(KeyFilesTest, AreOfOneSecretAndOneStore) {
  Write(1);
  EXPECT_EQ(Owners(kOtherSecret), std::vector<int>{});
  EXPECT_EQ(Owners(kSecret, StoreId{4}), std::vector<int>{});
  EXPECT_EQ(Unread(kOtherSecret), std::vector<std::string>{NameOfOwner(1)});
}

TEST_F(KeyFilesTest, AFileUnderAnotherOwnersNameIsNotRead) {
  Write(1);
  ASSERT_TRUE(storage_.Rename(keys_, NameOfOwner(1), NameOfOwner(2)));
  EXPECT_EQ(Owners(), std::vector<int>{});
  EXPECT_EQ(Unread(), std::vector<std::string>{NameOfOwner(2)});
}

TEST_F(KeyFilesTest, AnErrorOfTheDiskIsNotAMissingKey) {
  Write(1);
  storage_.faults.read_error = 65536;
  EXPECT_FALSE(LoadKeys(storage_, keys_, kSecret, kStore));
  EXPECT_FALSE(UnreadKeys(storage_, keys_, kSecret, kStore));
  EXPECT_FALSE(WriteKeyFile(storage_, keys_, kSecret, kStore, KeyOfOwner(1)));
  storage_.faults.read_error = 0;
  EXPECT_EQ(Owners(), std::vector<int>{1}) << "nothing was set aside";
}

TEST_F(KeyFilesTest, ANewKeySetsADamagedOneAside) {
  Write(1);
  Damage(1);
  EXPECT_EQ(Owners(), std::vector<int>{});
  Write(1);
  EXPECT_EQ(Owners(), std::vector<int>{1});
  EXPECT_EQ(Unread(), std::vector<std::string>{NameOfOwner(1) + ".aside-1"});
  Write(1);
  EXPECT_FALSE(HasFile(NameOfOwner(1) + ".aside-2")) << "a good one is replaced";
}

TEST_F(KeyFilesTest, RemovingAKeyRemovesWhatWasSetAsideForIt) {
  for (const uint8_t owner : {1, 2}) {
    Write(owner);
    Damage(owner);
    Write(owner);
  }
  EXPECT_EQ(RemoveKeyFile(storage_, keys_, NameOfOwner(1)), true);
  EXPECT_EQ(RemoveKeyFile(storage_, keys_, NameOfOwner(1)), false);
  EXPECT_EQ(Owners(), std::vector<int>{2});
  EXPECT_EQ(Unread(), std::vector<std::string>{NameOfOwner(2) + ".aside-1"});
}

TEST_F(KeyFilesTest, RemovingUnreadKeysOfAnOwnerKeepsItsGoodOne) {
  Write(1);
  Damage(1);
  Write(1);
  Write(2);
  Damage(2);
  Write(3);
  Damage(3);
  for (const uint8_t owner : {1, 2}) {
    EXPECT_TRUE(RemoveUnreadKeysOf(storage_, keys_, kSecret, kStore, NameOfOwner(owner)));
  }
  EXPECT_EQ(Owners(), std::vector<int>{1});
  EXPECT_EQ(Unread(), std::vector<std::string>{NameOfOwner(3)});
  EXPECT_TRUE(RemoveUnreadKeys(storage_, keys_, kSecret, kStore));
  EXPECT_EQ(Owners(), std::vector<int>{1});
  EXPECT_EQ(Unread(), std::vector<std::string>{});
}

}  // namespace
}  // namespace kvasir
