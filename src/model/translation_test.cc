// Encoder-decoder models: equal to float64 references, and to themselves in any batch.
#include <algorithm>
#include <filesystem>

#include "base/needs_for_test.h"
#include "format/pack.h"
#include "model/npz_for_test.h"
#include "model/translation_for_test.h"

namespace kvasir {
namespace {

constexpr float kLogitsTolerance = 5e-4f, kKvTolerance = 2e-4f;

// Unpacks numbers as kv_tool does: [head][token][dim].
std::vector<float> Unpacked(const KvLayout& groups, const SequenceTables& blocks, uint32_t layer,
                            bool is_key, uint32_t tokens) {
  const auto [group, slot] = groups.place(layer);
  const BlockLayout& layout = groups.layout(group);
  const BlockPart& part = is_key ? layout.key(slot) : layout.value(slot);
  const uint32_t n = layout.block_tokens(), head_dim = layout.shape().head_dim;
  std::vector<float> numbers;
  for (uint32_t head = 0; head < layout.shape().kv_heads; ++head) {
    for (uint32_t token = 0; token < tokens; ++token) {
      const uint32_t t = token % n, lane = t % kRunTokens;
      const uint64_t run = uint64_t{head} * (n / kRunTokens) + t / kRunTokens;
      const std::byte* at = blocks[group].bases()[token / n] + part.offset + run * part.run_bytes;
      for (uint32_t dim = 0; dim < head_dim; ++dim) {
        numbers.push_back(is_key ? KeyNumber(part.format, at, lane, dim)
                                 : ValueNumber(part.format, head_dim, at, lane, dim));
      }
    }
  }
  return numbers;
}

void ExpectNear(const std::vector<float>& got, const NpyArray& want, float tolerance,
                const std::string& what) {
  ASSERT_EQ(got.size(), want.numbers.size()) << what;
  float worst = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    worst = std::max(worst, std::abs(got[i] - want.numbers[i]));
  }
  EXPECT_LE(worst, tolerance) << what;
}

void ExpectGolden(const std::string& folder) {
  const auto golden = nlohmann::json::parse(std::ifstream(folder + "/golden.json"));
  const auto arrays = ReadNpz(folder + "/golden.npz");
  RunnerOptions options;
  options.kv_format = KvFormat::kF32;
  auto runner = MakeRunner(Import(folder), options);
  const KvLayout layout = Runner::LayoutFor(runner->config(), options);
  EXPECT_EQ(layout.num_cross_groups(), 1u);
  uint32_t index = 0;
  std::vector<Translation> all;
  std::vector<Rows> alone;
  for (const auto& source : golden["sources"]) {
    const std::string name = "s" + std::to_string(index++) + ".";
    Translation t{source["ids"], source["greedy"]["ids"]};
    const std::vector<TokenId> answer = t.ids;
    t.ids.pop_back();
    std::vector<SequenceTables> tables = TablesForAll(layout, {t});
    EncodeAll(*runner, {t}, tables);
    std::vector<float> encoded;
    for (uint32_t row = 0; row < t.source.size(); ++row) {
      encoded.insert(encoded.end(), runner->hidden(row).begin(), runner->hidden(row).end());
    }
    const Rows rows = DecodeAll(*runner, {t}, tables, 512)[0];
    std::vector<float> logits;
    for (const auto& row : rows) logits.insert(logits.end(), row.begin(), row.end());
    ExpectNear(logits, arrays.at(name + "greedy_logits"), kLogitsTolerance, name);
    EXPECT_EQ(answer[0], runner->config().encoder->decoder_start);
    EXPECT_EQ(answer[1], source["forced_bos_token_id"].get<TokenId>());
    for (size_t i = 2; i < answer.size(); ++i) {
      const auto& row = rows[i - 1];
      EXPECT_EQ(std::max_element(row.begin(), row.end()) - row.begin(), answer[i]) << name << i;
    }
    all.push_back(t);
    alone.push_back(rows);
    if (!arrays.contains(name + "encoder")) continue;
    ExpectNear(encoded, arrays.at(name + "encoder"), kKvTolerance, "encoder");
    for (const bool is_key : {true, false}) {
      const std::string part = is_key ? "k" : "v";
      ExpectNear(Unpacked(layout, tables[0], 0, is_key, static_cast<uint32_t>(t.ids.size())),
                 arrays.at(name + "self.layer0." + part), kKvTolerance, "self " + part);
      ExpectNear(Unpacked(layout, tables[0], runner->config().num_layers, is_key,
                          static_cast<uint32_t>(t.source.size())),
                 arrays.at(name + "cross.layer0." + part), kKvTolerance, "cross " + part);
    }
  }
  EXPECT_GE(index, 4u);
  // What transformers pads to a batch is here one without padding.
  const std::vector<Rows> together = TranslateAll(*runner, layout, all, 1);
  for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(Differences(alone[i], together[i]), 0u) << i;
}

TEST(Translation, OurTinyModelIsThatOfItsReference) { ExpectGolden(TinyTranslator()); }

TEST(Translation, TheSharedModelIsThatOfTransformers) {
  const std::string folder = std::string(KVASIR_SHARED_DIR) + "/goldens/m2m100";
  KV_NEEDS(folder);
  ExpectGolden(folder);
}

std::vector<Translation> RandomTranslations(Random& random, const ModelConfig& config,
                                            std::initializer_list<std::pair<int, int>> sizes) {
  std::vector<Translation> all;
  for (const auto& [source, ids] : sizes) {
    all.push_back({RandomTokens(random, static_cast<uint32_t>(source), config.vocab_size),
                   RandomTokens(random, static_cast<uint32_t>(ids), config.vocab_size)});
  }
  return all;
}

class TranslationTargets : public testing::TestWithParam<Target> {};

TEST_P(TranslationTargets, BatchesChunksThreadsAndTargetsNeverMoveABit) {
  Random random(21);
  for (const KvFormats format : {KvFormats(KvFormat::kF16), KvFormats(KvFormat::kInt4),
                                 KvFormats{KvFormat::kNf4, KvFormat::kFp8E4m3}}) {
    RunnerOptions options;
    options.kv_format = format;
    auto plain = MakeRunner(Import(TinyTranslator()), options);
    const KvLayout narrow = Runner::LayoutFor(plain->config(), options);
    const auto all = RandomTranslations(
        random, plain->config(),
        {{1, 5}, {300, 40}, {16, 1}, {17, 3}, {64, 270}, {65, 2}, {2, 33}, {20, 12}});
    std::vector<Rows> alone;
    for (const Translation& t : all) {
      alone.push_back(TranslateAll(*plain, narrow, {t}, 512)[0]);
    }
    options.target = GetParam();
    options.threads = 2;
    options.block_tokens = 32;
    auto other = MakeRunner(Import(TinyTranslator()), options);
    const KvLayout wide = Runner::LayoutFor(other->config(), options);
    for (const uint32_t chunk : {1u, 2u, 3u, 50u}) {
      const std::vector<Rows> together = TranslateAll(*other, wide, all, chunk);
      other->ZeroScratch();
      for (size_t i = 0; i < all.size(); ++i) {
        EXPECT_EQ(Differences(alone[i], together[i]), 0u) << NameOf(format) << " " << i;
      }
    }
  }
}

TEST_P(TranslationTargets, QuantisedWeightsNeverMoveABitEither) {
  Random random(22);
  for (const char* name : {"i8", "q4_0"}) {
    RunnerOptions options;
    options.weights = FindWeightChoice(name);
    auto plain = MakeRunner(Import(TinyTranslator()), options);
    const KvLayout layout = Runner::LayoutFor(plain->config(), options);
    const auto all =
        RandomTranslations(random, plain->config(), {{33, 9}, {5, 20}, {48, 17}, {1, 1}});
    options.target = GetParam();
    options.threads = 2;
    auto other = MakeRunner(Import(TinyTranslator()), options);
    const std::vector<Rows> together = TranslateAll(*other, layout, all, 2);
    for (size_t i = 0; i < all.size(); ++i) {
      EXPECT_EQ(Differences(TranslateAll(*plain, layout, {all[i]}, 512)[0], together[i]), 0u);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, TranslationTargets, testing::ValuesIn(SupportedTargets()),
                         TargetName);

// Rows of several sequences over one source, as beams have it, read the same blocks.
TEST(Translation, SequencesThatShareASourceGiveWhatEachGivesAlone) {
  Random random(23);
  RunnerOptions options;
  auto runner = MakeRunner(Import(TinyTranslator()), options);
  const KvLayout layout = Runner::LayoutFor(runner->config(), options);
  const uint32_t cross = layout.num_own_groups();
  for (const uint32_t tokens : {20u, 290u}) {
    auto all = RandomTranslations(random, runner->config(), {{1, 10}, {1, 10}, {1, 10}});
    const auto text = RandomTokens(random, tokens, runner->config().vocab_size);
    for (Translation& t : all) t.source = text;
    std::vector<Rows> alone;
    for (const Translation& t : all) alone.push_back(TranslateAll(*runner, layout, {t}, 512)[0]);
    auto pool = *BlockPool::Create(layout.block_bytes(), 64);
    std::vector<std::vector<BlockTable>> tables(all.size());
    for (size_t i = 0; i < all.size(); ++i) {
      tables[i].resize(2);
      tables[i][0].Append(pool->Allocate());
      for (uint32_t at = 0; at < tokens; at += 16) {
        tables[i][cross].Append(i == 0 ? pool->Allocate() : tables[0][cross].ref(at / 16).Share());
      }
    }
    const StepSource source{tables[0], 0, tokens};
    ASSERT_TRUE(runner->Encode({&source, 1}, text));
    for (uint32_t at = 0; at < 10; ++at) {
      std::vector<StepSequence> step;
      std::vector<TokenId> ids;
      for (uint32_t i = 0; i < all.size(); ++i) {
        step.push_back({tables[i], at, i, 1});
        step.back().source_tokens = tokens;
        ids.push_back(all[i].ids[at]);
      }
      ASSERT_TRUE(runner->Step(step, ids));
      for (uint32_t i = 0; i < all.size(); ++i) {
        EXPECT_EQ(Differences({alone[i][at]}, {LogitsOf(*runner, i)}), 0u);
      }
    }
  }
}

TEST(Translation, RefusesTokensOutsideTheVocabulary) {
  RunnerOptions options;
  auto runner = MakeRunner(Import(TinyTranslator()), options);
  const SequenceTables tables = TablesFor(Runner::LayoutFor(runner->config(), options), 16);
  for (const TokenId bad : {-1, 71}) {
    const StepSource source{tables.tables(), 0, 1};
    const Status status = runner->Encode({&source, 1}, {&bad, 1});
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, Code::kInvalidArgument);
  }
}

// A weight so large that activations overflow: the source fails, and its batch mates do not.
TEST(Translation, ASourceThatOverflowsFailsAlone) {
  ImportedModel model = Import(TinyTranslator());
  TensorView& view = model.embedding;
  std::vector<float> numbers(view.num_elements());
  view.dtype = DType::kF32;
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = 0.01f * static_cast<float>(i % 97);
  for (uint32_t i = 0; i < 36; ++i) numbers[36 * 5 + i] = 3e38f;  // times the multiplier: infinite
  view.data = reinterpret_cast<const std::byte*>(numbers.data());
  RunnerOptions options;
  const KvLayout layout = Runner::LayoutFor(model.config, options);
  auto runner = MakeRunner(std::move(model), options);
  const std::vector<Translation> all = {{{6, 7, 8}, {2}}, {{9, 5}, {2}}, {{10}, {2}}};
  const std::vector<SequenceTables> tables = TablesForAll(layout, all);
  std::vector<StepSource> sources;
  for (uint32_t i = 0, row = 0; i < 3; row += static_cast<uint32_t>(all[i++].source.size())) {
    sources.push_back({tables[i].tables(), row, static_cast<uint32_t>(all[i].source.size())});
  }
  const TokenId tokens[] = {6, 7, 8, 9, 5, 10};
  ASSERT_TRUE(runner->Encode(sources, tokens));
  EXPECT_TRUE(runner->source_finite(0));
  EXPECT_FALSE(runner->source_finite(1));
  EXPECT_TRUE(runner->source_finite(2));
}

}  // namespace
}  // namespace kvasir
