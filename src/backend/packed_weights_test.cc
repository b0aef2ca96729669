#include "backend/packed_weights.h"

#include <algorithm>
#include <cmath>

#include "backend/panel_filler.h"
#include "base/random.h"
#include "import/architecture.h"
#include "import/gguf_importer.h"
#include "import/model_files_for_test.h"
#include "simd/half.h"
#include "source_paths.h"

namespace kvasir {
namespace {

constexpr uint32_t kHidden = 256, kHeads = 4, kKvHeads = 2, kHeadDim = 20, kFfn = 512, kVocab = 50;

struct Types {
  DType q = DType::kQ4K, k = DType::kQ4K, v = DType::kQ6K, o = DType::kF16;
  DType gate = DType::kQ8_0, up = DType::kQ5_1, down = DType::kQ5K;
  DType embedding = DType::kIq4Nl;
  std::optional<DType> head = DType::kQ6K;
};

uint32_t GgmlType(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 0;
    case DType::kF16:
      return 1;
    case DType::kBf16:
      return 30;
    case DType::kQ4_0:
      return 2;
    case DType::kQ4_1:
      return 3;
    case DType::kQ5_0:
      return 6;
    case DType::kQ5_1:
      return 7;
    case DType::kQ8_0:
      return 8;
    case DType::kQ4K:
      return 12;
    case DType::kQ5K:
      return 13;
    case DType::kQ6K:
      return 14;
    case DType::kIq4Nl:
      return 20;
    case DType::kI8:
      break;
  }
  return ~0u;
}

// Draws random bytes; the f16 of every even place of a block is finite (those that are scales
// matter).
std::string RandomTensor(DType dtype, uint64_t numbers, Random& random) {
  std::string bytes(StoredBytes(dtype, numbers), '\0');
  for (char& byte : bytes) byte = static_cast<char>(random.Below(256));
  for (size_t i = 1; i < bytes.size(); i += 2) {
    if (!IsQuantised(dtype) || BlockOf(dtype).columns == 256 || dtype == DType::kQ8_0) {
      bytes[i] = static_cast<char>(bytes[i] & 0xbf);  // no exponent of all ones
    }
  }
  if (IsQuantised(dtype) && BlockOf(dtype).columns == 32) {
    for (size_t at = 0; at < bytes.size(); at += BlockOf(dtype).bytes) {
      bytes[at + 1] = static_cast<char>(bytes[at + 1] & 0xbf);
      if (LayoutOf(dtype).minimum) bytes[at + 3] = static_cast<char>(bytes[at + 3] & 0xbf);
    }
  }
  return bytes;
}

std::string ModelFile(const Types& types) {
  Random random(3);
  GgufBuilder b;
  b.Text("general.architecture", "llama").U32("llama.embedding_length", kHidden);
  b.U32("llama.block_count", 1).U32("llama.attention.head_count", kHeads);
  b.U32("llama.attention.head_count_kv", kKvHeads).U32("llama.attention.key_length", kHeadDim);
  b.U32("llama.attention.value_length", kHeadDim).U32("llama.rope.dimension_count", kHeadDim);
  b.U32("llama.feed_forward_length", kFfn).U32("llama.context_length", 128);
  b.F32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  const auto matrix = [&](const char* name, DType dtype, uint64_t rows, uint64_t columns) {
    b.Tensor(name, {columns, rows}, GgmlType(dtype), RandomTensor(dtype, rows * columns, random));
  };
  matrix("token_embd.weight", types.embedding, kVocab, kHidden);
  matrix("blk.0.attn_q.weight", types.q, kHeads * kHeadDim, kHidden);
  matrix("blk.0.attn_k.weight", types.k, kKvHeads * kHeadDim, kHidden);
  matrix("blk.0.attn_v.weight", types.v, kKvHeads * kHeadDim, kHidden);
  // 80 columns: not a multiple of a block.
  matrix("blk.0.attn_output.weight", types.o, kHidden, kHeads * kHeadDim);
  matrix("blk.0.ffn_gate.weight", types.gate, kFfn, kHidden);
  matrix("blk.0.ffn_up.weight", types.up, kFfn, kHidden);
  matrix("blk.0.ffn_down.weight", types.down, kHidden, kFfn);
  if (types.head) matrix("output.weight", *types.head, kVocab, kHidden);
  for (const char* norm :
       {"output_norm.weight", "blk.0.attn_norm.weight", "blk.0.ffn_norm.weight"}) {
    b.Tensor(norm, {kHidden}, 0, RandomTensor(DType::kF32, kHidden, random));
  }
  return b.Build();
}

struct Model {
  explicit Model(const Types& types) : file(ModelFile(types)) {
    auto gguf = ParseGguf(BytesOf(file), "m.gguf");
    EXPECT_TRUE(gguf) << gguf.error().message;
    auto imported = ModelFromGguf(std::move(*gguf), "m.gguf");
    EXPECT_TRUE(imported) << imported.error().message;
    if (imported) model = std::move(*imported);
  }
  std::string file;
  ImportedModel model;
};

// Returns output `row` of a stored matrix, widened through a separate panel.
std::vector<float> RowOf(const MatrixSource& source, uint64_t row) {
  const TensorView& view = source.view;
  if (source.interleaved_rope_rows) {
    const uint64_t i = row % kHeadDim, half = kHeadDim / 2;
    row = row - i + (i < half ? 2 * i : 2 * (i - half) + 1);
  }
  const auto k = static_cast<uint32_t>(view.shape[1]);
  std::vector<std::byte> panel(PanelBytes(view.dtype, k));
  const PanelRow stored{view.data + row * view.row_bytes(), view.dtype};
  EXPECT_EQ(FillPanel(view.dtype, {&stored, 1}, k, panel.data()), 0u);
  std::vector<float> numbers(k);
  WidenLane(view.dtype, panel.data(), 0, k, numbers.data());
  return numbers;
}

std::vector<float> OutputOf(const PackedMatrix& matrix, uint32_t output) {
  std::vector<float> numbers(matrix.k, NAN);
  for (const PackedRun& run : matrix.runs()) {
    if (output < run.first_output || output >= run.first_output + run.outputs) continue;
    const uint32_t at = output - run.first_output;
    WidenLane(run.format, run.panels + at / 16 * PanelBytes(run.format, matrix.k), at % 16,
              matrix.k, numbers.data());
  }
  return numbers;
}

void ExpectHolds(const PackedMatrix& matrix, std::vector<const MatrixSource*> sources,
                 uint32_t runs) {
  EXPECT_EQ(matrix.num_runs, runs);
  uint32_t output = 0;
  for (const MatrixSource* source : sources) {
    for (uint64_t row = 0; row < source->view.shape[0]; ++row, ++output) {
      ASSERT_EQ(OutputOf(matrix, output), RowOf(*source, row))
          << source->view.name << " row " << row;
    }
  }
  EXPECT_EQ(output, matrix.outputs);
}

PackedWeights PackOrFail(const ImportedModel& model, uint32_t threads = 1) {
  ThreadPool pool(threads, nullptr);
  auto packed = Pack(model, {}, pool, {});
  EXPECT_TRUE(packed) << packed.error().message;
  const PackedPlan plan = PlanPacked(model, {});
  EXPECT_EQ(packed->arena.used(), plan.arena_bytes);
  EXPECT_EQ(packed->arena.size(), plan.arena_bytes);
  return std::move(*packed);
}

TEST(PackedWeights, StackedMatricesOfDifferentTypesKeepTheirNumbers) {
  const Model m{Types{}};
  const PackedWeights packed = PackOrFail(m.model);
  const SlotTensors& source = m.model.layers[0];
  const PackedLayer& layer = packed.layers[0];
  ExpectHolds(layer.attention.qkv, {&source[Slot::kQ], &source[Slot::kK], &source[Slot::kV]}, 2);
  ExpectHolds(layer.attention.o, {&source[Slot::kO]}, 1);
  ExpectHolds(layer.ffn.gate, {&source[Slot::kGate]}, 1);
  ExpectHolds(layer.ffn.up, {&source[Slot::kUp]}, 1);
  ExpectHolds(layer.ffn.down, {&source[Slot::kDown]}, 1);
  ExpectHolds(packed.head, {&*m.model.lm_head}, 1);
  // q and k share a run that ends inside a panel; v begins with a new panel.
  EXPECT_EQ(layer.attention.qkv.run[1].first_output, 120u);
  EXPECT_EQ(layer.attention.qkv.run[1].panels,
            layer.attention.qkv.run[0].panels + 8 * PanelBytes(WeightFormat::kQ4K, kHidden));
}

TEST(PackedWeights, AQuantisedEmbeddingIsPackedAndAnUnquantisedOneStaysInTheFile) {
  const Model packed_table{Types{}};
  const PackedWeights a = PackOrFail(packed_table.model);
  EXPECT_EQ(a.embedding.rows, nullptr);
  const MatrixSource table{packed_table.model.embedding};
  ExpectHolds(a.embedding.packed, {&table}, 1);
  const PackedPlan plan = PlanPacked(packed_table.model, {});
  EXPECT_EQ(plan.mapped_bytes, 0u);
  EXPECT_EQ(plan.arena_bytes - plan.token_bytes, 4 * PanelBytes(WeightFormat::kIq4Nl, kHidden));

  const Model mapped_table{Types{.embedding = DType::kBf16}};
  const PackedWeights b = PackOrFail(mapped_table.model);
  EXPECT_EQ(b.embedding.rows, mapped_table.model.embedding.data);
  EXPECT_EQ(PlanPacked(mapped_table.model, {}).mapped_bytes, kVocab * kHidden * 2u);
}

TEST(PackedWeights, ATiedEmbeddingIsReadFromTheHead) {
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kQ6K, DType::kQ8_0}) {
    const Model m{Types{.embedding = dtype, .head = std::nullopt}};
    const PackedWeights packed = PackOrFail(m.model);
    EXPECT_EQ(packed.embedding.rows, nullptr);
    EXPECT_EQ(packed.embedding.packed.run[0].panels, packed.head.run[0].panels);
    const MatrixSource table{m.model.embedding};
    ExpectHolds(packed.head, {&table}, 1);
    EXPECT_EQ(PlanPacked(m.model, {}).mapped_bytes, 0u);
  }
}

