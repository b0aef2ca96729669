#include "base/hex.h"

#include <gtest/gtest.h>

#include <array>
#include <string>

namespace kvasir {
namespace {

TEST(Hex, EveryByteComesBack) {
  for (int value = 0; value < 256; ++value) {
    const std::array<uint8_t, 2> bytes = {static_cast<uint8_t>(value), 7};
    const std::string digits = ToHex(bytes);
    EXPECT_EQ(digits.size(), 4u);
    EXPECT_TRUE(IsHex(digits)) << digits;
    EXPECT_EQ(FromHex<2>(digits, HexCase::kLower), bytes) << digits;
    EXPECT_EQ(HexByte(digits[0], digits[1], HexCase::kLower), value) << digits;
  }
}

TEST(Hex, OnlySixteenCharactersAreDigitsAndSixMoreWithCapitals) {
  int num_lower = 0, num_any = 0;
  for (int i = 0; i < 256; ++i) {
    const char c = static_cast<char>(i);
    const auto lower = HexDigit(c, HexCase::kLower), any = HexDigit(c, HexCase::kAny);
    num_lower += lower.has_value();
    num_any += any.has_value();
    if (lower) EXPECT_EQ(lower, any) << c;
  }
  EXPECT_EQ(num_lower, 16);
  EXPECT_EQ(num_any, 22);
  EXPECT_EQ(HexDigit('F', HexCase::kAny), 15);
}

TEST(Hex, OtherTextIsNoBytes) {
  EXPECT_EQ(FromHex<2>("00ff", HexCase::kLower), (std::array<uint8_t, 2>{0, 255}));
  EXPECT_EQ(FromHex<2>("00fF", HexCase::kAny), (std::array<uint8_t, 2>{0, 255}));
  for (const char* wrong : {"", "00f", "00fff", "00fF", "00fg", "+0ff", "0x0f", " 0ff"}) {
    EXPECT_EQ(FromHex<2>(wrong, HexCase::kLower), std::nullopt) << wrong;
  }
  EXPECT_TRUE(IsHex("09af"));
  EXPECT_TRUE(IsHex(""));
  EXPECT_FALSE(IsHex("09aF"));
  EXPECT_FALSE(IsHex("0x"));
}

}  // namespace
}  // namespace kvasir
