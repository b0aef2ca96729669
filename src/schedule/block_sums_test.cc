#include "schedule/block_sums.h"

#include <gtest/gtest.h>

namespace kvasir {
namespace {

TEST(BlockSums, SlotsAreZeroAndComeBack) {
  BlockSums sums({.rows = 3, .blocks = 10}, 2);
  EXPECT_EQ(sums.bytes(), 2u * 3 * 10 * 4);
  BlockSums::Slot one = sums.Take(4);
  for (uint32_t row = 0; row < 3; ++row) one.data()[row * one.stride() + 2] = 1.5f;
  EXPECT_EQ(one.SumOf(2), 4.5f);
  EXPECT_EQ(one.SumOf(3), 0);
  BlockSums::Slot copy = one.Copy();
  one.Release();
  EXPECT_FALSE(one.is_taken());
  EXPECT_EQ(copy.SumOf(2), 4.5f);
  BlockSums::Slot other = sums.Take(10);
  for (uint32_t i = 0; i < 30; ++i) EXPECT_EQ(other.data()[i], 0);
  other = std::move(copy);  // gives back what it had
  EXPECT_EQ(other.SumOf(2), 4.5f);
  EXPECT_TRUE(sums.Take(1).is_taken());
  EXPECT_FALSE(BlockSums::Slot().Copy().is_taken());
}

}  // namespace
}  // namespace kvasir
