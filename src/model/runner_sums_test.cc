// Sums of softmax weights: of single tokens, by which H2O drops them, and of blocks of 16.
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "base/mapped_file.h"
#include "base/needs_for_test.h"
#include "model/runner_for_test.h"

namespace kvasir {
namespace {

// Each layer and KV head has its own tokens: the heaviest and the last ones.
class H2oSets {
 public:
  H2oSets(const ModelConfig& config, uint32_t tokens)
      : heads_(config.num_kv_heads),
        words_(tokens / 64),
        sets_(size_t{config.num_layers} * heads_),
        scores_(sets_.size(), std::vector<double>(tokens)),
        bits_(sets_.size() * words_) {}

  std::vector<TokenMask> Masks(uint32_t position) {
    for (auto& set : sets_) set.insert(position);
    std::ranges::fill(bits_, 0);
    std::vector<TokenMask> masks;
    for (size_t i = 0; i < sets_.size(); ++i) {
      for (const uint32_t t : sets_[i]) bits_[i * words_ + t / 64] |= uint64_t{1} << (t % 64);
      if (i % heads_ == 0) masks.push_back({&bits_[i * words_], words_});
    }
    return masks;
  }
  void Drop(uint32_t position, std::span<const float> sums, size_t most, uint32_t recent) {
    for (size_t i = 0; i < sets_.size(); ++i) {
      for (const uint32_t t : sets_[i]) scores_[i][t] += sums[i * words_ * 64 + t];
      if (sets_[i].size() <= most) continue;
      const auto worst = std::ranges::min_element(sets_[i], {}, [&](uint32_t t) {
        return t + recent <= position ? scores_[i][t] : INFINITY;
      });
      sets_[i].erase(worst);
    }
  }
  const std::set<uint32_t>& kept(size_t layer, size_t head) const {
    return sets_[layer * heads_ + head];
  }
  double score(size_t layer, size_t head, uint32_t t) const {
    return scores_[layer * heads_ + head][t];
  }

 private:
  const size_t heads_, words_;
  std::vector<std::set<uint32_t>> sets_;     // [layer][kv_head]
  std::vector<std::vector<double>> scores_;  // [layer][kv_head]: of all tokens
  std::vector<uint64_t> bits_;               // [layer][kv_head][word]
};

TEST(RunnerSumsGolden, DropsHeavyTokensAsNumpyDoes) {
  const std::filesystem::path folder = std::filesystem::path(KVASIR_SHARED_DIR) / "goldens";
  if (!std::filesystem::exists(folder / "h2o.json")) KV_NEEDS(folder.string());
  const auto golden = nlohmann::json::parse(*ReadTextFile(folder / "h2o.json", 1 << 24));
  const uint32_t recent = golden["recent"], most = recent + golden["heavy"].get<uint32_t>();
  for (const nlohmann::json& model : golden["models"]) {
    RunnerOptions options;
    options.kv_format = KvFormat::kF32;
    auto runner = MakeRunner(Import((folder / model["model"]).string()), options);
    const auto ids = model["ids"].get<std::vector<TokenId>>();
    const uint32_t capacity = (static_cast<uint32_t>(ids.size()) + 63) / 64 * 64;
    const SequenceTables blocks = TablesFor(Runner::LayoutFor(runner->config(), options), capacity);
    H2oSets sets(runner->config(), capacity);
    for (uint32_t p = 0; p < ids.size(); ++p) {
      std::vector<float> sums(size_t{runner->config().num_layers} * runner->config().num_kv_heads *
                              capacity);
      const std::vector<TokenMask> masks = sets.Masks(p);
      const StepSequence row{blocks.tables(), p, 0, 1, masks, sums.data(), capacity};
      ASSERT_TRUE(runner->Step({&row, 1}, {&ids[p], 1}));
      sets.Drop(p, sums, most, recent);
    }
    const std::vector<float> logits = LogitsOf(*runner, 0);
    for (size_t i = 0; i < logits.size(); ++i) {
      ASSERT_NEAR(logits[i], model["logits_after_prompt"][i].get<double>(), 5e-4);
    }
    for (size_t layer = 0; layer < model["kept"].size(); ++layer) {
      for (size_t head = 0; head < model["kept"][layer].size(); ++head) {
        const auto kept = model["kept"][layer][head].get<std::vector<uint32_t>>();
        EXPECT_TRUE(std::ranges::equal(sets.kept(layer, head), kept)) << layer << " " << head;
        for (size_t i = 0; i < kept.size(); ++i) {
          EXPECT_NEAR(sets.score(layer, head, kept[i]),
                      model["scores_of_kept"][layer][head][i].get<double>(), 1e-3);
        }
      }
    }
  }
}

class RunnerSums : public testing::TestWithParam<Target> {};

constexpr uint32_t kSummedTokens = 320, kScoredFrom = 250;

// Sums of blocks, of the rows from kScoredFrom on, and of their tokens: [layer][kv_head][...].
struct Summed {
  std::vector<float> blocks, tokens;
};

Summed SumRows(Runner& runner, const KvLayout& layout, const std::vector<TokenId>& ids,
               const std::vector<uint32_t>& chunks) {
  const ModelConfig& c = runner.config();
  const size_t rows = size_t{c.num_layers} * c.num_kv_heads;
  Summed all{std::vector<float>(rows * kSummedTokens / 16),
             std::vector<float>(rows * kSummedTokens)};
  const SequenceTables tables = TablesFor(layout, kSummedTokens);
  for (uint32_t at = 0, i = 0; at < ids.size(); ++i) {
    const auto n =
        std::min<uint32_t>(chunks[i % chunks.size()], static_cast<uint32_t>(ids.size()) - at);
    StepSequence sequence{.tables = tables.tables(), .position = at, .first_row = 0, .num_rows = n};
    sequence.block_sums = all.blocks.data();
    sequence.block_sums_stride = kSummedTokens / 16;
    sequence.scored_from = std::min(n, kScoredFrom - std::min(kScoredFrom, at));
    if (at >= kScoredFrom) {
      sequence.token_sums = all.tokens.data();
      sequence.sums_stride = kSummedTokens;
    }
    EXPECT_TRUE(runner.Step({&sequence, 1}, {ids.data() + at, n}));
    at += n;
  }
  return all;
}

TEST_P(RunnerSums, BlocksHaveTheWeightsOfTheirTokensWhateverTheChunks) {
  Random random(42);
  for (const char* format : {"f16", "k=int4,v=fp8_e4m3", "int8", "nf4"}) {
    RunnerOptions options;
    options.kv_format = *ParseKvFormats(format);
    auto plain = MakeRunner(Import(kDemo), options);
    options.target = GetParam();
    options.threads = 3;
    auto other = MakeRunner(Import(kDemo), options);
    const ModelConfig& c = plain->config();
    const KvLayout layout = Runner::LayoutFor(c, options);
    const auto ids = RandomTokens(random, 300, c.vocab_size);
    const Summed want = SumRows(*plain, layout, ids, {kScoredFrom, 512});
    for (size_t i = 0; i < want.blocks.size(); ++i) {
      double sum = 0;
      for (size_t t = 0; t < 16; ++t) sum += want.tokens[16 * i + t];
      EXPECT_NEAR(want.blocks[i], sum, 1e-4) << format;
    }
    for (const auto& chunks : {std::vector<uint32_t>{512}, {1}, {13, 1, 2, 64, 5}}) {
      EXPECT_EQ(SumRows(*other, layout, ids, chunks).blocks, want.blocks) << format;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, RunnerSums, testing::ValuesIn(SupportedTargets()), TargetName);

}  // namespace
}  // namespace kvasir
