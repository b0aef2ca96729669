#include "base/byte_budget.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

namespace kvasir {
namespace {

TEST(ByteBudget, GivesUpToItsMaximum) {
  ByteBudget budget(100);
  EXPECT_TRUE(budget.Take(60));
  EXPECT_FALSE(budget.Take(41));
  EXPECT_EQ(budget.taken_bytes(), 60u);
  EXPECT_TRUE(budget.Take(40));
  budget.TakeAnyway(10);
  EXPECT_EQ(budget.taken_bytes(), 110u);
  EXPECT_FALSE(budget.Take(0));  // it is more than full
  EXPECT_FALSE(budget.Take(UINT64_MAX));
  budget.Give(50);
  EXPECT_TRUE(budget.Take(40));
}

TEST(ByteShare, ChangesUpAndDownAndGivesBackAtItsEnd) {
  ByteBudget budget(100);
  {
    ByteShare one(budget), other(budget);
    EXPECT_TRUE(one.Resize(70));
    EXPECT_FALSE(other.Resize(31));
    EXPECT_EQ(other.bytes(), 0u);
    EXPECT_TRUE(one.Resize(20));
    EXPECT_TRUE(other.Resize(80));
    other.ResizeAnyway(90);
    EXPECT_EQ(budget.taken_bytes(), 110u);
    EXPECT_TRUE(other.Resize(85));  // less is always possible
  }
  EXPECT_EQ(budget.taken_bytes(), 0u);
}

TEST(ByteShare, MovesItsBytes) {
  ByteBudget budget(100);
  ByteShare kept;
  {
    ByteShare share(budget);
    EXPECT_TRUE(share.Resize(40));
    kept = std::move(share);
  }
  EXPECT_EQ(budget.taken_bytes(), 40u);
  kept = ByteShare();
  EXPECT_EQ(budget.taken_bytes(), 0u);
}

TEST(ByteBudget, ManyThreadsNeverTakeMoreThanThereIs) {
  ByteBudget budget(1000);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&budget] {
      ByteShare share(budget);
      for (uint64_t i = 0; i < 20'000; ++i) {
        (void)share.Resize(i * 37 % 600);
        EXPECT_LE(budget.taken_bytes(), 1000u);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(budget.taken_bytes(), 0u);
}

}  // namespace
}  // namespace kvasir
