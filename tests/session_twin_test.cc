// Contracts C1 and C2 of sessions in CI.
#include "session_twin.h"

namespace kvasir {
namespace {

#ifdef KVASIR_SANITIZED
constexpr uint64_t kRows = 3'000;
#else
constexpr uint64_t kRows = 50'000;
#endif

TEST(SessionTwin, LogitsAreThoseOfThePlainIdsWithoutACache) {
  const uint64_t seed = 20261125;
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  SessionTwin run(seed);
  const SessionTwin::Counts& counts = run.Compare(kRows);
  PrintSessionTwin(counts);
  EXPECT_GE(counts.rows, kRows);
  EXPECT_EQ(counts.differ, 0u);
  EXPECT_GT(counts.reused_tokens, counts.rows / 4) << "nothing was reused: nothing was shown";
#ifndef KVASIR_SANITIZED  // too few to see every kind surely
  EXPECT_GT(counts.forgotten_blocks, 0u);
  EXPECT_GT(counts.evicted_blocks, 0u);
  EXPECT_GT(counts.dropped_messages, 0u);
  EXPECT_GT(counts.exact_answers, 0u);
  EXPECT_GT(counts.prepared_tokens, 0u);
  for (const char* kind : {"edit", "edit and keep", "truncate", "fork", "system", "forget",
                           "forget a part", "drop turns", "context full"}) {
    EXPECT_TRUE(counts.changes.contains(kind)) << kind;
  }
#endif
}

}  // namespace
}  // namespace kvasir
