#include "schedule/mean_rows.h"

#include <gtest/gtest.h>

namespace kvasir {
namespace {

TEST(MeanRows, SumsInDoubleByPosition) {
  MeanRows rows;
  rows.Add(0, std::vector<float>{1.0f, 16777216.0f});
  rows.Add(1, std::vector<float>{2.0f, 1.0f});
  rows.Add(2, std::vector<float>{6.0f, 1.0f});
  EXPECT_EQ(rows.Mean(), (std::vector<float>{3.0f, static_cast<float>(16777218.0 / 3)}));
}

TEST(MeanRows, CountsARowThatIsComputedAgainOnce) {
  MeanRows rows;
  rows.Add(0, std::vector<float>{1.0f});
  rows.Add(1, std::vector<float>{3.0f});
  rows.Add(0, std::vector<float>{1.0f});
  rows.Add(1, std::vector<float>{3.0f});
  rows.Add(2, std::vector<float>{5.0f});
  EXPECT_EQ(rows.Mean(), std::vector<float>{3.0f});
}

TEST(MeanRowsDeathTest, AMissingRowIsABug) {
  MeanRows rows;
  rows.Add(0, std::vector<float>{1.0f});
  EXPECT_DEATH(rows.Add(2, std::vector<float>{1.0f}), "position");
}

}  // namespace
}  // namespace kvasir
