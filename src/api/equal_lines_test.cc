#include "api/equal_lines.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

namespace kvasir {
namespace {

// Around the 64 lines that are compared at once, and twice as many.
TEST(NumEqualLines, EqualsALineByLineComparison) {
  for (size_t size = 0; size <= 200; ++size) {
    std::vector<uint64_t> one(size);
    std::iota(one.begin(), one.end(), 1);
    for (size_t at = 0; at <= size; ++at) {
      std::vector<uint64_t> other = one;
      if (at < size) other[at] ^= uint64_t{1} << 63;
      ASSERT_EQ(NumEqualLines(one, other), at) << size;
      const auto shorter = std::span(one).first(at);
      ASSERT_EQ(NumEqualLines(shorter, one), at) << size;
      ASSERT_EQ(NumEqualLines(one, shorter), at) << size;
    }
  }
}

TEST(NumEqualLines, WhatFollowsADifferenceDoesNotCount) {
  std::vector<uint64_t> one(130, 7), other(130, 7);
  other[65] = 8;
  EXPECT_EQ(NumEqualLines(one, other), 65u);
}

}  // namespace
}  // namespace kvasir
