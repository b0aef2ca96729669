#include "api/line_changes.h"

#include <gtest/gtest.h>

#include <string>

#include "base/random.h"
#include "base/rounds_for_test.h"

namespace kvasir {
namespace {

std::vector<uint64_t> LinesFrom(std::string_view letters) {
  return {letters.begin(), letters.end()};
}
std::vector<LineChange> ChangesOf(std::string_view here, std::string_view there) {
  return ChangesBetween(LinesFrom(here), LinesFrom(there));
}

TEST(LineChanges, AreLinesChangedAddedAndRemoved) {
  EXPECT_EQ(ChangesOf("abcdef", "abXdef"), (std::vector{LineChange{2, 1, 3, 6}}));
  EXPECT_EQ(ChangesOf("Xbcdef", "abcdef"), (std::vector{LineChange{0, 1, 1, 6}}));
  EXPECT_EQ(ChangesOf("abXYcdef", "abcdef"), (std::vector{LineChange{2, 2, 4, 8}}));
  EXPECT_EQ(ChangesOf("abcdef", "abXYcdef"), (std::vector{LineChange{2, 0, 2, 6}}));
  EXPECT_EQ(ChangesOf("XbcYde", "abcZde"),
            (std::vector{LineChange{0, 1, 1, 3}, LineChange{3, 1, 4, 6}}));
}

TEST(LineChanges, ATextThatGoesOnHasNone) {
  EXPECT_TRUE(ChangesOf("abcdef", "abc").empty());
  EXPECT_TRUE(ChangesOf("abc", "abcdef").empty());
  EXPECT_TRUE(ChangesOf("abc", "abc").empty());
  EXPECT_TRUE(ChangesOf("", "abc").empty());
  EXPECT_TRUE(ChangesOf("abcd", "wxyz").empty());
  EXPECT_TRUE(ChangesOf("abXYZUVWSTQdef", "abdef").empty()) << "9 lines were added";
  EXPECT_TRUE(ChangesOf("aXc", "aYc").empty()) << "one equal line says nothing";
}

TEST(LineChanges, TwoEqualLinesMayBeChance) {
  // Two braces stand nearer than the lines that were only moved.
  EXPECT_EQ(ChangesOf("aXY{}bcdef", "a{}Z{}bcdef"), (std::vector{LineChange{1, 2, 3, 10}}));
}

TEST(LineChanges, FourAreNot) {
  EXPECT_EQ(ChangesOf("XabcdYefghijkl", "WabcdZefghijkl"),
            (std::vector{LineChange{0, 1, 1, 5}, LineChange{5, 1, 6, 14}}));
}

// Compares by the longest common subsequence, by its definition: [i][j] of the rests from i and j.
std::vector<LineChange> Naive(const std::vector<uint64_t>& here,
                              const std::vector<uint64_t>& there) {
  std::vector<std::vector<int>> most(here.size() + 1, std::vector<int>(there.size() + 1, 0));
  for (size_t i = here.size(); i-- > 0;) {
    for (size_t j = there.size(); j-- > 0;) {
      most[i][j] =
          here[i] == there[j] ? most[i + 1][j + 1] + 1 : std::max(most[i + 1][j], most[i][j + 1]);
    }
  }
  std::vector<LineChange> changes;
  uint32_t i = 0, j = 0;
  while (i < here.size() && j < there.size() && here[i] == there[j]) ++i, ++j;
  while (i < here.size() && j < there.size()) {
    LineChange change{.line = i};
    while (i < here.size() && j < there.size() && here[i] != there[j]) {
      most[i + 1][j] >= most[i][j + 1] ? ++i : ++j;
    }
    if (i == here.size() || j == there.size()) break;
    change.num_lines = i - change.line;
    change.equal_begin = i;
    while (i < here.size() && j < there.size() && here[i] == there[j]) ++i, ++j;
    change.equal_end = i;
    changes.push_back(change);
  }
  return changes;
}

// Lines of one text are all different: then there is one longest common subsequence.
TEST(LineChanges, AreThoseOfTheLongestCommonSubsequence) {
  constexpr int kPairs = Rounds(10'000, 500);
  Random random(7);
  size_t with_changes = 0;
  for (int round = 0; round < kPairs; ++round) {
    std::vector<uint64_t> here, there;
    uint64_t fresh = 1000;
    const uint64_t wanted = random.Below(kMostChanges + 1);
    for (uint64_t change = 0; change <= wanted; ++change) {
      if (change > 0) {
        const uint64_t mine = random.Below(4), others = random.Below(4);
        for (uint64_t k = 0; k < mine; ++k) here.push_back(fresh++);
        for (uint64_t k = 0; k < others; ++k) there.push_back(fresh++);
      }
      for (uint64_t k = 4 + random.Below(20); k > 0; --k) {
        here.push_back(fresh);
        there.push_back(fresh++);
      }
    }
    const std::vector<LineChange> expected = Naive(here, there);
    ASSERT_EQ(ChangesBetween(here, there), expected) << "round " << round;
    with_changes += !expected.empty();
  }
  EXPECT_GT(with_changes, static_cast<size_t>(kPairs) / 2);
}

}  // namespace
}  // namespace kvasir