TEST(PackedWeights, ThreadsChangeNoByte) {
  const Model m{Types{}};
  const PackedWeights one = PackOrFail(m.model, 1), three = PackOrFail(m.model, 3);
  const auto bytes = [](const PackedWeights& weights) {
    const std::byte* first =
        reinterpret_cast<const std::byte*>(weights.layers[0].attention.norm.weight);
    return std::string(reinterpret_cast<const char*>(first), weights.arena.used());
  };
  EXPECT_EQ(bytes(one), bytes(three));
}

ImportedModel ImportTiny(const std::string& path) {
  auto model = ImportModel(std::string(KVASIR_SOURCE_DIR) + "/tests/data/" + path);
  EXPECT_TRUE(model) << (model ? "" : model.error().message);
  return model ? std::move(*model) : ImportedModel{};
}

// Interleaved rows, ranges of fused tensors and [in, out] matrices end in the same panels.
TEST(PackedWeights, AFolderAndAGgufFileOfAFamilyPackToTheSameBytes) {
  for (const char* file :
       {"tiny-qwen2/model-f16.gguf", "tiny-qwen3/model-bf16.gguf", "tiny-granite/model-bf16.gguf",
        "tiny-olmo2/model-bf16.gguf", "tiny-smollm3/model-f16.gguf", "tiny-phi3/model-f16.gguf",
        "tiny-gpt2/model-f16.gguf"}) {
    const std::string folder = std::string(file).substr(0, std::string(file).find('/'));
    const ImportedModel hf = ImportTiny(folder), gguf = ImportTiny(file);
    for (const auto& choice : {std::optional<WeightChoice>(), FindWeightChoice("i8")}) {
      ThreadPool pool(2, nullptr);
      const auto a = Pack(hf, choice, pool, {}), b = Pack(gguf, choice, pool, {});
      ASSERT_TRUE(a && b) << file;
      ASSERT_EQ(a->arena.used(), b->arena.used()) << file;
      EXPECT_EQ(std::memcmp(a->arena.bytes().data(), b->arena.bytes().data(), a->arena.used()), 0)
          << file;
    }
  }
}

