// Rule 11 of docs/numerics.md where a Runner applies it: scales, positions and soft-caps have the
// bits of their definition, and what is not finite fails its row in every family.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "block/sequence_tables.h"
#include "import/tiny_models_for_test.h"
#include "model/runner.h"
#include "source_paths.h"
#include "tensor/kernels.h"
#include "tensor/reference.h"

namespace kvasir {
namespace {

ImportedModel ImportFamily(const std::string& family) {
  auto model = ImportModel(TinyModelPath(family));
  EXPECT_TRUE(model) << (model ? "" : model.error().message);
  return std::move(*model);
}

// What a model makes of three tokens: the last one's hidden state and logits.
struct Outcome {
  bool finite;
  std::vector<float> hidden, logits;
};
Outcome RunTokens(ImportedModel model, Target target, uint32_t num_tokens = 3) {
  RunnerOptions options;
  options.target = target;
  options.max_positions = model.config.max_positions;
  const KvLayout layout = Runner::LayoutFor(model.config, options);
  auto made = Runner::Create(std::move(model), options, nullptr);
  EXPECT_TRUE(made) << (made ? "" : made.error().message);
  Runner& runner = **made;
  const SequenceTables blocks = std::move(*SequenceTables::Create(layout, 16));
  const TokenId tokens[] = {5, 2, 9};
  const StepSequence sequence{blocks.tables(), 0, 0, num_tokens};
  EXPECT_TRUE(runner.Step({&sequence, 1}, {tokens, num_tokens}));
  const auto hidden = runner.hidden(num_tokens - 1);
  Outcome outcome{runner.finite(num_tokens - 1), {hidden.begin(), hidden.end()}, {}};
  outcome.logits.resize(runner.config().vocab_size);
  const float* in[] = {outcome.hidden.data()};
  runner.Logits(in, outcome.logits.data());
  return outcome;
}

// Returns the numbers of a view, widened.
std::vector<float> NumbersOf(const TensorView& view) {
  std::vector<float> numbers(view.num_elements());
  TensorKernelsFor(Target::kScalar)
      .widen(view.data, view.dtype, static_cast<uint32_t>(numbers.size()), numbers.data());
  return numbers;
}
void Replace(TensorView& view, const std::vector<float>& numbers) {
  view.dtype = DType::kF32;
  view.data = reinterpret_cast<const std::byte*>(numbers.data());
}

class FamilyRules : public testing::TestWithParam<Target> {};

TEST_P(FamilyRules, LogitsAreDividedByTheirScaling) {
  ImportedModel plain = ImportFamily("tiny-granite"), scaled = ImportFamily("tiny-granite");
  plain.config.logits_scaling = 1;
  scaled.config.logits_scaling = 3;
  std::vector<float> expected = RunTokens(std::move(plain), GetParam()).logits;
  for (float& x : expected) x = x / 3.0f;
  EXPECT_EQ(RunTokens(std::move(scaled), GetParam()).logits, expected);
}

TEST_P(FamilyRules, LogitsAreCappedAfterTheHead) {
  ImportedModel plain = ImportFamily("tiny-gemma2"), capped = ImportFamily("tiny-gemma2");
  plain.config.logits_softcap.reset();
  capped.config.logits_softcap = 1.5;
  const Outcome without = RunTokens(std::move(plain), GetParam());
  std::vector<float> expected = without.logits;
  for (float& x : expected) x = reference::SoftCap(1.5f, x);
  const Outcome with = RunTokens(std::move(capped), GetParam());
  EXPECT_EQ(with.logits, expected);
  EXPECT_EQ(with.hidden, without.hidden);  // what a Cursor keeps
}

// The same model with the scale and the position of token 0 already in its table.
TEST_P(FamilyRules, AnEmbeddingIsScaledAndGetsItsPositionInF32) {
  for (const char* family : {"tiny-granite", "tiny-gemma2", "tiny-gpt2"}) {
    ImportedModel other = ImportFamily(family);
    const uint32_t hidden = other.config.hidden_size;
    const auto scale = static_cast<float>(other.config.embedding_multiplier);
    std::vector<float> table = NumbersOf(other.embedding), positions(hidden);
    std::vector<float> none(size_t{other.config.max_positions} * hidden);
    if (other.positions) positions = NumbersOf(*other.positions);
    for (size_t i = 0; i < table.size(); ++i) {
      table[i] = table[i] * scale + positions[i % hidden];
    }
    Replace(other.embedding, table);
    if (other.positions) Replace(*other.positions, none);
    other.config.embedding_multiplier = 1;
    EXPECT_TRUE(scale != 1 || other.positions) << family;
    EXPECT_EQ(RunTokens(std::move(other), GetParam(), 1).hidden,
              RunTokens(ImportFamily(family), GetParam(), 1).hidden)
        << family;
  }
}

// Whatever norm, activation or soft-cap follows: none may turn an overflow into numbers again.
TEST_P(FamilyRules, WhatOverflowsInAnyMatrixFailsItsRow) {
  for (const std::string& family : TinyModels()) {
    for (const Slot slot :
         {Slot::kQ, Slot::kK, Slot::kV, Slot::kO, Slot::kGate, Slot::kUp, Slot::kDown}) {
      ImportedModel model = ImportFamily(family);
      if (model.layers[0].Find(slot) == nullptr) continue;
      MatrixSource& source = model.layers[0][slot];
      const std::vector<float> largest(source.view.num_elements(), 3e38f);
      Replace(source.view, largest);
      source.column_stride = 1;
      EXPECT_FALSE(RunTokens(std::move(model), GetParam()).finite)
          << family << ", slot " << static_cast<int>(slot);
    }
  }
}

TEST_P(FamilyRules, ALogitThatOverflowsIsNoNumberUnderASoftCap) {
  ImportedModel model = ImportFamily("tiny-gemma2");
  const std::vector<float> largest(model.embedding.num_elements(), 3e38f);
  model.lm_head = MatrixSource{.view = model.embedding};
  Replace(model.lm_head->view, largest);
  model.config.tied_embeddings = false;
  const Outcome outcome = RunTokens(std::move(model), GetParam());
  EXPECT_TRUE(outcome.finite);
  for (const float logit : outcome.logits) EXPECT_TRUE(std::isnan(logit));
}

INSTANTIATE_TEST_SUITE_P(All, FamilyRules, testing::ValuesIn(SupportedTargets()),
                         [](const auto& info) { return std::string(NameOf(info.param)); });

}  // namespace
}  // namespace kvasir
