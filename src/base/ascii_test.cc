#include "base/ascii.h"

#include <gtest/gtest.h>

namespace kvasir {
namespace {

TEST(Ascii, KnowsLettersAndDigitsOfAsciiOnly) {
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    const bool is_digit = byte >= '0' && byte <= '9';
    const bool is_letter = (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z');
    EXPECT_EQ(IsAsciiDigit(c), is_digit) << byte;
    EXPECT_EQ(IsAsciiLetter(c), is_letter) << byte;
    EXPECT_EQ(IsAsciiAlnum(c), is_digit || is_letter) << byte;
    EXPECT_EQ(LowerAscii(c), byte >= 'A' && byte <= 'Z' ? c + 32 : c) << byte;
  }
}

TEST(Ascii, LowersLettersAndNothingElse) {
  EXPECT_EQ(LowerAscii("Q8_0 @[`{ \xC3\x84"), "q8_0 @[`{ \xC3\x84");
  EXPECT_EQ(LowerAscii(""), "");
}

TEST(Ascii, TrimsBothEnds) {
  EXPECT_EQ(Trimmed(" \t\r\n a b\n"), "a b");
  EXPECT_EQ(Trimmed("ab"), "ab");
  EXPECT_EQ(Trimmed(" \n "), "");
  EXPECT_EQ(Trimmed(""), "");
  EXPECT_EQ(Trimmed("\v a\f"), "\v a\f") << "JSON knows no other white space";
  EXPECT_EQ(Trimmed(" \na ", " "), "\na");
}

TEST(Ascii, KnowsBlanks) {
  EXPECT_TRUE(IsBlank('\n'));
  EXPECT_FALSE(IsBlank('\v'));
}

}  // namespace
}  // namespace kvasir
