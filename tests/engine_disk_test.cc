// An engine with a disk: what it expects of a prompt that lies there.
#include <gtest/gtest.h>

#include "engine_scenario.h"

namespace kvasir {
namespace {

std::vector<TokenId> Prompt(TokenId seed, size_t tokens) {
  std::vector<TokenId> prompt;
  for (size_t i = 0; i < tokens; ++i) {
    prompt.push_back(static_cast<TokenId>((seed * 7919 + i * i * 31 + i) % 900 + 5));
  }
  return prompt;
}

EngineOptions DiskEngine() {
  EngineOptions options = DemoOptions();
  options.disk = DiskOptions{.folder = ScratchDir() / "kv", .cap_bytes = uint64_t{64} << 20};
  return options;
}

double EstimateMs(Engine& engine, const std::vector<TokenId>& prompt) {
  return Ask(engine, Greedy(prompt, 1)).receipt.estimate_ms.value_or(0);
}

TEST(EngineDisk, AnEstimateKnowsWhatLiesOnTheDisk) {
  const auto stored = Prompt(1, 900), loaded = Prompt(2, 900), fresh = Prompt(3, 900);
  {
    const auto engine = LoadEngine(DiskEngine());
    Ask(*engine, Greedy(stored, 1));
    Ask(*engine, Greedy(loaded, 1));
  }
  const auto engine = LoadEngine(DiskEngine());
  // How quick computing and loading are.
  for (TokenId seed = 10; seed < 13; ++seed) Ask(*engine, Greedy(Prompt(seed, 300), 1));
  Ask(*engine, Greedy(loaded, 1));
  ASSERT_GT(engine->DiskStats()->load_bytes_per_s, 0);
  const double of_fresh = EstimateMs(*engine, fresh), of_stored = EstimateMs(*engine, stored);
  EXPECT_GT(of_stored, 0);
  EXPECT_LT(of_stored, of_fresh / 2);
}

}  // namespace
}  // namespace kvasir
