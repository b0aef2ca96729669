// Contracts C1 and C2 in CI: 50,000 rows of logits, bit for bit.
#include "engine_twin.h"

namespace kvasir {
namespace {

#ifdef KVASIR_SANITIZED
constexpr uint64_t kRows = 3'000;
#else
constexpr uint64_t kRows = 50'000;
#endif

TEST(EngineTwin, NoAnswerIsChangedByTheCache) {
  const uint64_t seed = 20261121;
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  TwinRun run(seed);
  const TwinCounts& counts = run.Compare(kRows);
  PrintTwin(counts);
  EXPECT_GE(counts.rows, kRows);
  EXPECT_EQ(counts.differ, 0u);
  EXPECT_GT(counts.reused_tokens, kRows / 4) << "nothing was reused: nothing was shown";
  EXPECT_GT(counts.evicted_blocks, 0u);
#ifndef KVASIR_SANITIZED  // too few rows to find each fault surely
  EXPECT_GT(counts.cursor_hits, 0u);
#endif
}

TEST(EngineTwin, NoAnswerOfAnyFamilyIsChangedByTheCache) {
  for (const char* family :
       {"tiny-yarn", "tiny-qwen2", "tiny-qwen3", "tiny-granite", "tiny-olmo2", "tiny-smollm3",
        "tiny-phi3", "tiny-gpt2", "tiny-mistral", "tiny-qwen2-window", "tiny-gemma2", "tiny-gemma3",
        "tiny-gemma3-vision", "tiny-mixtral", "tiny-qwen3-moe", "tiny-qwen3-moe-norm"}) {
    std::printf("%s: ", family);
    TwinRun run(20261123);
    const TwinCounts& counts = run.CompareFolder(family, kRows / 5);
    PrintTwin(counts);
    EXPECT_EQ(counts.differ, 0u) << family;
    EXPECT_GT(counts.reused_tokens, 0u) << family;
  }
}

// Shows that the check can fail: each cache fault makes rows differ.
TEST(EngineTwin, SeesInjectedFaults) {
  for (const Fault fault : {Fault::kStaleBlock, Fault::kWrongPosition, Fault::kSkippedCompare}) {
    uint64_t differ = 0;
    for (uint64_t seed = 1; seed <= 3 && differ == 0; ++seed) {
      TwinRun run(seed);
      InjectFault(fault);
      differ = run.CompareTiny().differ;
      InjectFault(Fault::kNone);
    }
    EXPECT_GT(differ, 0u) << "fault " << static_cast<int>(fault);
  }
}

}  // namespace
}  // namespace kvasir