TEST(PackedWeights, ABadNumberInARangeOfAFusedTensorIsRefusedNamingIt) {
  const ImportedModel good = ImportTiny("tiny-gpt2");
  for (const Slot slot : {Slot::kQ, Slot::kV, Slot::kVBias}) {
    ImportedModel bad = good;
    MatrixSource& source = bad.layers[1][slot];
    const TensorView& view = source.view;
    const uint64_t columns = view.shape.size() > 1 ? view.shape[1] : 1;
    const uint64_t last = (columns - 1) * source.column_stride + view.shape[0] - 1;
    std::vector<std::byte> bytes(view.data, view.data + (last + 1) * 2);
    bytes[last * 2 + 1] = std::byte{0x7e};  // f16 NaN
    source.view.data = bytes.data();
    for (const auto& choice : {std::optional<WeightChoice>(), FindWeightChoice("i8")}) {
      ThreadPool pool(2, nullptr);
      const auto packed = Pack(bad, choice, pool, {});
      ASSERT_FALSE(packed);
      EXPECT_EQ(packed.error().code, Code::kCorruption);
      EXPECT_NE(packed.error().message.find(view.name), std::string::npos)
          << packed.error().message;
    }
  }
}

TEST(PackedWeights, ABadScaleOrNumberIsRefusedNamingTheTensor) {
  const Types types{.o = DType::kBf16};
  const Model good{types};
  const auto refuses = [&](const TensorView& view, uint64_t byte, uint16_t bits) {
    Model bad{types};
    const auto at =
        static_cast<size_t>(view.data - reinterpret_cast<const std::byte*>(good.file.data()));
    std::memcpy(bad.file.data() + at + byte, &bits, 2);
    for (const uint32_t threads : {1u, 2u}) {
      ThreadPool pool(threads, nullptr);
      ExpectError(Pack(bad.model, {}, pool, {}), Code::kCorruption, {view.name, "NaN"});
    }
  };
  const SlotTensors& layer = good.model.layers[0];
  refuses(layer[Slot::kQ].view, 144 * 59, 0x7e00);
  refuses(layer[Slot::kK].view, 144 * 39 + 2, 0x7c00);  // dmin
  refuses(layer[Slot::kV].view, 210 + 208, 0xfc00);
  refuses(layer[Slot::kO].view, 80 * 2 * 255 + 158, 0x7f80);
  refuses(layer[Slot::kUp].view, 24 * 8 + 2, 0x7c01);
  refuses(good.model.embedding, 18 * 8 * 49, 0x7fff);
  refuses(good.model.lm_head->view, 208, 0xffff);
}

