#include "block/block_pool.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <set>

#include "base/random.h"
#include "block/block_table.h"

namespace kvasir {
namespace {

constexpr uint64_t kBlockBytes = 1024;

std::unique_ptr<BlockPool> MakePool(uint32_t num_blocks) {
  auto pool = BlockPool::Create(kBlockBytes, num_blocks);
  EXPECT_TRUE(pool);
  return std::move(*pool);
}

TEST(BlockPool, HandsOutEachBlockOnceAlignedAndThenNone) {
  auto pool = MakePool(3);
  EXPECT_EQ(pool->arena_bytes(), 3 * pool->block_bytes());
  std::set<BlockId> ids;
  std::vector<BlockRef> refs;
  for (int i = 0; i < 3; ++i) {
    refs.push_back(pool->Allocate());
    ASSERT_TRUE(refs.back());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(refs.back().data()) % 64, 0u);
    std::memset(refs.back().mutable_data(), i, pool->block_bytes());
    ids.insert(refs.back().id());
  }
  EXPECT_EQ(ids.size(), 3u);
  EXPECT_FALSE(pool->Allocate());
  refs.clear();
  EXPECT_EQ(pool->num_free(), 3u);
}

TEST(BlockPool, RefusesSizesThatDoNotFitTheAddressSpace) {
  EXPECT_EQ(BlockPool::Create(kBlockBytes, 0).error().code, Code::kInvalidArgument);
  constexpr uint64_t kHuge = uint64_t{1} << 38;
  EXPECT_EQ(BlockPool::Create(kHuge, 1u << 20).error().code, Code::kExhausted);
}

TEST(BlockPool, ScrubZeroesWhenTheLastPinGoes) {
  auto pool = MakePool(1);
  BlockRef ref = pool->Allocate();
  const size_t bytes = pool->block_bytes();
  std::memset(ref.mutable_data(), 7, bytes);
  BlockRef other = ref.Share();
  pool->Scrub(ref.id());
  ref.Reset();
  EXPECT_EQ(other.data()[0], std::byte{7});
  other.Reset();
  ref = pool->Allocate();
  for (size_t i = 0; i < bytes; ++i) ASSERT_EQ(ref.data()[i], std::byte{0});
}

TEST(BlockPool, ZeroAllZeroesWhatFreeBlocksHold) {
  auto pool = MakePool(3);
  const size_t bytes = pool->block_bytes();
  for (BlockRef ref = pool->Allocate(), other = pool->Allocate();
       BlockRef * each : {&ref, &other}) {
    std::memset(each->mutable_data(), 7, bytes);
  }
  pool->ZeroAll();
  const BlockRef refs[] = {pool->Allocate(), pool->Allocate(), pool->Allocate()};
  for (const BlockRef& ref : refs) {
    for (size_t i = 0; i < bytes; ++i) ASSERT_EQ(ref.data()[i], std::byte{0});
  }
}

TEST(BlockTable, KeepsBasesBesideItsPinsAndReleasesTheTailFirst) {
  struct Order : BlockPool::Observer {
    std::vector<BlockId> freed;
    void OnIdle(BlockId) override {}
    void OnPinned(BlockId) override {}
    void OnFreed(BlockId id) override { freed.push_back(id); }
  } order;
  auto pool = MakePool(4);
  pool->set_observer(&order);
  std::vector<BlockId> ids;
  {
    BlockTable table;
    for (int i = 0; i < 3; ++i) {
      table.Append(pool->Allocate());
      ids.push_back(table.ref(i).id());
    }
    BlockRef old = table.Replace(1, pool->Allocate());
    EXPECT_EQ(old.id(), ids[1]);
    ids[1] = table.ref(1).id();
    for (int i = 0; i < 3; ++i) EXPECT_EQ(table.bases()[i], table.ref(i).data());
    old.Reset();
    order.freed.clear();
    BlockTable moved = std::move(table);
    EXPECT_EQ(moved.size(), 3u);
  }
  EXPECT_EQ(order.freed, (std::vector<BlockId>{ids[2], ids[1], ids[0]}));
}

// The naive twin: each block's pins, whether it is retained, and the stamp written into it.
class BlockPoolModel : public testing::TestWithParam<uint64_t>, public BlockPool::Observer {
 protected:
  struct Twin {
    uint32_t pins = 0;
    bool retained = false;
    uint8_t stamp = 0;
  };

