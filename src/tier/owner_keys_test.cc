#include "tier/owner_keys.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace kvasir {
namespace {

OwnerKey SomeKey(uint64_t seed) {
  Random random(seed);
  OwnerKey key;
  for (auto& byte : key.owner) byte = static_cast<uint8_t>(random.Bits());
  for (auto& byte : key.key) byte = static_cast<uint8_t>(random.Bits());
  for (auto& byte : key.namespace_id) byte = static_cast<uint8_t>(random.Bits());
  return key;
}

TEST(OwnerKeys, AFileIsUnsealedOnlyUnderItsSecretStoreAndNameAndWithAllItsBytes) {
  const Secret secret{1}, other{2};
  const StoreId store{3}, other_store{4};
  const OwnerKey key = SomeKey(5);
  const std::string name = KeyFileName(secret, key.owner);
  const auto file = SealKeyFile(secret, store, key, RecordSalt{6});
  ASSERT_TRUE(file);
  const auto opened = UnsealKeyFile(secret, store, name, *file);
  ASSERT_TRUE(opened);
  EXPECT_EQ(opened->key, key.key);
  EXPECT_EQ(opened->owner, key.owner);
  EXPECT_EQ(opened->namespace_id, key.namespace_id);
  EXPECT_FALSE(UnsealKeyFile(other, store, name, *file));
  EXPECT_FALSE(UnsealKeyFile(secret, other_store, name, *file));
  EXPECT_FALSE(UnsealKeyFile(secret, store, KeyFileName(secret, Digest{9}), *file));
  EXPECT_FALSE(UnsealKeyFile(secret, store, name, std::span(*file).first(135)));
  EXPECT_FALSE(UnsealKeyFile(secret, store, name, {}));
  for (size_t bit = 0; bit < file->size() * 8; ++bit) {
    KeyFileBytes flipped = *file;
    flipped[bit / 8] ^= std::byte(1 << bit % 8);
    EXPECT_FALSE(UnsealKeyFile(secret, store, name, flipped)) << "bit " << bit;
  }
}

TEST(OwnerKeys, AHiddenOwnerIsNotFoundAndItsPlaceIsTakenOnlyAfterRelease) {
  auto keys = OwnerKeys::Create(2);
  ASSERT_TRUE(keys);
  const OwnerId one = *keys->Add(SomeKey(1));
  keys->set_has_file(one);
  EXPECT_EQ(keys->Find(SomeKey(1).owner), one);
  EXPECT_EQ(keys->FindNamespace(SomeKey(1).namespace_id), one);
  keys->Hide(one);
  EXPECT_FALSE(keys->Find(SomeKey(1).owner));
  ASSERT_TRUE(keys->Add(SomeKey(1)));
  EXPECT_FALSE(keys->Add(SomeKey(2)));
  keys->Release(one);
  EXPECT_TRUE(keys->Add(SomeKey(2)));
}

}  // namespace
}  // namespace kvasir
