// Runs before a sequence's tables: what sees them, from which place, and in which order.
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/mapped_file.h"
#include "base/needs_for_test.h"
#include "model/runner_for_test.h"

namespace kvasir {
namespace {

struct Bounds {
  uint32_t sinks, budget;
  std::optional<uint32_t> query_position;
};

// Computes rows over tables that keep all; those from `budget` on see the first `sinks` tokens and
// the last budget - sinks. Chunks end at `budget`.
Rows Bounded(Runner& runner, const KvLayout& layout, const std::vector<TokenId>& tokens,
             const Bounds& bounds, uint32_t chunk) {
  const auto size = static_cast<uint32_t>(tokens.size());
  const SequenceTables blocks = TablesFor(layout, size);
  Rows rows;
  for (uint32_t at = 0; at < size;) {
    const uint32_t end = at < bounds.budget ? std::min(bounds.budget, size) : size;
    const uint32_t n = std::min(chunk, end - at);
    StepSequence sequence{blocks.tables(), at, 0, n};
    const StepRun run{blocks.tables(), 0, bounds.sinks, bounds.query_position};
    if (at >= bounds.budget) {
      sequence.window = bounds.budget - bounds.sinks;
      if (bounds.sinks > 0) sequence.runs = {&run, 1};
    }
    EXPECT_TRUE(runner.Step({&sequence, 1}, {tokens.data() + at, n}));
    for (uint32_t r = 0; r < n; ++r) rows.push_back(LogitsOf(runner, r));
    at += n;
  }
  return rows;
}

class RunnerRuns : public testing::TestWithParam<Target> {};

TEST_P(RunnerRuns, ChunksThreadsAndTargetsChangeNoBit) {
  Random random(40);
  for (const char* format : {"f16", "k=int4,v=fp8_e4m3"}) {
    RunnerOptions options;
    options.kv_format = *ParseKvFormats(format);
    auto plain = MakeRunner(Import(kDemo), options);
    options.target = GetParam();
    options.threads = 3;
    auto other = MakeRunner(Import(kDemo), options);
    const KvLayout layout = Runner::LayoutFor(plain->config(), options);
    const auto tokens = RandomTokens(random, 300, plain->config().vocab_size);
    for (const Bounds& bounds : {Bounds{4, 32, 31}, {70, 200, 199}}) {
      const Rows want = Bounded(*plain, layout, tokens, bounds, 512);
      for (const uint32_t chunk : {1u, 7u, 64u}) {
        EXPECT_EQ(Differences(want, Bounded(*other, layout, tokens, bounds, chunk)), 0u)
            << format << " " << bounds.sinks << " " << chunk;
      }
    }
  }
}

// A run that is asked from the rows' own place is a mask over one run; only the tiles differ.
TEST_P(RunnerRuns, SeesWhatAMaskShows) {
  Random random(41);
  RunnerOptions options;
  options.target = GetParam();
  options.kv_format = KvFormat::kF32;  // a rounded key would show the order of sums
  auto runner = MakeRunner(Import(kDemo), options);
  const ModelConfig& c = runner->config();
  const KvLayout layout = Runner::LayoutFor(c, options);
  const auto tokens = RandomTokens(random, 300, c.vocab_size);
  for (const Bounds& bounds : {Bounds{5, 48, std::nullopt}, {0, 48, std::nullopt}}) {
    const Rows runs = Bounded(*runner, layout, tokens, bounds, 64);
    const SequenceTables blocks = TablesFor(layout, 320);
    double most = 0;
    for (uint32_t p = 0; p < tokens.size(); ++p) {
      std::vector<uint64_t> words(size_t{c.num_kv_heads} * 5);
      for (uint32_t t = 0; t <= p; ++t) {
        const bool seen =
            p < bounds.budget || t < bounds.sinks || t + (bounds.budget - bounds.sinks) > p;
        for (uint32_t head = 0; seen && head < c.num_kv_heads; ++head) {
          words[head * 5 + t / 64] |= uint64_t{1} << (t % 64);
        }
      }
      const std::vector<TokenMask> masks(c.num_layers, TokenMask{words.data(), 5});
      const StepSequence sequence{blocks.tables(), p, 0, 1, masks};
      ASSERT_TRUE(runner->Step({&sequence, 1}, {tokens.data() + p, 1}));
      const std::vector<float> masked = LogitsOf(*runner, 0);
      for (size_t i = 0; i < masked.size(); ++i) {
        most = std::max<double>(most, std::abs(masked[i] - runs[p][i]));
      }
    }
    EXPECT_LT(most, bounds.sinks == 0 ? 1e-30 : 1e-4);
  }
}

TEST(RunnerRunsGolden, StreamsAsNumpyDoes) {
  const std::filesystem::path folder = std::filesystem::path(KVASIR_SHARED_DIR) / "goldens";
  if (!std::filesystem::exists(folder / "sinks.json")) KV_NEEDS(folder.string());
  const auto golden = nlohmann::json::parse(*ReadTextFile(folder / "sinks.json", 1 << 24));
  RunnerOptions options;
  options.kv_format = KvFormat::kF32;
  auto runner = MakeRunner(Import((folder / golden["model"]).string()), options);
  const KvLayout layout = Runner::LayoutFor(runner->config(), options);
  const auto ids = golden["ids"].get<std::vector<TokenId>>();
  const uint32_t sinks = golden["sinks"], budget = sinks + golden["window"].get<uint32_t>();
  for (const char* kind : {"reassigned", "original_positions"}) {
    std::optional<uint32_t> position;
    if (kind == std::string_view("reassigned")) position = budget - 1;
    const Rows rows = Bounded(*runner, layout, ids, {sinks, budget, position}, 64);
    for (const auto& [token, logits] : golden[kind]["logits_after_token"].items()) {
      const std::vector<float>& row = rows[std::stoul(token)];
      for (size_t i = 0; i < row.size(); ++i) {
        ASSERT_NEAR(row[i], logits[i].get<double>(), 5e-4) << kind << " " << token;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, RunnerRuns, testing::ValuesIn(SupportedTargets()), TargetName);

}  // namespace
}  // namespace kvasir
