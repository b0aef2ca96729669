// Contracts C1 and C2 of sessions at length.
#include "session_twin.h"

namespace kvasir {
namespace {

TEST(SessionTwin, LogitsOfManyRowsAreThoseOfThePlainIdsWithoutACache) {
  SessionTwin run(5);
  const SessionTwin::Counts& counts = run.Compare(1'000'000);
  PrintSessionTwin(counts);
  EXPECT_EQ(counts.differ, 0u);
  EXPECT_EQ(counts.wrong_erases, 0u);
  EXPECT_GT(counts.reused_tokens, counts.rows / 4);
}

TEST(SessionTwin, TenThousandErasesTakeWhatWasAskedFromTheDiskAndNoMore) {
  SessionTwin run(9);
  const SessionTwin::Counts& counts = run.OnDisk().Erase(10'000);
  PrintSessionTwin(counts);
  EXPECT_EQ(counts.differ, 0u);
  EXPECT_EQ(counts.wrong_erases, 0u);
  EXPECT_EQ(counts.disk_wrong, 0u);
  EXPECT_GT(counts.disk_compared, 5'000u);
}

}  // namespace
}  // namespace kvasir