// Types of a model that is not quantised, mixed.
const Types kPlain = {.q = DType::kF32,
                      .k = DType::kBf16,
                      .v = DType::kF16,
                      .o = DType::kBf16,
                      .gate = DType::kF16,
                      .up = DType::kF32,
                      .down = DType::kBf16,
                      .embedding = DType::kBf16,
                      .head = DType::kF32};

// Puts every number of the file into [-1, 1]: random exponents would be too large to quantise.
void Tame(Model& m) {
  const auto tame = [&](const TensorView& view) {
    auto* data = const_cast<std::byte*>(view.data);
    for (uint64_t i = 0; i < view.num_elements(); ++i) {
      const float x = static_cast<float>(
                          static_cast<int>(static_cast<uint32_t>(i * 2654435761u) >> 20) - 2048) /
                      2048;
      const uint16_t half = view.dtype == DType::kF16 ? ToF16(x) : ToBf16(x);
      if (view.dtype == DType::kF32) {
        std::memcpy(data + i * 4, &x, 4);
      } else {
        std::memcpy(data + i * 2, &half, 2);
      }
    }
  };
  ForEachLayerMatrix(m.model, tame);
  tame(m.model.embedding);
  if (m.model.lm_head) tame(m.model.lm_head->view);
}

void ExpectNear(const PackedMatrix& matrix, std::vector<const MatrixSource*> sources,
                WeightFormat format, float bound) {
  ASSERT_EQ(matrix.num_runs, 1u);
  EXPECT_EQ(matrix.run[0].format, format);
  uint32_t output = 0;
  for (const MatrixSource* source : sources) {
    for (uint64_t row = 0; row < source->view.shape[0]; ++row, ++output) {
      const std::vector<float> got = OutputOf(matrix, output), want = RowOf(*source, row);
      for (uint32_t i = 0; i < matrix.k; ++i) ASSERT_NEAR(got[i], want[i], bound) << output;
    }
  }
  EXPECT_EQ(output, matrix.outputs);
}

