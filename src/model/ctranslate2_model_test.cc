// Models of CTranslate2's files compute what their stored numbers say.
#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/needs_for_test.h"
#include "import/ct2_file_for_test.h"
#include "import/model_files_for_test.h"
#include "model/translation_for_test.h"

namespace kvasir {
namespace {

namespace fs = std::filesystem;
using ct2_file::SmallModel;
using ct2_file::Stored;

const std::string kTiny = std::string(KVASIR_SOURCE_DIR) + "/tests/data/ct2-tiny/";
constexpr float kCt2LogitsTolerance = 5e-4f;

RunnerOptions Options() {
  RunnerOptions options;
  options.kv_format = KvFormat::kF32;
  return options;
}

Rows LogitsOfModel(ImportedModel model, const Translation& t) {
  const RunnerOptions options = Options();
  const auto runner = MakeRunner(std::move(model), options);
  return TranslateAll(*runner, Runner::LayoutFor(runner->config(), options), {t}, 512)[0];
}

Rows LogitsOfFile(const SmallModel& file, const Translation& t) {
  const TemporaryFolder folder;
  file.WriteTo(folder.path());
  return LogitsOfModel(Import(folder.path().string()), t);
}

float Farthest(const Rows& a, const Rows& b) {
  EXPECT_EQ(a.size(), b.size());
  float worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t k = 0; k < a[i].size(); ++k) worst = std::max(worst, std::abs(a[i][k] - b[i][k]));
  }
  return worst;
}

const Translation kSmall{{10, 3, 7, 7, 0, 9}, {1, 5, 8, 3, 4}};

TEST(Ctranslate2Model, IntegersComputeBitForBitWhatTheirQuotientsDo) {
  const Rows i8 = LogitsOfFile(SmallModel(Stored::kI8), kSmall);
  const Rows i16 = LogitsOfFile(SmallModel(Stored::kI16), kSmall);
  EXPECT_EQ(Differences(i8, LogitsOfFile(SmallModel(Stored::kQuotientsOfI8), kSmall)), 0u);
  EXPECT_EQ(Differences(i16, LogitsOfFile(SmallModel(Stored::kQuotientsOfI16), kSmall)), 0u);
  EXPECT_GT(Farthest(i8, i16), 0.01f);
}

TEST(Ctranslate2Model, TheEncoderReadsItsOwnVocabulary) {
  const TemporaryFolder folder;
  SmallModel(Stored::kI8).WriteTo(folder.path());
  const auto runner = MakeRunner(Import(folder.path().string()), Options());
  const KvLayout layout = Runner::LayoutFor(runner->config(), Options());
  const auto refused = [&](const Translation& t) {
    const std::vector<SequenceTables> tables = TablesForAll(layout, {t});
    const StepSource source{tables[0].tables(), 0, static_cast<uint32_t>(t.source.size())};
    return !runner->Encode({&source, 1}, t.source);
  };
  EXPECT_FALSE(refused({{10}, {1}}));
  EXPECT_TRUE(refused({{11}, {1}}));
  EXPECT_GT(
      Farthest(LogitsOfModel(Import(folder.path().string()), kSmall),
               LogitsOfModel(Import(folder.path().string()), {{10, 3, 7, 8, 0, 9}, kSmall.ids})),
      0.001f);
}

TEST(Ctranslate2Model, TheBiasOfTheHeadIsAddedToTheLogits) {
  const TemporaryFolder folder;
  SmallModel(Stored::kI8).WriteTo(folder.path());
  ImportedModel with = Import(folder.path().string()), without = Import(folder.path().string());
  std::vector<float> bias(SmallModel::kTargetVocab);
  std::memcpy(bias.data(), with.head_bias->data, bias.size() * sizeof(float));
  without.head_bias.reset();
  const Rows a = LogitsOfModel(std::move(with), kSmall),
             b = LogitsOfModel(std::move(without), kSmall);
  for (size_t row = 0; row < a.size(); ++row) {
    for (size_t i = 0; i < bias.size(); ++i) EXPECT_NEAR(a[row][i], b[row][i] + bias[i], 1e-5f);
  }
}

