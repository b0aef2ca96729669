// An engine with a disk: what it expects of a prompt that lies there.
#include <gtest/gtest.h>

#include <future>

#include "engine_scenario.h"

namespace kvasir {
namespace {

std::vector<TokenId> SeededPrompt(TokenId seed, size_t tokens) {
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
  const auto stored = SeededPrompt(1, 900), loaded = SeededPrompt(2, 900),
             fresh = SeededPrompt(3, 900);
  {
    const auto engine = LoadEngine(DiskEngine());
    Ask(*engine, Greedy(stored, 1));
    Ask(*engine, Greedy(loaded, 1));
  }
  const auto engine = LoadEngine(DiskEngine());
  // How quick computing and loading are.
  for (TokenId seed = 10; seed < 13; ++seed) Ask(*engine, Greedy(SeededPrompt(seed, 300), 1));
  Ask(*engine, Greedy(loaded, 1));
  ASSERT_GT(engine->DiskStats()->load_bytes_per_s, 0);
  const double of_fresh = EstimateMs(*engine, fresh), of_stored = EstimateMs(*engine, stored);
  EXPECT_GT(of_stored, 0);
  EXPECT_LT(of_stored, of_fresh / 2);
}

Erasure Forget(Engine& engine, ForgetRequest request) {
  std::promise<Erasure> told;
  engine.Forget(std::move(request), [&](const Erasure& erasure) { told.set_value(erasure); });
  return told.get_future().get();
}

TEST(EngineDisk, AForgetFindsWhatOnlyTheDiskHas) {
  const auto prompt = SeededPrompt(1, 100), other = SeededPrompt(2, 100);
  auto edited = prompt;  // leaves it within the forgotten block, after the forgotten text
  edited[45] ^= 1;
  auto earlier = prompt;  // leaves it within that block, before the text's end
  earlier[44] ^= 1;
  EngineOptions options = DiskEngine();
  options.disk->folder = ScratchDir() / "forgotten";
  const auto ask = [](Engine& engine, const std::vector<TokenId>& ids, const char* salt) {
    GenerateRequest request = Greedy(ids, 1);
    if (salt != nullptr) request.cache_salt = salt;
    return Ask(engine, request).receipt;
  };
  {
    const auto engine = LoadEngine(options);
    for (const auto& ids : {prompt, other, edited, earlier}) ask(*engine, ids, nullptr);
    ask(*engine, prompt, "salt");
  }
  {
    const auto engine = LoadEngine(options);
    const std::vector<std::vector<TokenId>> kept = {
        std::vector<TokenId>(prompt.begin(), prompt.begin() + 64), other};
    const Erasure erased =
        Forget(*engine, {.owner = "default", .ids = prompt, .first = 40, .last = 44, .kept = kept});
    EXPECT_FALSE(erased.error) << erased.error->text();
    EXPECT_EQ(erased.blocks, 0u);            // of the pool
    EXPECT_EQ(erased.disk_blocks, 2u + 4u);  // those of `prompt` after 64, of `edited` from 32 on
  }
  const auto engine = LoadEngine(options);
  // On a busy machine computing may be quicker than loading: then the receipt says that it is
  // there.
  const auto expect = [&](const std::vector<TokenId>& ids, const char* salt, uint32_t tokens) {
    const Receipt receipt = ask(*engine, ids, salt);
    if (receipt.miss && receipt.miss->reason == MissReason::kOvertaken) return;
    EXPECT_EQ(receipt.cached_tokens(), tokens);
  };
  expect(prompt, nullptr, 64);
  expect(earlier, nullptr, 96);
  expect(other, nullptr, 96);
  expect(prompt, "salt", 96);
  EXPECT_LE(ask(*engine, edited, nullptr).cached_tokens(), 45u);  // of the pool: those of `prompt`
}

}  // namespace
}  // namespace kvasir
