// Split GGUF files, and files of which only the header is there.
#include "import/gguf_parts.h"

#include <gtest/gtest.h>

#include <functional>
#include <optional>

#include "import/importer.h"
#include "import/model_files_for_test.h"

namespace kvasir {
namespace {

constexpr uint32_t kHidden = 8, kVocab = 7, kParts = 3;

struct Row {
  std::string name;
  std::vector<uint64_t> dims;  // innermost first
};

const std::vector<Row>& Rows() {
  static const std::vector<Row> rows = {{"token_embd.weight", {kHidden, kVocab}},
                                        {"output_norm.weight", {kHidden}},
                                        {"blk.0.attn_norm.weight", {kHidden}},
                                        {"blk.0.attn_q.weight", {kHidden, kHidden}},
                                        {"blk.0.attn_k.weight", {kHidden, kHidden}},
                                        {"blk.0.attn_v.weight", {kHidden, kHidden}},
                                        {"blk.0.attn_output.weight", {kHidden, kHidden}},
                                        {"blk.0.ffn_norm.weight", {kHidden}},
                                        {"blk.0.ffn_gate.weight", {kHidden, 16}},
                                        {"blk.0.ffn_up.weight", {kHidden, 16}},
                                        {"blk.0.ffn_down.weight", {16, kHidden}}};
  return rows;
}

void AddMetadata(GgufBuilder& b) {
  b.Text("general.architecture", "llama").U32("llama.embedding_length", kHidden);
  b.U32("llama.block_count", 1).U32("llama.attention.head_count", 2);
  b.U32("llama.feed_forward_length", 16).U32("llama.context_length", 64);
  b.F32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
}

void AddTensor(GgufBuilder& b, const Row& row) {
  std::string bytes;
  uint64_t numbers = 1;
  for (const uint64_t dim : row.dims) numbers *= dim;
  for (uint64_t i = 0; i < numbers; ++i) {
    bytes += Le(static_cast<float>(i + row.name.size()) * 0.25f);
  }
  b.Tensor(row.name, row.dims, 0, bytes);
}

std::string WholeFile() {
  GgufBuilder b;
  AddMetadata(b);
  for (const Row& row : Rows()) AddTensor(b, row);
  return b.Build();
}

std::string NameOf(uint32_t part) {
  return PartName{"tiny-model", part, kParts, ".gguf"}.Text(part);
}

class GgufParts : public testing::Test {
 protected:
  // Makes part `number`, with every third tensor; `change` may say something else in it.
  std::string Part(uint32_t number, const std::function<void(GgufBuilder&)>& change = nullptr) {
    GgufBuilder b;
    if (number == 1) {
      AddMetadata(b);
      b.Raw("split.tensors.count", 5, Le<int32_t>(static_cast<int32_t>(Rows().size())));
    }
    b.Raw("split.count", 2, Le<uint16_t>(kParts));
    if (change == nullptr) b.Raw("split.no", 2, Le<uint16_t>(static_cast<uint16_t>(number - 1)));
    for (size_t i = number - 1; i < Rows().size(); i += kParts) AddTensor(b, Rows()[i]);
    if (change != nullptr) change(b);
    return b.Build();
  }
  void WriteAll() {
    for (uint32_t part = 1; part <= kParts; ++part) folder_.Write(NameOf(part), Part(part));
  }
  Result<ImportedModel> Import(const std::string& name = "") {
    return ImportModel(name.empty() ? folder_.path() : folder_.path() / name);
  }

