#include "model/runner.h"

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/fault.h"
#include "import/tiny_models_for_test.h"
#include "model/runner_for_test.h"
#include "source_paths.h"

namespace kvasir {
namespace {

TEST(Runner, ReproducesTheBundledModelsGoldenAnswers) {
  const auto golden = nlohmann::json::parse(std::ifstream(kDemo + "/golden.json"));
  RunnerOptions options;
  options.kv_format = KvFormat::kF32;
  auto runner = MakeRunner(Import(kDemo), options);
  const KvLayout layout = Runner::LayoutFor(runner->config(), options);
  for (const auto& prompt : golden["prompts"]) {
    auto ids = prompt["ids"].get<std::vector<TokenId>>();
    const size_t prompt_size = ids.size();
    const auto greedy = prompt["greedy"].get<std::vector<TokenId>>();
    ids.insert(ids.end(), greedy.begin(), greedy.end() - 1);
    const Rows rows = Prefill(*runner, layout, ids, {512});
    for (const auto& [id, logit] : prompt["top8"].get<std::vector<std::pair<int, double>>>()) {
      EXPECT_NEAR(rows[prompt_size - 1][id], logit, 5e-4);
    }
    for (size_t i = 0; i < greedy.size(); ++i) {
      const auto& row = rows[prompt_size - 1 + i];
      EXPECT_EQ(std::max_element(row.begin(), row.end()) - row.begin(), greedy[i]);
    }
  }
}

// Returns fewer formats under a sanitizer, where each takes a minute.
std::vector<KvFormats> FormatsToTry() {
#ifdef KVASIR_SANITIZED
  return {KvFormat::kF16, KvFormat::kInt4};
#else
  return {KvFormat::kF32,  KvFormat::kF16,  KvFormat::kBf16,
          KvFormat::kInt8, KvFormat::kInt4, {KvFormat::kNf4, KvFormat::kFp8E4m3}};
#endif
}

class RunnerTargets : public testing::TestWithParam<Target> {};

TEST_P(RunnerTargets, ChunksThreadsFormatsAndTargetsNeverMoveABit) {
  Random random(5);
  for (const KvFormats format : FormatsToTry()) {
    RunnerOptions options;
    options.kv_format = format;
    auto plain = MakeRunner(Import(kDemo), options);
    options.target = GetParam();
    options.threads = 2;
    options.block_tokens = 32;
    auto other = MakeRunner(Import(kDemo), options);
    const KvLayout wide = Runner::LayoutFor(other->config(), options);
    options.block_tokens = 16;
    const KvLayout narrow = Runner::LayoutFor(plain->config(), options);
    const auto tokens = RandomTokens(random, 300, plain->config().vocab_size);
    const Rows expected = Prefill(*plain, narrow, tokens, {512});
    EXPECT_EQ(Differences(expected, Prefill(*other, wide, tokens, {512})), 0u);
    EXPECT_EQ(Differences(expected, Prefill(*other, wide, tokens, {1})), 0u);
    EXPECT_EQ(Differences(expected, Prefill(*other, wide, tokens, {13, 1, 2, 64, 5})), 0u);
  }
}

// A tiny model of each family: norms after branches and of heads, partial or no RoPE, learned
// positions, multipliers, plain FFNs.
TEST_P(RunnerTargets, ChunksThreadsAndTargetsNeverMoveABitOfAnyFamily) {
  Random random(31);
  for (const std::string& family : TinyModels()) {
    const std::string path = TinyModelPath(family);
    for (const KvFormat format : {KvFormat::kF16, KvFormat::kInt4}) {
      RunnerOptions options;
      options.kv_format = format;
      auto plain = MakeRunner(Import(path), options);
      options.target = GetParam();
      options.threads = 2;
      auto other = MakeRunner(Import(path), options);
      options.max_positions = other->config().max_positions;
      const KvLayout layout = Runner::LayoutFor(other->config(), options);
      const auto tokens = RandomTokens(random, 200, plain->config().vocab_size);
      const Rows expected = Prefill(*plain, layout, tokens, {512});
      for (const auto& chunks : {std::vector<uint32_t>{512}, {1}, {13, 1, 2, 64, 5}}) {
        EXPECT_EQ(Differences(expected, Prefill(*other, layout, tokens, chunks)), 0u) << family;
      }
    }
  }
}

TEST(Runner, LaneOrderAndChunkEdgeFaultsShow) {
  // With RMSNorm, and with LayerNorm.
  for (const std::string& model : {kDemo, TinyModelPath("tiny-gpt2")}) {
    SCOPED_TRACE(model);
    Random random(7);
    RunnerOptions options;
    auto runner = MakeRunner(Import(model), options);
    const KvLayout layout = Runner::LayoutFor(runner->config(), options);
    const auto tokens = RandomTokens(random, 40, runner->config().vocab_size);
    const Rows expected = Prefill(*runner, layout, tokens, {512});
    InjectFault(Fault::kLaneOrder);
    EXPECT_GT(Differences(expected, Prefill(*runner, layout, tokens, {1})), 0u);
    InjectFault(Fault::kChunkEdge);
    EXPECT_GT(Differences(expected, Prefill(*runner, layout, tokens, {20})), 0u);
    InjectFault(Fault::kNone);
    EXPECT_EQ(Differences(expected, Prefill(*runner, layout, tokens, {20})), 0u);
  }
}

TEST(Runner, ZeroScratchLeavesNothingOfAStepAndMovesNoBit) {
  for (const KvFormat format : {KvFormat::kF16, KvFormat::kInt8}) {
    Random random(8);
    RunnerOptions options;
    options.kv_format = format;
    options.threads = 2;
    auto runner = MakeRunner(Import(kDemo), options);
    const KvLayout layout = Runner::LayoutFor(runner->config(), options);
    const auto tokens = RandomTokens(random, 40, runner->config().vocab_size);
    const Rows expected = Prefill(*runner, layout, tokens, {512});
    const auto is_zero = [](float x) { return x == 0; };
    EXPECT_FALSE(std::ranges::all_of(runner->hidden(39), is_zero));
    runner->ZeroScratch();
    for (uint32_t row = 0; row < 40; ++row) {
      EXPECT_TRUE(std::ranges::all_of(runner->hidden(row), is_zero));
    }
    EXPECT_EQ(Differences(expected, Prefill(*runner, layout, tokens, {7})), 0u);
    runner->ZeroScratch();
    EXPECT_EQ(Differences(expected, Prefill(*runner, layout, tokens, {512})), 0u);
  }
}

TEST(Runner, RefusesTokensOutsideTheVocabulary) {
  RunnerOptions options;
  auto runner = MakeRunner(Import(kDemo), options);
  const KvLayout layout = Runner::LayoutFor(runner->config(), options);
  const SequenceTables blocks = TablesFor(layout, 16);
  for (TokenId bad : {-1, 1024, 1 << 30}) {
    const StepSequence sequence{blocks.tables(), 0, 0, 1};
    const auto status = runner->Step({&sequence, 1}, {&bad, 1});
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, Code::kInvalidArgument);
  }
}

TEST(Runner, RefusesWeightsThatAreNotFiniteAndNamesTheTensor) {
  const std::string tiny = std::string(KVASIR_SOURCE_DIR) + "/tests/data/tiny-bias";  // untied, f32
  for (auto find : {+[](ImportedModel& m) { return &m.embedding; },
                    +[](ImportedModel& m) { return &m.lm_head->view; },
                    +[](ImportedModel& m) { return &m.layers[1][Slot::kFfnNorm].view; },
                    +[](ImportedModel& m) { return &m.layers[1][Slot::kUp].view; },
                    +[](ImportedModel& m) { return &m.layers[0][Slot::kQBias].view; }}) {
    for (float bad : {NAN, -INFINITY}) {
      ImportedModel model = Import(tiny);
      TensorView& view = *find(model);
      std::vector<std::byte> bytes(view.data, view.data + view.num_bytes());
      std::memcpy(bytes.data() + bytes.size() - sizeof(bad), &bad, sizeof(bad));
      view.data = bytes.data();
      const std::string name = view.name;
      const auto runner = Runner::Create(std::move(model), RunnerOptions(), nullptr);
      ASSERT_FALSE(runner) << name;
      EXPECT_EQ(runner.error().code, Code::kCorruption);
      EXPECT_NE(runner.error().message.find(name), std::string::npos) << runner.error().message;
    }
  }
}

// A norm of heads or after a branch would turn an overflow into finite numbers again.
// The weights of these models are bf16.
TEST_P(RunnerTargets, ARowThatOverflowsFailsWhateverNormFollows) {
  const std::pair<const char*, Slot> cases[] = {{"tiny-qwen3", Slot::kK},
                                                {"tiny-olmo2", Slot::kK},
                                                {"tiny-olmo2", Slot::kDown},
                                                {"tiny-granite", Slot::kO}};
  for (const auto& [family, slot] : cases) {
    ImportedModel model = Import(std::string(KVASIR_SOURCE_DIR) + "/tests/data/" + family);
    std::vector<uint16_t> largest(model.layers[0][slot].view.num_elements(), 0x7f7f);
    model.layers[0][slot].view.data = reinterpret_cast<const std::byte*>(largest.data());
    RunnerOptions options;
    options.target = GetParam();
    const KvLayout layout = Runner::LayoutFor(model.config, options);
    auto runner = MakeRunner(std::move(model), options);
    const SequenceTables blocks = TablesFor(layout, 16);
    const StepSequence sequence{blocks.tables(), 0, 0, 3};
    const TokenId tokens[] = {1, 2, 3};
    ASSERT_TRUE(runner->Step({&sequence, 1}, tokens));
    for (uint32_t r = 0; r < 3; ++r) EXPECT_FALSE(runner->finite(r)) << family << " " << r;
  }
}

INSTANTIATE_TEST_SUITE_P(All, RunnerTargets, testing::ValuesIn(SupportedTargets()), TargetName);

}  // namespace
}  // namespace kvasir
