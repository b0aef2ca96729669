#include "base/random_bytes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>
#include <vector>

namespace kvasir {
namespace {

TEST(FillRandom, EveryBitIsDrawn) {
  std::array<uint8_t, 16> all_set{}, all_clear{};
  std::ranges::fill(all_clear, 0xff);
  std::set<std::array<uint8_t, 16>> seen;
  for (int i = 0; i < 64; ++i) {
    std::array<uint8_t, 16> bytes;
    ASSERT_TRUE(FillRandom(bytes));
    EXPECT_TRUE(seen.insert(bytes).second);
    for (size_t b = 0; b < bytes.size(); ++b) {
      all_set[b] |= bytes[b];
      all_clear[b] &= bytes[b];
    }
  }
  // Each of 256 outcomes has a chance of 2^-64.
  EXPECT_EQ(std::ranges::count(all_set, 0xff), 16);
  EXPECT_EQ(std::ranges::count(all_clear, 0), 16);
}

TEST(FillRandom, LongSpansAreFilledToTheEnd) {
  std::vector<uint8_t> bytes(100'000);
  ASSERT_TRUE(FillRandom(bytes));
  for (size_t at = 0; at < bytes.size(); at += 1000) {
    const auto begin = bytes.begin() + static_cast<ptrdiff_t>(at);
    EXPECT_LT(std::count(begin, begin + 1000, 0), 50) << at;
  }
  EXPECT_TRUE(FillRandom({}));
}

}  // namespace
}  // namespace kvasir