TEST(PackedWeights, AChoiceQuantisesLayersAndTables) {
  for (const WeightChoice& choice : kWeightChoices) {
    Model m{kPlain};
    Tame(m);
    ThreadPool pool(2, nullptr);
    const auto packed = Pack(m.model, choice, pool, {});
    ASSERT_TRUE(packed) << packed.error().message;
    EXPECT_EQ(packed->arena.used(), PlanPacked(m.model, choice).arena_bytes);
    EXPECT_EQ(PlanPacked(m.model, choice).mapped_bytes, 0u);
    const SlotTensors& source = m.model.layers[0];
    const PackedLayer& layer = packed->layers[0];
    const float bound = LayoutOf(choice.layers).code_bits == 8 ? 0.012f : 0.2f;
    ExpectNear(layer.attention.qkv, {&source[Slot::kQ], &source[Slot::kK], &source[Slot::kV]},
               choice.layers, bound);
    ExpectNear(layer.attention.o, {&source[Slot::kO]}, choice.layers, bound);
    ExpectNear(layer.ffn.gate, {&source[Slot::kGate]}, choice.layers, bound);
    ExpectNear(layer.ffn.up, {&source[Slot::kUp]}, choice.layers, bound);
    ExpectNear(layer.ffn.down, {&source[Slot::kDown]}, choice.layers, bound);
    const MatrixSource table{m.model.embedding};
    ExpectNear(packed->head, {&*m.model.lm_head}, choice.tables, 0.012f);
    ExpectNear(packed->embedding.packed, {&table}, choice.tables, 0.012f);
  }
}

TEST(PackedWeights, ANumberTooLargeToQuantiseIsNotCalledDamage) {
  Model m{kPlain};
  Tame(m);
  const TensorView& up = m.model.layers[0][Slot::kUp].view;
  const float large = -65505.0f;
  std::memcpy(const_cast<std::byte*>(up.data) + 4 * (kHidden * 511 + 255), &large, 4);
  ThreadPool pool(2, nullptr);
  EXPECT_TRUE(Pack(m.model, {}, pool, {}));
  const auto choice = FindWeightChoice("i4");
  ExpectError(Pack(m.model, choice, pool, {}), Code::kInvalidArgument,
              {up.name, "65504", "--weights"});
  const float nan = NAN;
  std::memcpy(const_cast<std::byte*>(up.data) + 4 * (kHidden * 3), &nan, 4);
  ExpectError(Pack(m.model, choice, pool, {}), Code::kCorruption, {up.name, "NaN"});
}

TEST(PackedWeights, AChoiceIsAnotherDigest) {
  const Digest stored = Sha256Of("weights");
  EXPECT_EQ(ChosenDigest(stored, {}), stored);
  std::vector<Digest> digests = {stored};
  for (const WeightChoice& choice : kWeightChoices) {
    digests.push_back(ChosenDigest(stored, choice));
  }
  std::ranges::sort(digests);
  EXPECT_EQ(std::ranges::adjacent_find(digests), digests.end());
}

}  // namespace
}  // namespace kvasir
