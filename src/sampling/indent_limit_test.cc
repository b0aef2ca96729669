#include "sampling/indent_limit.h"

#include <gtest/gtest.h>

#include <string>

namespace kvasir {
namespace {

std::string KeptOf(std::string_view text, uint32_t least, size_t cut) {
  IndentLimit limit(least);
  std::string kept;
  for (const std::string_view piece : {text.substr(0, cut), text.substr(cut)}) {
    kept += piece.substr(0, limit.Keep(piece));
  }
  EXPECT_EQ(limit.has_ended(), kept.size() < text.size());
  return kept;
}

TEST(IndentLimit, EndsAtALineWithLessIndentHoweverItComes) {
  struct Case {
    std::string text;
    uint32_t least;
    std::string kept;
  };
  const Case cases[] = {{"return x", 4, "return x"},
                        {"return x\n    y\n  z\n", 4, "return x\n    y\n  "},
                        {"a\n\tb\nc", 1, "a\n\tb\n"},
                        {"a\n\n    b", 4, "a\n"},
                        {"a\n    \n    b", 4, "a\n    \n    b"},
                        {"\nb", 1, "\n"},
                        {"a\n", 2, "a\n"},
                        {"", 2, ""}};
  for (const Case& one : cases) {
    for (size_t cut = 0; cut <= one.text.size(); ++cut) {
      EXPECT_EQ(KeptOf(one.text, one.least, cut), one.kept) << one.text << " at " << cut;
    }
  }
}

}  // namespace
}  // namespace kvasir
