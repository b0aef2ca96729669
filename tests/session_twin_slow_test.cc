// Contracts C1 and C2 of sessions at length.
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "session_twin.h"

namespace kvasir {
namespace {

// Folders lie in memory where the system has a place for that: each change of a session is synced
// twice, which would be most of the time on a device. A kill here copies the folder as it is.
const bool kIsInMemory =
    std::filesystem::is_directory("/dev/shm") && setenv("TMPDIR", "/dev/shm", /*overwrite=*/0) == 0;

TEST(SessionTwin, LogitsOfManyRowsAreThoseOfThePlainIdsWithoutACache) {
  SessionTwin run(5);
  const SessionTwin::Counts& counts = run.Compare(1'000'000);
  PrintSessionTwin(counts);
  EXPECT_EQ(counts.differ, 0u);
  EXPECT_EQ(counts.wrong_erases, 0u);
  EXPECT_GT(counts.reused_tokens, counts.rows / 4);
}

// Histories are sessions: each is made, forked, edited, forgotten, expires, is deleted or loses its
// process at random, beside four others in one pool. Seven of ten have an erase that is checked
// in memory and in what a start would find on the disk, some several.
TEST(SessionTwin, TenThousandErasesTakeWhatWasAskedFromTheDiskAndNoMore) {
  std::printf("folders in memory: %s\n", kIsInMemory ? "yes" : "no");
  SessionTwin run(9);
  const SessionTwin::Counts& counts = run.OnDisk().Erase(10'000, 10'000);
  PrintSessionTwin(counts);
  EXPECT_GE(counts.erases, 10'000u);
  EXPECT_GE(counts.histories, 10'000u);
  EXPECT_GT(counts.erased_histories, 5'000u);
  EXPECT_EQ(counts.differ, 0u);
  EXPECT_EQ(counts.wrong_erases, 0u);
  EXPECT_EQ(counts.disk_wrong, 0u);
  EXPECT_GT(counts.disk_compared, 5'000u);
}

}  // namespace
}  // namespace kvasir
