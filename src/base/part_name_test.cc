#include "base/part_name.h"

#include <gtest/gtest.h>

namespace kvasir {
namespace {

TEST(PartName, IsReadAndWritten) {
  const auto part = ParsePartName("q/b-00002-of-00013.GGuf");
  ASSERT_TRUE(part);
  EXPECT_EQ(part->stem, "q/b");
  EXPECT_EQ(part->number, 2u);
  EXPECT_EQ(part->count, 13u);
  EXPECT_EQ(part->Text(12), "q/b-00012-of-00013.GGuf");
  EXPECT_EQ(part->Text(part->number), "q/b-00002-of-00013.GGuf");
}

TEST(PartName, IsReadStrictly) {
  for (const char* name : {"", "b.gguf", "-00001-of-00002.gguf", "q/-00001-of-00002.gguf",
                           "b-00000-of-00002.gguf", "b-00003-of-00002.gguf", "b-0001-of-00002.gguf",
                           "b-00001-of-00002.bin", "b-00001-OF-00002.gguf", "b_00001-of-00002.gguf",
                           "b-0000x-of-00002.gguf", "b-00001-of-00002.gguf2"}) {
    EXPECT_FALSE(ParsePartName(name)) << name;
  }
  EXPECT_TRUE(ParsePartName("b-99999-of-99999.gguf"));
}

}  // namespace
}  // namespace kvasir
