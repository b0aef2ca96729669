#include "base/base64.h"

#include <gtest/gtest.h>

#include <initializer_list>
#include <string_view>
#include <utility>

namespace kvasir {
namespace {

// RFC 4648, section 10.
TEST(Base64, DecodesTheVectorsOfItsStandard) {
  for (const auto& [text, bytes] :
       std::initializer_list<std::pair<const char*, const char*>>{{"", ""},
                                                                  {"Zg==", "f"},
                                                                  {"Zm8=", "fo"},
                                                                  {"Zm9v", "foo"},
                                                                  {"Zm9vYg==", "foob"},
                                                                  {"Zm9vYmE=", "fooba"},
                                                                  {"Zm9vYmFy", "foobar"},
                                                                  {"Zm9vYg", "foob"}}) {
    EXPECT_EQ(DecodeBase64(text), bytes) << text;
    const bool is_padded = std::string_view(text).size() % 4 == 0;
    EXPECT_TRUE(!is_padded || EncodeBase64(bytes) == text) << text;
  }
  EXPECT_EQ(DecodeBase64("+/+/"), "\xFB\xFF\xBF");
  EXPECT_EQ(EncodeBase64("\xFB\xFF\xBF"), "+/+/");
}

TEST(Base64, RefusesOtherCharacters) {
  for (const char* text : {" ", "Zm9v\n", "Zm-v", "Z=m9v", "\xC3\xA9"}) {
    EXPECT_FALSE(DecodeBase64(text)) << text;
  }
}

}  // namespace
}  // namespace kvasir