  TemporaryFolder folder_;
};

TEST_F(GgufParts, AreOneModel) {
  WriteAll();
  TemporaryFolder other;
  const auto whole = ImportModel(other.Write("whole.gguf", WholeFile()));
  ASSERT_TRUE(whole) << whole.error().message;
  for (const std::string& name : {std::string(), NameOf(1)}) {
    const auto model = Import(name);
    ASSERT_TRUE(model) << model.error().message;
    EXPECT_EQ(model->name, "tiny-model");
    EXPECT_EQ(model->mapped_files.size(), kParts);
    EXPECT_EQ(CanonicalText(model->config), CanonicalText(whole->config));
    uint32_t tensors = 0;
    whole->layers[0].ForEach([&](Slot slot, const MatrixSource& tensor) {
      const TensorView& part = model->layers[0][slot].view;
      ASSERT_EQ(part.num_bytes(), tensor.view.num_bytes());
      EXPECT_EQ(std::memcmp(part.data, tensor.view.data, part.num_bytes()), 0) << part.name;
      ++tensors;
    });
    EXPECT_EQ(tensors, 9u);
  }
}

TEST_F(GgufParts, SayWhatIsMissingOrWrong) {
  WriteAll();
  ExpectError(Import(NameOf(2)), Code::kInvalidArgument, {"part 2 of 3", NameOf(1)});
  std::filesystem::remove(folder_.path() / NameOf(3));
  ExpectError(Import(NameOf(1)), Code::kNotFound, {NameOf(3), "part 3 of 3 is missing"});
  folder_.Write(NameOf(3), Part(2));
  ExpectError(Import(NameOf(1)), Code::kCorruption, {NameOf(3), "part 3 of 3"});
  folder_.Write(NameOf(3), Part(3, [](GgufBuilder& b) {
                  b.Raw("split.no", 2, Le<uint16_t>(2));
                  AddTensor(b, Rows()[0]);
                }));
  ExpectError(Import(NameOf(1)), Code::kCorruption, {"12 tensors", "the first says 11"});
  folder_.Write("other.gguf", Part(1));
  ExpectError(Import("other.gguf"), Code::kInvalidArgument,
              {"one of 3 parts", "NAME-00001-of-00003.gguf"});
}

TEST_F(GgufParts, AreOneOfTheModelsOfAFolder) {
  WriteAll();
  folder_.Write("zoo.gguf", WholeFile());
  ExpectError(Import(), Code::kInvalidArgument, {"has 2 models", NameOf(1), "zoo.gguf"});
  std::filesystem::remove(folder_.path() / NameOf(1));
  const auto left = Import();
  ASSERT_TRUE(left) << left.error().message;
  EXPECT_EQ(left->name, "zoo");
  std::filesystem::remove(folder_.path() / "zoo.gguf");
  ExpectError(Import(), Code::kInvalidArgument, {"part 2 of 3", NameOf(1)});
}

TEST_F(GgufParts, ATensorOfTwoPartsIsRefused) {
  folder_.Write(NameOf(1), Part(1));
  folder_.Write(NameOf(2), Part(2));
  GgufBuilder b;
  b.Raw("split.count", 2, Le<uint16_t>(kParts)).Raw("split.no", 2, Le<uint16_t>(2));
  for (const size_t i : {0u, 5u, 8u}) AddTensor(b, Rows()[i]);
  folder_.Write(NameOf(3), b.Build());
  ExpectError(Import(NameOf(1)), Code::kCorruption, {"'token_embd.weight' is in", NameOf(1)});
}

TEST_F(GgufParts, NamesAreReadWithoutTheirFolder) {
  const auto part = PartOf("/a/b-00002-of-00003.gguf");
  ASSERT_TRUE(part);
  EXPECT_EQ(part->stem, "b");
  EXPECT_EQ(part->number, 2u);
  EXPECT_EQ(part->count, 3u);
  EXPECT_FALSE(PartOf("/a/-00001-of-00002.gguf"));
}

TEST(GgufHeader, IsEnoughForShapes) {
  TemporaryFolder folder;
  std::string bytes = WholeFile();
  const auto whole = ImportModel(folder.Write("whole.gguf", bytes));
  ASSERT_TRUE(whole);
  for (const size_t missing : {size_t{4}, size_t{4096}, bytes.size() / 2}) {
    if (missing >= bytes.size()) continue;
    const auto path = folder.Write("cut.gguf", bytes.substr(0, bytes.size() - missing));
    ExpectError(ImportModel(path), Code::kCorruption, {"cut short"});
    const auto shapes = ImportModel(path, Need::kShapes);
    ASSERT_TRUE(shapes) << shapes.error().message;
    EXPECT_EQ(CanonicalText(shapes->config), CanonicalText(whole->config));
    EXPECT_EQ(shapes->embedding.shape, whole->embedding.shape);
  }
}

}  // namespace
}  // namespace kvasir
