// Contracts C1 and C2 at length: a million rows of logits, bit for bit.
#include "engine_twin.h"

namespace kvasir {
namespace {

TEST(EngineTwin, NoAnswerOfAMillionRowsIsChangedByTheCache) {
  const uint64_t seed = 4;
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  TwinRun run(seed);
  const TwinCounts& counts = run.Compare(1'000'000);
  PrintTwin(counts);
  EXPECT_GE(counts.rows, 1'000'000u);
  EXPECT_EQ(counts.differ, 0u);
  EXPECT_GT(counts.reused_tokens, counts.rows / 4) << "nothing was reused: nothing was shown";
  EXPECT_GT(counts.evicted_blocks, 0u);
  EXPECT_GT(counts.cursor_hits, 0u);
}

}  // namespace
}  // namespace kvasir
