#include "base/file_name.h"

#include <gtest/gtest.h>

namespace kvasir {
namespace {

TEST(FileName, ASafeOneStaysBelowItsFolder) {
  for (const char* name : {"config.json", "sub/folder/x.gguf", "..x", "x..y", "\xC3\xA9.json"}) {
    EXPECT_TRUE(IsSafeFile(name)) << name;
  }
  for (const char* name : {"", ".", "..", "../x", "a/../b", "/x", "x/", "a//b", "a\\b", "a\tb",
                           "a\x7f", "\xff.json", "a/./b"}) {
    EXPECT_FALSE(IsSafeFile(name)) << name;
  }
  EXPECT_FALSE(IsSafeFile(std::string("a\0b", 3)));
  EXPECT_FALSE(IsSafeFile(std::string(201, 'a')));
}

TEST(FileName, MessagesHaveNoBytesForATerminal) {
  EXPECT_EQ(Printable("a\x1b[31m\nb"), "a?[31m?b");
  EXPECT_EQ(Printable("\xff\xfe"), "??");
  EXPECT_EQ(Printable("\xC3\xA9"), "\xC3\xA9");
}

}  // namespace
}  // namespace kvasir
