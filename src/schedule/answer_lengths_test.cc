#include "schedule/answer_lengths.h"

#include <gtest/gtest.h>

namespace kvasir {
namespace {

TEST(AnswerLengths, AreUnknownUntilThereAreEnough) {
  AnswerLengths lengths(2, 256);
  EXPECT_EQ(lengths.Expected(1, 0), 256u);
  EXPECT_EQ(lengths.Expected(1, 100), 356u);
  for (uint32_t i = 1; i < AnswerLengths::kEnough; ++i) lengths.Add(0, 10);
  EXPECT_EQ(lengths.Expected(1, 0), 256u);
  lengths.Add(0, 10);
  EXPECT_EQ(lengths.Expected(1, 0), 10u) << "those of all tenants count until it has enough";
}

TEST(AnswerLengths, AreTheMeanOfThoseThatWereLonger) {
  AnswerLengths lengths(2, 256);
  for (uint32_t i = 0; i < 64; ++i) lengths.Add(0, 1000);
  for (uint32_t i = 0; i < 16; ++i) lengths.Add(1, i % 2 == 0 ? 20 : 100);
  EXPECT_EQ(lengths.Expected(1, 0), 60u);
  EXPECT_EQ(lengths.Expected(1, 19), 60u);
  EXPECT_EQ(lengths.Expected(1, 20), 100u);
  EXPECT_EQ(lengths.Expected(1, 100), 200u) << "none was longer: it may go on as long again";
  EXPECT_EQ(lengths.Expected(0, 500), 1000u);
}

TEST(AnswerLengths, OfTenantsWithoutANumberAreOfAll) {
  AnswerLengths lengths(2, 256);
  for (uint32_t i = 0; i < AnswerLengths::kKept; ++i) lengths.Add(0, 8);
  EXPECT_EQ(lengths.Expected(0, 0), 8u);
  EXPECT_FALSE(lengths.knows_tenant(0));
  EXPECT_EQ(lengths.ExpectedOfTenant(0, 0), 256u);
}

TEST(AnswerLengths, ForgetTheOldest) {
  AnswerLengths lengths(1, 256);
  for (uint32_t i = 0; i < AnswerLengths::kKept; ++i) lengths.Add(0, 1000);
  for (uint32_t i = 0; i < AnswerLengths::kKept; ++i) lengths.Add(0, 8);
  EXPECT_EQ(lengths.Expected(0, 0), 8u);
}

TEST(AnswerLengths, RiseWithPreemptionsAndFallAgain) {
  AnswerLengths lengths(1, 256);
  for (uint32_t i = 0; i < 16; ++i) lengths.Add(0, 100);
  EXPECT_EQ(lengths.Expected(0, 0), 100u);
  for (uint32_t i = 0; i < 100; ++i) lengths.RaiseFactor();
  EXPECT_EQ(lengths.Expected(0, 0), static_cast<uint32_t>(100 * AnswerLengths::kMaxFactor));
  for (uint32_t i = 0; i < 200; ++i) lengths.Add(0, 100);
  EXPECT_LE(lengths.Expected(0, 0), 101u);
}

}  // namespace
}  // namespace kvasir
