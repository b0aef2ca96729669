#include "cache/block_owners.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

namespace kvasir {
namespace {

constexpr NamespaceId kAlice{1}, kBob{2};
constexpr uint64_t kBytes = 256;

class BlockOwnersTest : public testing::Test {
 protected:
  void SetUp() override {
    auto made = BlockPool::Create(kBytes, 4);
    ASSERT_TRUE(made);
    pool_ = std::move(*made);
    owners_ = std::make_unique<BlockOwners>(*pool_);
  }
  void TearDown() override { owners_->CheckInvariants(); }
  BlockRef Write(NamespaceId ns) {
    BlockRef block = pool_->Allocate();
    owners_->Take(block, ns);
    std::memset(block.mutable_data(), 0x5a, kBytes);
    return block;
  }
  static bool IsZero(const BlockRef& block) {
    return std::all_of(block.data(), block.data() + kBytes,
                       [](std::byte byte) { return byte == std::byte{0}; });
  }

  std::unique_ptr<BlockPool> pool_;
  std::unique_ptr<BlockOwners> owners_;
};

TEST_F(BlockOwnersTest, RemembersTheOwnerOfAFreeBlock) {
  BlockRef block = Write(kAlice);
  const BlockId id = block.id();
  EXPECT_EQ(owners_->of(id), kAlice);
  block.Reset();
  EXPECT_TRUE(owners_->is_known(id));
  EXPECT_EQ(owners_->of(id), kAlice);
}

TEST_F(BlockOwnersTest, ZeroesWhatWasForgottenAndNothingElse) {
  std::vector<BlockRef> blocks;
  for (const NamespaceId ns : {kAlice, kBob, kAlice}) blocks.push_back(Write(ns));
  const BlockId alice = blocks[0].id(), bob = blocks[1].id();
  blocks.clear();
  const uint64_t point = owners_->Forget(kAlice);
  EXPECT_FALSE(owners_->IsZeroed(point));
  owners_->Zero(1);  // one block at a time
  EXPECT_FALSE(owners_->IsZeroed(point));
  owners_->Zero(4 * kBytes);
  EXPECT_TRUE(owners_->IsZeroed(point));
  EXPECT_FALSE(owners_->is_known(alice));
  EXPECT_EQ(owners_->of(bob), kBob);
}

TEST_F(BlockOwnersTest, ZeroesAForgottenBlockBeforeAnotherSequenceGetsIt) {
  const BlockId id = Write(kAlice).id();
  const uint64_t point = owners_->Forget(kAlice);
  BlockRef again = pool_->Allocate();
  ASSERT_EQ(again.id(), id);
  owners_->Take(again, kBob);
  EXPECT_TRUE(IsZero(again));
  EXPECT_TRUE(owners_->IsZeroed(point));
}

TEST_F(BlockOwnersTest, ZeroesABlockInUseAtItsLastRelease) {
  BlockRef block = Write(kAlice);
  const uint64_t point = owners_->Forget(kAlice);
  EXPECT_TRUE(owners_->IsZeroed(point));  // it speaks of blocks that were free
  EXPECT_FALSE(IsZero(block));
  block.Reset();
  EXPECT_TRUE(IsZero(pool_->Allocate()));
}

}  // namespace
}  // namespace kvasir
