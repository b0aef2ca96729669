// Windows and masks: which tokens a layer sees.
#include <numeric>

#include "model/runner_for_test.h"

namespace kvasir {
namespace {

class RunnerMasks : public testing::TestWithParam<Target> {};

// Retention's view of a sequence: a mask per layer and KV head, and softmax sums per cached token.
struct Retained {
  Rows logits;
  std::vector<float> sums;  // [layer][kv_head][kTokens]
};
constexpr uint32_t kRetainedTokens = 320;

Retained PrefillRetained(Runner& runner, const KvLayout& layout, const std::vector<TokenId>& tokens,
                         std::span<const TokenMask> masks, const std::vector<uint32_t>& chunks) {
  const ModelConfig& c = runner.config();
  const SequenceTables blocks = TablesFor(layout, kRetainedTokens);
  Retained all;
  all.sums.resize(size_t{c.num_layers} * c.num_kv_heads * kRetainedTokens);
  for (uint32_t at = 0, i = 0; at < tokens.size(); ++i) {
    const auto n =
        std::min<uint32_t>(chunks[i % chunks.size()], static_cast<uint32_t>(tokens.size()) - at);
    const StepSequence sequence{blocks.tables(), at, 0, n, masks, all.sums.data(), kRetainedTokens};
    EXPECT_TRUE(runner.Step({&sequence, 1}, {tokens.data() + at, n}));
    for (uint32_t r = 0; r < n; ++r) all.logits.push_back(LogitsOf(runner, r));
    at += n;
  }
  return all;
}

// Windows of single layers give the same results as masks that hide the same tokens; chunks,
// threads and targets change no bit.
TEST_P(RunnerMasks, WindowedLayersSeeTheirLastTokensOnly) {
  Random random(21);
  ImportedModel windowed = Import(kDemo);
  const ModelConfig c = windowed.config;
  for (uint32_t layer = 0; layer < c.num_layers; ++layer) {
    const uint32_t windows[] = {0, 1, 17, 64, 100, c.max_positions};
    windowed.config.windows.push_back(windows[(layer + 2) % std::size(windows)]);
  }
  const std::vector<uint32_t> windows = windowed.config.windows;
  RunnerOptions options;
  auto plain = MakeRunner(Import(kDemo), options);
  options.target = GetParam();
  options.threads = 2;
  auto runner = MakeRunner(std::move(windowed), options);
  const KvLayout layout = Runner::LayoutFor(c, options);
  const auto tokens = RandomTokens(random, 300, c.vocab_size);
  const SequenceTables blocks = TablesFor(layout, kRetainedTokens);
  Rows masked;
  for (uint32_t p = 0; p < tokens.size(); ++p) {
    const size_t head_words = kRetainedTokens / 64;
    std::vector<uint64_t> words(size_t{c.num_layers} * c.num_kv_heads * head_words);
    std::vector<TokenMask> masks;
    for (uint32_t layer = 0; layer < c.num_layers; ++layer) {
      uint64_t* of_layer = words.data() + size_t{layer} * c.num_kv_heads * head_words;
      for (uint32_t t = 0; t <= p; ++t) {
        if (windows[layer] > 0 && t + windows[layer] <= p) continue;
        for (uint32_t head = 0; head < c.num_kv_heads; ++head) {
          of_layer[head * head_words + t / 64] |= uint64_t{1} << (t % 64);
        }
      }
      masks.push_back({of_layer, head_words});
    }
    const StepSequence sequence{blocks.tables(), p, 0, 1, masks};
    ASSERT_TRUE(plain->Step({&sequence, 1}, {tokens.data() + p, 1}));
    masked.push_back(LogitsOf(*plain, 0));
  }
  const KvLayout grouped = Runner::LayoutFor(runner->config(), options);
  EXPECT_GT(grouped.num_groups(), 2u);
  const Rows whole = Prefill(*runner, grouped, tokens, {512});
  EXPECT_EQ(Differences(masked, whole), 0u);
  EXPECT_GT(Differences(Prefill(*plain, layout, tokens, {512}), whole), 200u);
  for (const auto& chunks : {std::vector<uint32_t>{1}, {13, 1, 2, 64, 5}, {130, 2, 90}}) {
    EXPECT_EQ(Differences(whole, Prefill(*runner, grouped, tokens, chunks)), 0u);
  }
}

TEST_P(RunnerMasks, MasksAndSoftmaxSumsNeverDependOnChunksOrTargets) {
  Random random(9);
  RunnerOptions options;
  auto plain = MakeRunner(Import(kDemo), options);
  options.target = GetParam();
  options.threads = 2;
  auto other = MakeRunner(Import(kDemo), options);
  const ModelConfig& c = plain->config();
  const KvLayout layout = Runner::LayoutFor(c, options);
  const auto tokens = RandomTokens(random, 300, c.vocab_size);
  // The masks keep of each 64 tokens the first four, every fourth, and others at random.
  std::vector<uint64_t> words(size_t{c.num_layers} * c.num_kv_heads * kRetainedTokens / 64);
  for (uint64_t& word : words) word = 0x8888888888888888 | random.Bits() | 0xf;
  std::vector<TokenMask> masks;
  for (uint32_t layer = 0; layer < c.num_layers; ++layer) {
    masks.push_back({words.data() + size_t{layer} * c.num_kv_heads * kRetainedTokens / 64,
                     kRetainedTokens / 64});
  }
  const Rows unmasked = Prefill(*plain, layout, tokens, {512});
  const Retained all = PrefillRetained(*plain, layout, tokens, {}, {512});
  EXPECT_EQ(Differences(unmasked, all.logits), 0u);
  const Retained kept = PrefillRetained(*plain, layout, tokens, masks, {512});
  EXPECT_GT(Differences(unmasked, kept.logits), 200u);
  for (const auto& chunks : {std::vector<uint32_t>{512}, {1}, {13, 1, 2, 64, 5}}) {
    const Retained again = PrefillRetained(*other, layout, tokens, masks, chunks);
    EXPECT_EQ(Differences(kept.logits, again.logits), 0u);
    EXPECT_EQ(kept.sums, again.sums);
    EXPECT_EQ(all.sums, PrefillRetained(*other, layout, tokens, {}, chunks).sums);
  }
  // A row's weights add up to 1 for each query head.
  const double total = std::accumulate(all.sums.begin(), all.sums.end(), 0.0);
  EXPECT_NEAR(total / (300.0 * c.num_layers * c.num_heads), 1, 1e-5);
}

INSTANTIATE_TEST_SUITE_P(All, RunnerMasks, testing::ValuesIn(SupportedTargets()), TargetName);

}  // namespace
}  // namespace kvasir