// Stored positions and sinusoids, aliases and tied tables.
TEST(Ctranslate2Model, ComputesWhatTheModelDoesThatWasConverted) {
  const Translation t{{5, 9, 30, 12, 2}, {2, 7, 11, 29, 36, 4}};
  const Rows original = LogitsOfModel(Import(kTiny + "hf"), t);
  const auto off = [&](const char* type) {
    return Farthest(original, LogitsOfModel(Import(kTiny + type), t));
  };
  float largest = 0;
  for (const auto& row : original) {
    for (const float x : row) largest = std::max(largest, std::abs(x));
  }
  EXPECT_LE(off("float32"), 1e-4f);
  EXPECT_LE(off("float16"), largest / 200);
  EXPECT_LE(off("bfloat16"), largest / 20);
  EXPECT_LE(off("int16"), largest / 50);
  EXPECT_LE(off("int8"), largest / 5);
  EXPECT_LE(off("int8_float16"), largest / 5);
}

void ExpectTrained(const fs::path& folder, const nlohmann::json& variant) {
  const auto runner = MakeRunner(Import(folder.string()), Options());
  const KvLayout layout = Runner::LayoutFor(runner->config(), Options());
  std::vector<Translation> all;
  std::vector<Rows> alone;
  for (const auto& golden : variant["cases"]) {
    Translation t{golden["src_ids"], golden["greedy_ids"]};
    const std::vector<TokenId> answer = t.ids;
    t.ids.pop_back();
    const std::vector<SequenceTables> tables = TablesForAll(layout, {t});
    EncodeAll(*runner, {t}, tables);
    double sum = 0, abs_sum = 0;
    for (uint32_t row = 0; row < t.source.size(); ++row) {
      for (const float x : runner->hidden(row)) {
        sum += static_cast<double>(x);
        abs_sum += static_cast<double>(std::abs(x));
      }
    }
    EXPECT_NEAR(sum, golden["encoder_sum"].get<double>(), 1e-3);
    EXPECT_NEAR(abs_sum, golden["encoder_abs_sum"].get<double>(), 1e-3);
    for (size_t i = 0; i < 8; ++i) {
      EXPECT_NEAR(runner->hidden(0)[i], golden["encoder_first_row_first8"][i].get<float>(), 1e-4f);
    }
    const Rows rows = DecodeAll(*runner, {t}, tables, 512)[0];
    ASSERT_EQ(rows.size(), golden["logits"].size());
    EXPECT_EQ(answer[0], runner->config().encoder->decoder_start);
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto& logits = golden["logits"][i];
      for (size_t k = 0; k < 8; ++k) {
        EXPECT_NEAR(rows[i][k], logits["first8"][k].get<float>(), kCt2LogitsTolerance);
      }
      double logits_sum = 0;
      for (const float x : rows[i]) logits_sum += static_cast<double>(x);
      EXPECT_NEAR(logits_sum, logits["sum"].get<double>(), 1e-3);
      EXPECT_EQ(std::ranges::max_element(rows[i]) - rows[i].begin(), answer[i + 1]);
    }
    all.push_back(t);
    alone.push_back(rows);
  }
  const std::vector<Rows> together = TranslateAll(*runner, layout, all, 1);
  for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(Differences(alone[i], together[i]), 0u) << i;
}

TEST(Ctranslate2Model, TheTrainedModelIsThatOfItsReferenceInThreeTypes) {
  const fs::path shared = fs::path(KVASIR_SHARED_DIR) / "data/aren-transliteration";
  KV_NEEDS(shared / "golden.json");
  const auto golden = nlohmann::json::parse(std::ifstream(shared / "golden.json"));
  ASSERT_EQ(golden["variants"].size(), 3u);
  for (const auto& [name, variant] : golden["variants"].items()) {
    SCOPED_TRACE(name);
    EXPECT_GE(variant["cases"].size(), 5u);
    ExpectTrained(shared / name, variant);
  }
}

}  // namespace
}  // namespace kvasir
