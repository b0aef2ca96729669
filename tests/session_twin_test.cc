// Contracts C1 and C2 of sessions in CI.
#include "session_twin.h"

#include "base/fault.h"
#include "base/rounds_for_test.h"

namespace kvasir {
namespace {

constexpr uint64_t kRows = Rounds(50'000, 3'000), kErases = Rounds(60, 15);

TEST(SessionTwin, LogitsAreThoseOfThePlainIdsWithoutACache) {
  const uint64_t seed = 20261125;
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  SessionTwin run(seed);
  const SessionTwin::Counts& counts = run.Compare(kRows);
  PrintSessionTwin(counts);
  EXPECT_GE(counts.rows, kRows);
  EXPECT_EQ(counts.differ, 0u);
  EXPECT_EQ(counts.wrong_erases, 0u);
  EXPECT_GT(counts.reused_tokens, counts.rows / 4) << "nothing was reused: nothing was shown";
#ifndef KVASIR_SANITIZED  // too few to see every kind surely
  EXPECT_GT(counts.forgotten_blocks, 0u);
  EXPECT_GT(counts.evicted_blocks, 0u);
  EXPECT_GT(counts.dropped_messages, 0u);
  EXPECT_GT(counts.exact_answers, 0u);
  EXPECT_GT(counts.prepared_tokens, 0u);
  EXPECT_GT(counts.accepted, 100u);
  EXPECT_GT(counts.parted_texts, 100u);
  EXPECT_GT(counts.behind_texts, 100u);
  for (const char* kind :
       {"edit", "edit and keep", "truncate", "fork", "system", "forget", "forget a part",
        "forget a part of a message", "forget a range", "truncate and forget", "edit and forget",
        "drop turns", "context full", "delete", "stop text", "hang up", "expire"}) {
    EXPECT_TRUE(counts.changes.contains(kind)) << kind;
  }
#endif
}

TEST(SessionTwin, AnEraseTakesWhatWasAskedFromTheDiskAndNoMore) {
  SessionTwin run(20261127);
  const SessionTwin::Counts& counts = run.OnDisk().Erase(kErases);
  PrintSessionTwin(counts);
  EXPECT_EQ(counts.differ, 0u);
  EXPECT_EQ(counts.wrong_erases, 0u);
  EXPECT_EQ(counts.disk_wrong, 0u);
  EXPECT_GT(counts.disk_compared, kErases / 3);
#ifndef KVASIR_SANITIZED
  EXPECT_GT(counts.disk_parted, 100u);
  EXPECT_GT(counts.disk_behind, 100u);
  for (const char* kind : {"edit", "delete", "stop text", "hang up", "expire", "kill"}) {
    EXPECT_TRUE(counts.changes.contains(kind)) << kind;
  }
#endif
}

TEST(SessionTwin, SeesAnEraseOfTheDiskThatTakesTooMuchOrTooLittle) {
  for (const Fault fault : {Fault::kEraseByFirst, Fault::kEraseOwnOnly}) {
    InjectFault(fault);
    const SessionTwin::Counts counts = SessionTwin(7).OnDisk().Erase(40);
    InjectFault(Fault::kNone);
    EXPECT_GT(counts.disk_wrong, 0u);
  }
}

TEST(SessionTwin, SeesAnEraseThatTakesTooMuchOrTooLittle) {
  for (const Fault fault : {Fault::kEraseByFirst, Fault::kEraseOwnOnly}) {
    InjectFault(fault);
    const SessionTwin::Counts counts = SessionTwin(7).Compare(Rounds(5'000, 2'000));
    InjectFault(Fault::kNone);
    EXPECT_GT(counts.wrong_erases, 0u);
  }
}

}  // namespace
}  // namespace kvasir