  void OnIdle(BlockId id) override { EXPECT_TRUE(idle_.insert(id).second); }
  void OnPinned(BlockId id) override { EXPECT_EQ(idle_.erase(id), 1u); }
  void OnFreed(BlockId id) override { EXPECT_TRUE(freed_.insert(id).second); }

  void Check(const BlockPool& pool) {
    pool.CheckInvariants();
    uint32_t idle = 0, pinned = 0;
    for (const auto& [id, twin] : twins_) {
      EXPECT_EQ(pool.pin_count(id), twin.pins);
      (twin.pins > 0 ? pinned : idle) += 1;
      EXPECT_EQ(idle_.contains(id), twin.pins == 0);
      EXPECT_EQ(pool.data(id)[pool.block_bytes() - 1], std::byte{twin.stamp});
    }
    EXPECT_EQ(pool.num_idle(), idle);
    EXPECT_EQ(pool.num_pinned(), pinned);
    EXPECT_EQ(pool.num_free(), pool.num_blocks() - idle - pinned);
  }

  void Release(std::vector<BlockRef>& refs, size_t i) {
    const BlockId id = refs[i].id();
    freed_.clear();
    refs[i].Reset();
    refs.erase(refs.begin() + i);
    Twin& twin = twins_[id];
    const bool frees = --twin.pins == 0 && !twin.retained;
    EXPECT_EQ(freed_.contains(id), frees);
    if (frees) twins_.erase(id);
  }

  std::map<BlockId, Twin> twins_;  // of blocks that are not free
  std::set<BlockId> idle_, freed_;
};

TEST_P(BlockPoolModel, BehavesLikeItsTwin) {
  SCOPED_TRACE(testing::Message() << "seed " << GetParam());
  Random random(GetParam());
  auto pool = MakePool(12);
  pool->set_observer(this);
  std::vector<BlockRef> refs;
  for (int step = 0; step < 3000 && !HasFailure(); ++step) {
    const size_t pick = refs.empty() ? 0 : random.Below(refs.size());
    switch (random.Below(6)) {
      case 0:
        if (BlockRef ref = pool->Allocate()) {
          EXPECT_FALSE(twins_.contains(ref.id()));
          twins_[ref.id()] = {1, false, static_cast<uint8_t>(random.Bits())};
          std::memset(ref.mutable_data(), twins_[ref.id()].stamp, pool->block_bytes());
          refs.push_back(std::move(ref));
        } else {
          EXPECT_EQ(twins_.size(), 12u);
        }
        break;
      case 1:
        if (refs.empty()) break;
        refs.push_back(refs[pick].Share());
        ++twins_[refs.back().id()].pins;
        break;
      case 2:
        if (refs.empty()) break;
        if ((twins_[refs[pick].id()].retained = random.Below(2) == 0)) {
          pool->Retain(refs[pick].id());
        } else {
          pool->Unretain(refs[pick].id());
        }
        break;
      case 3:
        if (idle_.empty()) break;
        refs.push_back(pool->Pin(*idle_.begin()));
        ++twins_[refs.back().id()].pins;
        break;
      case 4:
        if (idle_.empty()) break;
        twins_.erase(*idle_.begin());
        pool->Reclaim(*idle_.begin());
        idle_.erase(idle_.begin());
        break;
      case 5:
        if (!refs.empty()) Release(refs, pick);
        break;
    }
    Check(*pool);
  }
  while (!refs.empty()) Release(refs, refs.size() - 1);
  EXPECT_EQ(pool->num_pinned(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Seeds, BlockPoolModel, testing::Range<uint64_t>(1, 9));

TEST(BlockPoolDeathTest, DyingWithAPinIsABug) {
  EXPECT_DEATH(
      {
        auto pool = MakePool(2);
        BlockRef ref = pool->Allocate();
        pool.reset();
      },
      "num_pinned");
}

#if defined(__SANITIZE_ADDRESS__)
TEST(BlockPoolDeathTest, ReadingAFreeBlockIsCaught) {
  auto pool = MakePool(2);
  const std::byte* stale = pool->Allocate().data();
  EXPECT_DEATH(std::fprintf(stderr, "%d", static_cast<int>(stale[0])), "use-after-poison");
}
#endif

}  // namespace
}  // namespace kvasir
