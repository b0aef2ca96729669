// Experts of a GGUF file in K-quants, from the file to the hidden states.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <vector>

#include "backend/panel_filler.h"
#include "base/random.h"
#include "block/sequence_tables.h"
#include "import/gguf_importer.h"
#include "import/model_files_for_test.h"
#include "model/runner.h"
#include "simd/half.h"

namespace kvasir {
namespace {

constexpr uint32_t kHidden = 256, kExperts = 5, kChosen = 2, kExpertFfn = 512, kVocab = 40;
constexpr uint32_t kHeads = 4, kKvHeads = 2, kHeadDim = 32;
const std::map<DType, uint32_t> kGgmlTypes = {
    {DType::kF32, 0}, {DType::kQ8_0, 8}, {DType::kQ4K, 12}, {DType::kQ5K, 13}, {DType::kQ6K, 14}};

// Draws codes and scales of blocks; the factors of a block (f16) are about `factor`.
std::string RandomBlocks(DType dtype, uint64_t numbers, float factor, Random& random) {
  const auto block_bytes = BlockOf(dtype).bytes;
  std::string bytes(StoredBytes(dtype, numbers), '\0');
  for (char& byte : bytes) byte = static_cast<char>(random.Below(256));
  for (size_t at = 0; at < bytes.size(); at += block_bytes) {
    const auto put = [&](size_t offset) {
      const uint16_t half = ToF16(static_cast<float>(factor * (0.5 + random.Uniform())));
      std::memcpy(&bytes[at + offset], &half, sizeof(half));
    };
    put(dtype == DType::kQ6K ? block_bytes - 2 : 0);
    if (dtype == DType::kQ4K || dtype == DType::kQ5K) put(2);
  }
  return bytes;
}

// Returns the numbers of a matrix [rows, columns], exactly.
std::string Widened(DType dtype, const std::string& stored, uint32_t rows, uint32_t columns) {
  std::vector<float> numbers(size_t{rows} * columns);
  std::vector<std::byte> panel(PanelBytes(dtype, columns));
  const size_t row_bytes = stored.size() / rows;
  for (uint32_t row = 0; row < rows; ++row) {
    const PanelRow source{reinterpret_cast<const std::byte*>(&stored[row * row_bytes]), dtype};
    EXPECT_EQ(FillPanel(dtype, {&source, 1}, columns, panel.data()), 0u);
    WidenLane(dtype, panel.data(), 0, columns, &numbers[size_t{row} * columns]);
  }
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(float)};
}

enum class Layout { kStacked, kOneEach, kWidened };

// Writes gate and up in `type`, down in `down_type`, stored as `layout` says; the numbers follow
// from the types alone.
std::string ModelFile(DType type, DType down_type, Layout layout) {
  Random random(5);
  GgufBuilder b;
  b.Text("general.architecture", "qwen3moe").U32("qwen3moe.embedding_length", kHidden);
  b.U32("qwen3moe.block_count", 1).U32("qwen3moe.context_length", 128);
  b.U32("qwen3moe.attention.head_count", kHeads);
  b.U32("qwen3moe.attention.head_count_kv", kKvHeads);
  b.U32("qwen3moe.attention.key_length", kHeadDim);
  b.U32("qwen3moe.attention.value_length", kHeadDim);
  b.U32("qwen3moe.feed_forward_length", kExpertFfn).U32("qwen3moe.expert_count", kExperts);
  b.U32("qwen3moe.expert_used_count", kChosen);
  b.U32("qwen3moe.expert_feed_forward_length", kExpertFfn);
  b.F32("qwen3moe.attention.layer_norm_rms_epsilon", 1e-6f);
  const auto plain = [&](const char* name, std::vector<uint64_t> dims) {
    uint64_t numbers = 1;
    for (const uint64_t dim : dims) numbers *= dim;
    std::vector<float> x(numbers);
    for (float& v : x) v = static_cast<float>((random.Uniform() - 0.5) * 0.4);
    b.Tensor(name, dims, 0, {reinterpret_cast<const char*>(x.data()), numbers * sizeof(float)});
  };
  plain("token_embd.weight", {kHidden, kVocab});
  plain("output_norm.weight", {kHidden});
  plain("output.weight", {kHidden, kVocab});
  plain("blk.0.attn_norm.weight", {kHidden});
  plain("blk.0.ffn_norm.weight", {kHidden});
  plain("blk.0.attn_q.weight", {kHidden, kHeads * kHeadDim});
  plain("blk.0.attn_k.weight", {kHidden, kKvHeads * kHeadDim});
  plain("blk.0.attn_v.weight", {kHidden, kKvHeads * kHeadDim});
  plain("blk.0.attn_q_norm.weight", {kHeadDim});
  plain("blk.0.attn_k_norm.weight", {kHeadDim});
  plain("blk.0.attn_output.weight", {kHeads * kHeadDim, kHidden});
  plain("blk.0.ffn_gate_inp.weight", {kHidden, kExperts});
  const auto experts = [&](const std::string& kind, DType dtype, uint32_t rows, uint32_t columns) {
    const float factor = dtype == DType::kQ8_0 ? 3e-3f : 1e-3f;
    const std::string all =
        RandomBlocks(dtype, uint64_t{kExperts} * rows * columns, factor, random);
    const std::string name = "blk.0.ffn_" + kind;
    if (layout == Layout::kStacked) {
      b.Tensor(name + "_exps.weight", {columns, rows, kExperts}, kGgmlTypes.at(dtype), all);
    } else if (layout == Layout::kWidened) {
      b.Tensor(name + "_exps.weight", {columns, rows, kExperts}, 0,
               Widened(dtype, all, kExperts * rows, columns));
    } else {
      const size_t bytes = all.size() / kExperts;
      for (uint32_t i = 0; i < kExperts; ++i) {
        b.Tensor(name + "." + std::to_string(i) + ".weight", {columns, rows}, kGgmlTypes.at(dtype),
                 all.substr(i * bytes, bytes));
      }
    }
  };
  experts("gate", type, kExpertFfn, kHidden);
  experts("up", type, kExpertFfn, kHidden);
  experts("down", down_type, kHidden, kExpertFfn);
  return b.Build();
}

// Returns the hidden states of 33 tokens.
std::vector<float> HiddenOf(const std::string& file) {
  auto gguf = ParseGguf(BytesOf(file), "m.gguf");
  EXPECT_TRUE(gguf) << gguf.error().message;
  auto model = ModelFromGguf(std::move(*gguf), "m.gguf");
  EXPECT_TRUE(model) << model.error().message;
  RunnerOptions options;
  options.threads = 2;
  options.max_positions = 128;
  auto runner = std::move(*Runner::Create(std::move(*model), options, nullptr));
  const SequenceTables blocks =
      std::move(*SequenceTables::Create(Runner::LayoutFor(runner->config(), options), 128));
  std::vector<TokenId> tokens(33);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<TokenId>(i * 7 % kVocab);
  const StepSequence sequence{blocks.tables(), 0, 0, static_cast<uint32_t>(tokens.size())};
  EXPECT_TRUE(runner->Step({&sequence, 1}, tokens));
  std::vector<float> all;
  for (uint32_t row = 0; row < tokens.size(); ++row) {
    EXPECT_TRUE(runner->finite(row));
    all.insert(all.end(), runner->hidden(row).begin(), runner->hidden(row).end());
  }
  return all;
}

double Norm(const std::vector<float>& x) {
  double sum = 0;
  for (const float v : x) sum += double{v} * v;
  return std::sqrt(sum);
}

class ExpertFiles : public testing::TestWithParam<std::pair<DType, DType>> {};

// Activations have 8 bits beside quantised weights: about 1% of each product.
TEST_P(ExpertFiles, GiveWhatTheirNumbersGive) {
  const auto [type, down_type] = GetParam();
  const auto stacked = HiddenOf(ModelFile(type, down_type, Layout::kStacked));
  EXPECT_EQ(stacked, HiddenOf(ModelFile(type, down_type, Layout::kOneEach)));
  auto difference = HiddenOf(ModelFile(type, down_type, Layout::kWidened));
  const double norm = Norm(difference);
  for (size_t i = 0; i < stacked.size(); ++i) difference[i] -= stacked[i];
  EXPECT_GT(Norm(difference), 0) << "the experts were not used";
  EXPECT_LT(Norm(difference), 0.03 * norm);
}

INSTANTIATE_TEST_SUITE_P(KQuants, ExpertFiles,
                         testing::Values(std::pair{DType::kQ4K, DType::kQ6K},
                                         std::pair{DType::kQ5K, DType::kQ5K},
                                         std::pair{DType::kQ6K, DType::kQ4K},
                                         std::pair{DType::kQ8_0, DType::kQ4K}));

}  // namespace
}  // namespace kvasir
