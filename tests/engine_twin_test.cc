// Contracts C1 and C2 in CI: 50,000 rows of logits, bit for bit.
#include "engine_twin.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/rounds_for_test.h"
#include "import/tiny_models_for_test.h"
#include "source_paths.h"

namespace kvasir {
namespace {

constexpr uint64_t kTwinRows = Rounds(50'000, 2'000);
const std::string kData = KVASIR_SOURCE_DIR "/tests/data/";

// Returns the families; with a sanitizer every fourth one, since loading them takes most of the
// time there.
std::vector<std::string> Families() {
  std::vector<std::string> all = TinyModels(), some;
  for (size_t i = 0; i < all.size(); i += Rounds(1, 4)) some.push_back(all[i]);
  return some;
}

TEST(EngineTwin, NoAnswerIsChangedByTheCache) {
  const uint64_t seed = 20261121;
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  TwinRun run(seed);
  const TwinCounts& counts = run.Compare(kTwinRows);
  PrintTwin(counts);
  EXPECT_GE(counts.rows, kTwinRows);
  EXPECT_EQ(counts.differ, 0u);
  EXPECT_GT(counts.reused_tokens, 0u) << "nothing was reused: nothing was shown";
  EXPECT_GT(counts.drafts.drafted, counts.drafts.accepted);
#ifndef KVASIR_SANITIZED  // too few rows to find each fault surely
  // How much is reused, and drafted, depends on how long steps take.
  EXPECT_GT(counts.reused_tokens, kTwinRows / 20);
  EXPECT_GT(counts.drafts.accepted, kTwinRows / 500) << "nothing was drafted: nothing was shown";
  EXPECT_GT(counts.evicted_blocks, 0u);
  EXPECT_GT(counts.cursor_hits, 0u);
  EXPECT_GT(counts.formats, 0u);
  EXPECT_GT(counts.adapted, 0u);
  EXPECT_GT(counts.kept, 0u);
  EXPECT_GT(counts.stopped, 0u);
#endif
}

TEST(EngineTwin, NoAnswerIsChangedByADraftModel) {
  TwinRun run(20261128);
  const TwinCounts& counts = run.WithDraftModel().Compare(kTwinRows);
  PrintTwin(counts);
  std::printf("%llu of %llu tokens of the draft model are right\n",
              static_cast<unsigned long long>(counts.model_accepted),
              static_cast<unsigned long long>(counts.model_drafted));
  EXPECT_EQ(counts.differ, 0u);
  EXPECT_GT(counts.model_accepted, kTwinRows / 100);
  EXPECT_GT(counts.model_drafted, counts.model_accepted);  // its KV is f16, whatever the model's is
}

// Only the demo model has a tokenizer, which formats need.
TEST(EngineTwin, NoFormattedAnswerIsChangedByADraftModel) {
  TwinRun run(20261130);
  const TwinCounts& counts =
      run.WithDraftModel().CompareFolder(*DemoOptions().model, kTwinRows / 20);
  PrintTwin(counts);
  EXPECT_EQ(counts.differ, 0u);
  EXPECT_GT(counts.formats, 0u);
  EXPECT_GT(counts.model_accepted, 0u);
}

TEST(EngineTwin, NoAnswerOfAnyFamilyIsChangedByADraftModel) {
  for (const std::string& family : Families()) {
    std::printf("%s: ", family.c_str());
    TwinRun run(20261129);
    const TwinCounts& counts = run.WithDraftModel().CompareFolder(kData + family, kTwinRows / 25);
    PrintTwin(counts);
    EXPECT_EQ(counts.differ, 0u) << family;
    EXPECT_GT(counts.model_accepted, 0u) << family;
  }
}

TEST(EngineTwin, NoAnswerOfAnyFamilyIsChangedByTheCache) {
  for (const std::string& family : Families()) {
    std::printf("%s: ", family.c_str());
    TwinRun run(20261123);
    const TwinCounts& counts = run.CompareFolder(kData + family, kTwinRows / 5);
    PrintTwin(counts);
    EXPECT_EQ(counts.differ, 0u) << family;
    EXPECT_GT(counts.reused_tokens, 0u) << family;
  }
}

// Tiny pools: what they evict comes back from the disk, and so does what an engine had before it
// was started again. Cancels, erasures and batch mates come at any moment of loads and writes.
TEST(EngineTwin, NoAnswerIsChangedByTheDisk) {
  TwinRun run(20261124);
  const TwinCounts& counts = run.OnDisk().Compare(kTwinRows);
  PrintTwin(counts);
  EXPECT_EQ(counts.differ, 0u);
  EXPECT_GT(counts.disk_tokens, kTwinRows / 10);
  EXPECT_GT(counts.restarts, 0u);
  for (const std::string& family : Families()) {
    std::printf("%s: ", family.c_str());
    TwinRun other(20261125);
    const TwinCounts& of_family = other.OnDisk().CompareFolder(kData + family, kTwinRows / 10);
    PrintTwin(of_family);
    EXPECT_EQ(of_family.differ, 0u) << family;
    EXPECT_GT(of_family.disk_tokens, 0u) << family;
  }
}

// Makes a model of tests/data whose window has another width.
std::string WithWindow(const std::string& name, uint32_t window) {
  const auto folder = ScratchDir() / (name + "-" + std::to_string(window));
  std::filesystem::create_directories(folder);
  std::filesystem::copy_file(kData + name + "/model.safetensors", folder / "model.safetensors",
                             std::filesystem::copy_options::overwrite_existing);
  std::ifstream file(kData + name + "/config.json");
  auto config = nlohmann::json::parse(file);
  config["sliding_window"] = window;
  std::ofstream(folder / "config.json") << config;
  return folder;
}

// Layers of a window alone, and beside full ones. The pools are so small that resume points are
// lost.
TEST(EngineTwin, NoAnswerIsChangedByAWindowOfAnyWidthInAnyFormat) {
  uint64_t rows = 0, window_misses = 0;
#ifdef KVASIR_SANITIZED
  const std::vector<const char*> families = {"tiny-gemma2"};
#else
  const std::vector<const char*> families = {"tiny-mistral", "tiny-gemma2", "tiny-gemma3"};
#endif
  for (const char* family : families) {
    for (const uint32_t window : {17u, 48u, 64u}) {
      const std::string folder = WithWindow(family, window);
      for (const uint32_t block_tokens : {16u, 32u}) {
        std::printf("%s, window %u, blocks of %u: ", family, window, block_tokens);
        TwinRun run(window + block_tokens);
        const TwinCounts& counts = run.CompareFormats(folder, block_tokens);
        PrintTwin(counts);
        rows += counts.rows;
        window_misses += counts.window_misses;
        EXPECT_EQ(counts.differ, 0u) << folder;
        EXPECT_GT(counts.reused_tokens, 0u) << folder;
        EXPECT_GT(counts.evicted_blocks, 0u) << folder;
      }
    }
  }
  std::printf("rows %llu\n", static_cast<unsigned long long>(rows));
  EXPECT_GT(window_misses, 10u) << "no resume point was lost: nothing was shown";
#ifndef KVASIR_SANITIZED
  EXPECT_GE(rows, 100'000u);
#endif
}

// Shows that the check can fail: each cache fault makes rows differ.
TEST(EngineTwin, SeesInjectedFaults) {
  for (const Fault fault :
       {Fault::kStaleBlock, Fault::kWrongPosition, Fault::kSkippedCompare, Fault::kAcceptedWrong,
        Fault::kKeptDraft, Fault::kForeignAdapter, Fault::kMatesAdapter}) {
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
