#include "base/parts.h"

#include <gtest/gtest.h>

#include <new>
#include <vector>

namespace kvasir {
namespace {

Parts Letters(char letter, size_t times, size_t bytes) {
  for (size_t i = 0; i < times; ++i) co_yield std::string(bytes, letter);
}

Parts Nothing() { co_return; }

Parts Nested(size_t depth) {
  co_yield "(";
  if (depth > 0) co_yield Nested(depth - 1);
  co_yield Nothing();
  co_yield Parts();
  co_yield ")";
}

Parts Mixed() {
  co_yield "[";
  co_yield Letters('a', 5, 3000);
  std::string named = "named";
  co_yield named;
  co_yield named.empty() ? "," : "kept";
  co_yield Letters('b', 3, 10000);
  co_yield "]";
}

TEST(Parts, JoinsTextsAndOtherParts) {
  EXPECT_EQ(Mixed().Rest(),
            "[" + std::string(15000, 'a') + "named," + std::string(30000, 'b') + "]");
  EXPECT_EQ(Nested(3).Rest(), "(((())))");
  EXPECT_EQ(Nothing().Rest(), "");
  EXPECT_EQ(Parts().Rest(), "");
}

TEST(Parts, EndsAPieceWhenItIsLongEnough) {
  Parts parts = Mixed();
  std::vector<size_t> sizes;
  for (std::string piece = parts.Next(); !piece.empty(); piece = parts.Next()) {
    sizes.push_back(piece.size());
  }
  const std::vector<size_t> expected = {9001, 6006 + 10000, 10000, 10000, 1};
  EXPECT_EQ(sizes, expected);
  EXPECT_TRUE(parts) << "it is at its end";
  EXPECT_EQ(parts.Next(), "");
}

TEST(Parts, MayBeDroppedBetweenTwoPieces) {
  Parts parts = Mixed();
  EXPECT_EQ(parts.Next().size(), 9001u);
  parts = Letters('c', 1, 1);
  EXPECT_EQ(parts.Next(), "c");
}

Parts ThrowsAfter(size_t bytes) {
  co_yield std::string(bytes, 'x');
  throw std::bad_alloc();
}

Parts Outer(size_t bytes) {
  co_yield "before";
  co_yield ThrowsAfter(bytes);
  co_yield "after";
}

Parts Catches() {
  std::string said;
  try {
    co_yield ThrowsAfter(1);
  } catch (const std::bad_alloc&) {
    said = ", caught";
  }
  co_yield said;
}

TEST(Parts, WhatMakingAPieceThrowsComesOutOfNext) {
  for (Parts (*make)(size_t) : {&ThrowsAfter, &Outer}) {
    Parts parts = make(kPartBytes);
    EXPECT_GE(parts.Next().size(), kPartBytes);
    EXPECT_THROW(parts.Next(), std::bad_alloc);
    EXPECT_EQ(parts.Next(), "") << "the text has ended";
    Parts at_once = make(1);
    EXPECT_THROW(at_once.Next(), std::bad_alloc);
    EXPECT_EQ(at_once.Next(), "") << "a piece that was not finished is dropped";
  }
  EXPECT_EQ(Catches().Rest(), "x, caught");
}

}  // namespace
}  // namespace kvasir
