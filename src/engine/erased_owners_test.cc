#include "engine/erased_owners.h"

#include <gtest/gtest.h>

namespace kvasir {
namespace {

constexpr OwnerDigest kAnna{1}, kBert{2};

ErasedOwner ErasedAt(const OwnerDigest& owner, uint64_t epoch, bool elsewhere = true) {
  return {.owner = owner, .epoch = epoch, .elsewhere = elsewhere};
}

TEST(ErasedOwners, AreNotedWhenCacheAndSessionsAreErased) {
  for (const bool cache_first : {true, false}) {
    ErasedOwners owners;
    owners.Begin(ErasedAt(kAnna, 5));
    ASSERT_EQ(owners.List().size(), 1u);
    EXPECT_EQ(owners.List()[0].owner, kAnna);
    EXPECT_EQ(owners.List()[0].epoch, 5u);
    if (cache_first) EXPECT_FALSE(owners.EndCache(ErasedAt(kAnna, 5)));
    if (!cache_first) EXPECT_FALSE(owners.EndOthers({kAnna, 5}));
    EXPECT_EQ(owners.List().size(), cache_first ? 1u : 0u);
    const auto note =
        cache_first ? owners.EndOthers({kAnna, 5}) : owners.EndCache(ErasedAt(kAnna, 5));
    EXPECT_EQ(note, ErasedAt(kAnna, 5));
    EXPECT_TRUE(owners.List().empty());
  }
}

TEST(ErasedOwners, AnEraseThatComesMeanwhileIsDoneToo) {
  ErasedOwners owners;
  owners.Begin(ErasedAt(kAnna, 5));
  owners.Begin(ErasedAt(kAnna, 7));
  EXPECT_FALSE(owners.EndCache(ErasedAt(kAnna, 5)));
  EXPECT_FALSE(owners.EndOthers({kAnna, 5}));
  EXPECT_FALSE(owners.EndCache(ErasedAt(kAnna, 7))) << "sessions of between may be left";
  ASSERT_EQ(owners.List().size(), 1u);
  EXPECT_EQ(owners.EndOthers(owners.List()[0]), ErasedAt(kAnna, 7));
}

// Blocks alone are erased where an erase is tried again, and of owners that are new here.
TEST(ErasedOwners, OnesOfBlocksAloneLeaveSessions) {
  ErasedOwners owners;
  owners.Begin(ErasedAt(kBert, 3, false));
  EXPECT_TRUE(owners.List().empty());
  EXPECT_EQ(owners.EndCache(ErasedAt(kBert, 3, false)), ErasedAt(kBert, 3, false));
  owners.Begin(ErasedAt(kAnna, 5));
  EXPECT_FALSE(owners.EndOthers({kAnna, 5}));
  owners.Begin(ErasedAt(kAnna, 5, false));
  EXPECT_TRUE(owners.List().empty()) << "sessions made since then stay";
  EXPECT_EQ(owners.EndCache(ErasedAt(kAnna, 5, false)), ErasedAt(kAnna, 5));
}

}  // namespace
}  // namespace kvasir
