// Layers with experts, as the runner computes them.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/random.h"
#include "block/sequence_tables.h"
#include "model/runner.h"
#include "source_paths.h"

namespace kvasir {
namespace {

constexpr uint32_t kSequences = 11;

ImportedModel TinyExperts() {
  auto model = ImportModel(std::string(KVASIR_SOURCE_DIR) + "/tests/data/tiny-qwen3-moe-norm");
  EXPECT_TRUE(model) << (model ? "" : model.error().message);
  return std::move(*model);
}

std::unique_ptr<Runner> RunnerOf(RunnerOptions options, const char* weights) {
  options.max_positions = 256;
  if (*weights != '\0') options.weights = FindWeightChoice(weights);
  ImportedModel model = TinyExperts();
  const Runner::Plan plan = Runner::PlanFor(model, options);
  auto runner = Runner::Create(std::move(model), options, nullptr);
  EXPECT_TRUE(runner) << (runner ? "" : runner.error().message);
  EXPECT_EQ((*runner)->weights_bytes(), plan.weights_bytes);
  EXPECT_EQ((*runner)->scratch_bytes(), plan.scratch_bytes);
  return std::move(*runner);
}

SequenceTables TablesFor(const Runner& runner) {
  RunnerOptions options;
  options.max_positions = 256;
  return std::move(
      *SequenceTables::Create(Runner::LayoutFor(runner.config(), options), 64, std::byte{0xff}));
}

std::vector<float> HiddenOfRow(const Runner& runner, uint32_t row) {
  EXPECT_TRUE(runner.finite(row));
  const auto hidden = runner.hidden(row);
  return {hidden.begin(), hidden.end()};
}

using Prompts = std::vector<std::vector<TokenId>>;

Prompts RandomPrompts(uint32_t vocab) {
  Random random(8);
  Prompts prompts(kSequences);
  for (auto& prompt : prompts) {
    prompt.resize(1 + random.Below(40));
    for (TokenId& token : prompt) token = static_cast<TokenId>(random.Below(vocab));
  }
  return prompts;
}

// Returns the hidden states of all rows, a step for each prompt.
std::vector<std::vector<float>> Alone(Runner& runner, const Prompts& prompts) {
  std::vector<std::vector<float>> rows;
  for (const auto& prompt : prompts) {
    const SequenceTables blocks = TablesFor(runner);
    const StepSequence sequence{blocks.tables(), 0, 0, static_cast<uint32_t>(prompt.size())};
    EXPECT_TRUE(runner.Step({&sequence, 1}, prompt));
    for (uint32_t row = 0; row < prompt.size(); ++row) rows.push_back(HiddenOfRow(runner, row));
  }
  return rows;
}

// Returns them from one step.
std::vector<std::vector<float>> Together(Runner& runner, const Prompts& prompts) {
  std::vector<SequenceTables> blocks;
  std::vector<StepSequence> sequences;
  std::vector<TokenId> tokens;
  for (size_t i = 0; i < prompts.size(); ++i) blocks.push_back(TablesFor(runner));
  for (size_t i = 0; i < prompts.size(); ++i) {
    sequences.push_back({blocks[i].tables(), 0, static_cast<uint32_t>(tokens.size()),
                         static_cast<uint32_t>(prompts[i].size())});
    tokens.insert(tokens.end(), prompts[i].begin(), prompts[i].end());
  }
  EXPECT_TRUE(runner.Step(sequences, tokens));
  std::vector<std::vector<float>> rows;
  for (uint32_t row = 0; row < tokens.size(); ++row) rows.push_back(HiddenOfRow(runner, row));
  return rows;
}

class ExpertTargets : public testing::TestWithParam<Target> {};

TEST_P(ExpertTargets, OtherRowsOfTheStepNeverMoveABit) {
  const Prompts prompts = RandomPrompts(TinyExperts().config.vocab_size);
  for (const char* weights : {"", "q8_0", "i4"}) {
    const auto expected = Alone(*RunnerOf({}, weights), prompts);
    for (const uint32_t threads : {1, 2, 5}) {
      RunnerOptions options;
      options.threads = threads;
      options.target = GetParam();
      EXPECT_EQ(Together(*RunnerOf(options, weights), prompts), expected) << weights << threads;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, ExpertTargets, testing::ValuesIn(SupportedTargets()),
                         [](const auto& info) { return std::string(NameOf(info.param)); });

TEST(Experts, AStepOfOneTokenReadsTheChosenOnesAlone) {
  for (const char* weights : {"", "q8_0"}) {
    RunnerOptions options;
    options.max_positions = 256;
    const auto runner = RunnerOf(options, weights);
    if (*weights != '\0') options.weights = FindWeightChoice(weights);
    const uint64_t planned = Runner::PlanFor(runner->source(), options).token_bytes;
    const auto read = [&](const std::vector<TokenId>& tokens) {
      const uint64_t before = runner->weight_read_bytes();
      Alone(*runner, {tokens});
      std::vector<float> logits(runner->config().vocab_size);
      const float* hidden[] = {runner->hidden(0).data()};
      runner->Logits(hidden, logits.data());
      return runner->weight_read_bytes() - before;
    };
    const uint64_t one = read({7});
    EXPECT_LE(one, planned);
    EXPECT_GT(one, planned * 95 / 100);  // norms are read too, but by no product
    const uint64_t all = read(RandomPrompts(runner->config().vocab_size)[0]);
    EXPECT_GT(all, one);
    EXPECT_LE(all, runner->weights_bytes());
  }
}

}  // namespace
}  // namespace kvasir
