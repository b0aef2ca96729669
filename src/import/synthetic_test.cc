#include <cmath>

#include "import/importer.h"
#include "import/model_files_for_test.h"

namespace kvasir {
namespace {

double DoubleAt(const TensorView& view, uint64_t i) {
  uint32_t bits = 0;
  std::memcpy(&bits, view.data + i * BytesOf(view.dtype), BytesOf(view.dtype));
  if (view.dtype == DType::kF16) {
    _Float16 half;
    std::memcpy(&half, &bits, 2);
    return static_cast<double>(half);
  }
  if (view.dtype == DType::kBf16) bits <<= 16;
  float single;
  std::memcpy(&single, &bits, 4);
  return single;
}

class SyntheticDTypes : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(All, SyntheticDTypes,
                         testing::Values(DType::kF32, DType::kF16, DType::kBf16));

TEST_P(SyntheticDTypes, WeightsAreFiniteVariedAndOfDeviation002) {
  const auto model = SyntheticModel("llama-100m", GetParam(), 3);
  ASSERT_TRUE(model) << model.error().message;
  const TensorView& up = model->layers[11][Slot::kUp].view;
  double sum = 0, squares = 0, largest = 0;
  const uint64_t n = up.num_elements();
  for (uint64_t i = 0; i < n; ++i) {
    const double x = DoubleAt(up, i);
    sum += x;
    squares += x * x;
    largest = std::max(largest, std::abs(x));
  }
  EXPECT_NEAR(sum / n, 0, 1e-4);
  EXPECT_NEAR(std::sqrt(squares / n), 0.02, 2e-4);
  EXPECT_LT(largest, 0.1);
  EXPECT_NE(std::memcmp(up.data, model->layers[10][Slot::kUp].view.data, 64), 0);
  EXPECT_NE(std::memcmp(up.data, model->layers[11][Slot::kGate].view.data, 64), 0);
  EXPECT_NEAR(DoubleAt(model->final_norm, 7), 1, 0.1);
  // The last byte of the largest tensor can be read.
  EXPECT_TRUE(std::isfinite(DoubleAt(model->embedding, model->embedding.num_elements() - 1)));
}

TEST(SyntheticModel, TheSameSeedGivesTheSameBytesAndAnotherSeedOthers) {
  const auto a = SyntheticModel("tiny", DType::kF32, 1), b = SyntheticModel("tiny", DType::kF32, 1);
  const auto c = SyntheticModel("tiny", DType::kF32, 2);
  ASSERT_TRUE(a && b && c);
  const TensorView &x = a->layers[1][Slot::kQ].view, &y = b->layers[1][Slot::kQ].view,
                   &z = c->layers[1][Slot::kQ].view;
  EXPECT_EQ(std::memcmp(x.data, y.data, x.num_bytes()), 0);
  EXPECT_NE(std::memcmp(x.data, z.data, x.num_bytes()), 0);
}

uint64_t Parameters(const ImportedModel& m) {
  uint64_t n = m.embedding.num_elements() + m.final_norm.num_elements();
  if (m.lm_head) n += m.lm_head->view.num_elements();
  for (const SlotTensors& l : m.layers) {
    l.ForEach([&](Slot, const MatrixSource& tensor) { n += tensor.view.num_elements(); });
  }
  return n;
}

TEST(SyntheticModel, ShapesHaveTheParametersOfTheirNames) {
  const auto llama = SyntheticModel("llama-1b", DType::kBf16, 1);
  ASSERT_TRUE(llama) << llama.error().message;
  EXPECT_EQ(Parameters(*llama), 1'235'814'400u);  // Llama-3.2-1B's safetensors
  const auto qwen = SyntheticModel("qwen2-0.5b", DType::kBf16, 1);
  ASSERT_TRUE(qwen) << qwen.error().message;
  EXPECT_EQ(Parameters(*qwen), 494'032'768u);  // Qwen2.5-0.5B's
  EXPECT_TRUE(qwen->layers[0].Find(Slot::kQBias) && !qwen->layers[0].Find(Slot::kOBias));
  const auto small = SyntheticModel("llama-100m", DType::kBf16, 1);
  ASSERT_TRUE(small) << small.error().message;
  EXPECT_NEAR(static_cast<double>(Parameters(*small)), 100e6, 1e6);
}

TEST(SyntheticModel, TinyHasEveryOptionAndNoMultipleOf8) {
  const auto m = SyntheticModel("tiny", DType::kF16, 1);
  ASSERT_TRUE(m) << m.error().message;
  const ModelConfig& c = m->config;
  for (uint32_t size : {c.vocab_size, c.hidden_size, c.head_dim, c.ffn_size})
    EXPECT_NE(size % 8, 0u);
  EXPECT_TRUE(m->lm_head);
  for (const SlotTensors& l : m->layers) {
    for (const Slot bias : {Slot::kQBias, Slot::kKBias, Slot::kVBias, Slot::kOBias, Slot::kGateBias,
                            Slot::kUpBias, Slot::kDownBias}) {
      EXPECT_NE(l.Find(bias), nullptr) << static_cast<int>(bias);
    }
    EXPECT_EQ(l[Slot::kK].view.shape, (std::vector<uint64_t>{20, 60}));
    EXPECT_EQ(l[Slot::kDown].view.shape, (std::vector<uint64_t>{60, 100}));
  }
  EXPECT_TRUE(ValidateConfig(c, "tiny"));
}

TEST(SyntheticModel, AnUnknownShapeIsAnErrorThatListsTheKnown) {
  ExpectError(SyntheticModel("gpt-5", DType::kF32, 1), Code::kInvalidArgument,
              {"gpt-5", "llama-1b, qwen2-0.5b, llama-100m"});
}

}  // namespace
}  // namespace kvasir
