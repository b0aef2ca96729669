#include "schedule/held_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <vector>

namespace kvasir {
namespace {

constexpr uint32_t kHeldHidden = 5, kHeldVocab = 130;  // three words of bits

TEST(HeldRows, TakesTheBytesThatWerePlanned) {
  const HeldRows rows(3, kHeldHidden, kHeldVocab);
  EXPECT_EQ(rows.bytes(), 3 * (kHeldHidden * sizeof(float) + 3 * sizeof(uint64_t)));
  EXPECT_EQ(HeldRows::BytesFor(3, kHeldHidden, kHeldVocab), rows.bytes());
}

TEST(HeldRows, GivesEachRowOnceAndNoMoreThanItHas) {
  HeldRows rows(3, kHeldHidden, kHeldVocab);
  std::vector<HeldRows::Held> held;
  for (int i = 0; i < 3; ++i) held.push_back(rows.Take());
  EXPECT_NE(held[0], held[1]);
  EXPECT_NE(held[0], held[2]);
  EXPECT_NE(held[1], held[2]);
  EXPECT_DEATH(rows.Take(), "empty");
  const HeldRow* const given = held[1].get();
  held.erase(held.begin() + 1);
  EXPECT_EQ(rows.Take().get(), given);
}

TEST(HeldRows, WhatComesBackIsZeros) {
  HeldRows rows(1, kHeldHidden, kHeldVocab);
  HeldRow* const row = rows.Take().release();
  std::ranges::fill(row->hidden, 7.0F);
  std::ranges::fill(row->legal, ~uint64_t{0});
  HeldRows::Held(row, HeldRows::GiveBack{&rows}).reset();
  const auto is_zero = [](auto number) { return number == 0; };
  EXPECT_EQ(row->hidden.size(), kHeldHidden);
  EXPECT_TRUE(std::ranges::all_of(row->hidden, is_zero)) << "before it is taken again";
  EXPECT_TRUE(std::ranges::all_of(row->legal, is_zero));
  EXPECT_EQ(rows.Take().get(), row);
}

}  // namespace
}  // namespace kvasir
