#include "cli/progress.h"

#include <gtest/gtest.h>

namespace kvasir::cli {
namespace {

TEST(Progress, ABarShowsTheShare) {
  EXPECT_EQ(BarOf(0), "[------------------------] ");
  EXPECT_EQ(BarOf(0.25), "[######------------------] ");
  EXPECT_EQ(BarOf(0.999), "[#######################-] ");
  EXPECT_EQ(BarOf(1), "[########################] ");
  EXPECT_EQ(BarOf(7), BarOf(1)) << "a file that grew";
  EXPECT_EQ(BarOf(-1), BarOf(0));
}

TEST(Progress, ALineSaysItsShare) {
  EXPECT_EQ(ShareIn("int8: 3 of 40 probes"), 0.075);
  EXPECT_EQ(ShareIn("k=int8: window 2 of 8"), 0.25);
  EXPECT_EQ(ShareIn("reading the prompt: 512 of 2048 tokens"), 0.25);
  EXPECT_EQ(ShareIn("1 of 2"), 0.5);
  EXPECT_EQ(ShareIn("packing weights: 63%"), 0.63);
  for (const char* line : {"", " of ", "of", "3 of 0", "a stream of 99 tokens",
                           "fetching x: 1 MiB of 2 MiB", "3 of ", "%", "x%", "probes 3 of x"}) {
    EXPECT_FALSE(ShareIn(line)) << line;
  }
}

}  // namespace
}  // namespace kvasir::cli
