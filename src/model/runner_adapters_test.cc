// Rows with adapters, beside base rows and rows with other adapters.
#include "import/lora.h"
#include "import/tiny_models_for_test.h"
#include "model/runner_for_test.h"

namespace kvasir {
namespace {

// Returns the logits of each row of a text whose rows have adapters, in chunks.
Rows PrefillWith(Runner& runner, const KvLayout& layout, const std::vector<TokenId>& tokens,
                 uint32_t chunk, std::span<const AppliedAdapter> adapters) {
  const SequenceTables blocks = TablesFor(layout, static_cast<uint32_t>(tokens.size()));
  Rows rows;
  for (uint32_t at = 0; at < tokens.size(); at += chunk) {
    const uint32_t n = std::min<uint32_t>(chunk, static_cast<uint32_t>(tokens.size()) - at);
    StepSequence sequence{blocks.tables(), at, 0, n};
    sequence.adapters = adapters;
    EXPECT_TRUE(runner.Step({&sequence, 1}, {tokens.data() + at, n}));
    for (uint32_t r = 0; r < n; ++r) rows.push_back(LogitsOf(runner, r));
  }
  return rows;
}

struct Applied {
  std::shared_ptr<const PackedAdapter> packed;
  std::vector<AppliedAdapter> list;
};
Applied Apply(const LoraAdapter& adapter, uint32_t num_layers, double scale) {
  Applied applied{*PackedAdapter::Create(adapter, num_layers), {}};
  applied.list.push_back({applied.packed.get(), scale, applied.packed->DigestWith(scale)});
  return applied;
}

class RunnerAdapters : public testing::TestWithParam<Target> {};

TEST_P(RunnerAdapters, RowsOfAnyAdaptersAndNoneShareAStepBitForBit) {
  for (const std::string& name : TinyModels()) {
    RunnerOptions options;
    options.target = GetParam();
    options.threads = 2;
    auto without = MakeRunner(Import(TinyModelPath(name)), options);
    const ModelConfig& c = without->config();
    if (c.encoder) continue;
    options.adapters = {.max_rank = 16, .max_adapters = 2};
    auto runner = MakeRunner(Import(TinyModelPath(name)), options);
    const KvLayout layout = Runner::LayoutFor(c, options);
    Random random(3);
    const auto tokens = RandomTokens(random, 40, c.vocab_size);
    Applied a = Apply(SyntheticLora(c, 3, 1), c.num_layers, 1);
    Applied b = Apply(SyntheticLora(c, 16, 2), c.num_layers, 0.5);
    std::vector<AppliedAdapter> both = {a.list[0], b.list[0]};
    std::ranges::sort(both, {}, &AppliedAdapter::digest);
    const std::span<const AppliedAdapter> lists[] = {{}, a.list, b.list, both};
    std::vector<Rows> expected;
    for (const auto list : lists) {
      expected.push_back(PrefillWith(*runner, layout, tokens, 40, list));
      EXPECT_EQ(Differences(expected.back(), PrefillWith(*runner, layout, tokens, 7, list)), 0u)
          << name;
    }
    EXPECT_EQ(Differences(expected[0], PrefillWith(*without, layout, tokens, 40, {})), 0u) << name;
    for (size_t i = 1; i < 4; ++i) {
      EXPECT_EQ(Differences(expected[0], expected[i]), tokens.size()) << name << ", list " << i;
    }
    // All of them in each step, by odd amounts.
    std::vector<SequenceTables> blocks;
    for (int i = 0; i < 4; ++i) blocks.push_back(TablesFor(layout, 40));
    std::vector<uint32_t> done(4, 0);
    while (std::ranges::any_of(done, [](uint32_t at) { return at < 40; })) {
      std::vector<StepSequence> sequences;
      std::vector<size_t> which;
      std::vector<TokenId> batch;
      for (size_t i = 0; i < 4; ++i) {
        if (done[i] == 40) continue;
        const uint32_t n = std::min<uint32_t>(40 - done[i], 1 + uint32_t(random.Below(9)));
        sequences.push_back({blocks[i].tables(), done[i], uint32_t(batch.size()), n});
        sequences.back().adapters = lists[i];
        batch.insert(batch.end(), tokens.begin() + done[i], tokens.begin() + done[i] + n);
        which.push_back(i);
      }
      ASSERT_TRUE(runner->Step(sequences, batch));
      for (size_t s = 0; s < sequences.size(); ++s) {
        const size_t i = which[s];
        for (uint32_t r = 0; r < sequences[s].num_rows; ++r, ++done[i]) {
          const auto row = LogitsOf(*runner, sequences[s].first_row + r);
          ASSERT_EQ(std::memcmp(row.data(), expected[i][done[i]].data(), row.size() * 4), 0)
              << name << ", list " << i << ", row " << done[i];
        }
      }
    }
  }
}

TEST_P(RunnerAdapters, AllTargetsComputeTheSameBits) {
  const auto logits = [](Target target) {
    RunnerOptions options;
    options.target = target;
    options.adapters = {.max_rank = 8, .max_adapters = 1};
    auto runner = MakeRunner(Import(TinyModelPath("tiny-gqa")), options);
    const ModelConfig& c = runner->config();
    Random random(5);
    const auto tokens = RandomTokens(random, 20, c.vocab_size);
    const Applied applied = Apply(SyntheticLora(c, 8, 4), c.num_layers, 1);
    return PrefillWith(*runner, Runner::LayoutFor(c, options), tokens, 20, applied.list);
  };
  EXPECT_EQ(Differences(logits(GetParam()), logits(Target::kScalar)), 0u);
}

INSTANTIATE_TEST_SUITE_P(All, RunnerAdapters, testing::ValuesIn(SupportedTargets()), TargetName);

}  // namespace
}  // namespace kvasir
