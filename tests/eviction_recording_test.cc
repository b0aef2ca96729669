// Eviction on a published recording of conversations, beside figures that were computed elsewhere.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/needs_for_test.h"
#include "kvasir/engine.h"
#include "source_paths.h"
#include "testing/belady.h"
#include "testing/prefix_replay.h"
#include "testing/recording.h"

namespace kvasir {
namespace {

constexpr uint32_t kSizes[] = {1'000, 10'000, 50'000};  // blocks of 512 tokens

class EvictionRecording : public testing::Test {
 protected:
  void SetUp() override {
    const std::filesystem::path folder = KVASIR_SHARED_DIR "/data/mooncake-conversation";
    KV_NEEDS(folder);
    const auto recording = ReadRecording(folder / "conversation_trace.jsonl");
    ASSERT_TRUE(recording) << recording.error().message;
    for (const RecordedRequest& request : *recording) prompts_.push_back(request.block_ids);
    std::ifstream file(folder / "golden.json");
    golden_ = nlohmann::json::parse(file)["conversation_trace.jsonl"];
    EXPECT_EQ(recording->size(), golden_["requests"].get<size_t>());
  }
  double GoldenHits(uint32_t num_blocks) const {
    return golden_["lru"][std::to_string(num_blocks)]["prefix_reverse_touch"]["hits"];
  }
  uint64_t Hits(uint32_t num_blocks, const EvictionChoice& choice) {
    const auto replay = ReplayPrefixes(prompts_, num_blocks, choice);
    EXPECT_TRUE(replay);
    EXPECT_EQ(replay->blocks, golden_["block_refs"].get<uint64_t>());
    return replay->hits;
  }

  std::vector<std::vector<uint32_t>> prompts_;
  nlohmann::json golden_;
};

TEST_F(EvictionRecording, LruIsWithinOnePercentOfItsGoldenFigures) {
  const EvictionChoice& lru = *FindEvictionChoice("lru");
  for (const uint32_t num_blocks : kSizes) {
    const double expected = GoldenHits(num_blocks);
    EXPECT_NEAR(static_cast<double>(Hits(num_blocks, lru)), expected, 0.01 * expected)
        << num_blocks << " blocks";
  }
}

TEST_F(EvictionRecording, TheDefaultIsTheWinnerAtTenThousandBlocks) {
  const uint64_t best = Hits(10'000, DefaultEvictionChoice());
  for (const EvictionChoice& choice : EvictionChoices()) {
    EXPECT_LE(Hits(10'000, choice), best) << choice.name;
  }
}

TEST_F(EvictionRecording, NobodyFindsMoreThanTheOptimum) {
  for (const uint32_t num_blocks : kSizes) {
    const uint64_t most = BeladyHits(prompts_, num_blocks);
    EXPECT_LE(most, golden_["infinite_cache"]["block_hits"].get<uint64_t>());
    for (const EvictionChoice& choice : EvictionChoices()) {
      EXPECT_LE(Hits(num_blocks, choice), most) << choice.name << ", " << num_blocks << " blocks";
    }
  }
}

TEST(EvictionDefault, IsTheSameInTheEngineAndTheCache) {
  EXPECT_EQ(EngineOptions{}.eviction, DefaultEvictionChoice().name);
}

}  // namespace
}  // namespace kvasir
