#include "import/ctranslate2.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>

#include "base/bytes_for_test.h"
#include "base/needs_for_test.h"
#include "import/ct2_file_for_test.h"
#include "import/float_numbers.h"
#include "import/safetensors.h"
#include "simd/half.h"
#include "source_paths.h"

namespace kvasir {
namespace {

namespace fs = std::filesystem;
using ct2_file::Head;
using ct2_file::Text;
using ct2_file::U32;
using ct2_file::Variable;

const fs::path kTiny = fs::path(KVASIR_SOURCE_DIR) / "tests/data/ct2-tiny";

Result<Ct2File> ParseModel(const std::string& bytes) {
  return ParseCt2(std::as_bytes(std::span(bytes)), "dir/model.bin");
}
Result<Ct2Weights> Describe(const std::string& bytes) {
  const auto model = ParseModel(bytes);
  if (!model) return tl::unexpected(model.error());
  return DescribeCt2(*model, "dir/model.bin");
}
std::vector<float> NumbersOf(const Ct2Tensor& tensor) {
  const StoredTensor stored = StoredTensorOf(tensor, "dir/model.bin");
  const uint64_t columns = tensor.shape.size() == 1 ? 1 : tensor.shape[1];
  std::vector<float> numbers(tensor.shape[0] * columns);
  if (!stored.integers) {
    Widen(*stored.dtype, stored.bytes.data(), numbers.size(), numbers.data());
    return numbers;
  }
  for (uint64_t row = 0; row < tensor.shape[0]; ++row) {
    WidenRow(*stored.integers, row, columns, numbers.data() + row * columns);
  }
  return numbers;
}
const Ct2Tensor& TensorNamed(const Ct2Weights& weights, const std::string& name) {
  for (const Ct2Tensor& tensor : weights.tensors) {
    if (tensor.name == name) return tensor;
  }
  ADD_FAILURE() << name;
  return weights.tensors.front();
}

// Puts a variable more in front of those of a file of version 6.
std::string Plus(std::string bytes, const std::string& variable) {
  const size_t count_at = 4 + 2 + sizeof("TransformerSpec") + 4;
  uint32_t count;
  std::memcpy(&count, bytes.data() + count_at, 4);
  bytes.replace(count_at, 4, U32(count + 1));
  return bytes.insert(count_at + 4, variable);
}

TEST(Ctranslate2, HasTheTensorsThatItWasConvertedFrom) {
  const std::string stored = ReadFile(kTiny / "hf/model.safetensors");
  const auto originals = ParseSafetensors(std::as_bytes(std::span(stored)), "hf");
  ASSERT_TRUE(originals);
  for (const std::string type :
       {"float32", "float16", "bfloat16", "int16", "int8", "int8_float16"}) {
    const auto folder = ReadCt2Folder(kTiny / type);
    ASSERT_TRUE(folder) << folder.error().message;
    size_t compared = 0;
    for (const StoredTensor& original : *originals) {
      const bool shared = original.name == "model.shared.weight";
      const Ct2Tensor& tensor = TensorNamed(
          folder->weights, shared ? "model.decoder.embed_tokens.weight" : original.name);
      ASSERT_EQ(tensor.shape, original.shape) << original.name;
      const std::vector<float> got = NumbersOf(tensor);
      std::vector<float> expected(got.size());
      Widen(DType::kF32, original.bytes.data(), expected.size(), expected.data());
      for (size_t i = 0; i < got.size(); ++i) {
        float rounded = expected[i];
        if (type == "bfloat16") rounded = FromBf16(ToBf16(rounded));
        const bool halved = type == "int8_float16" && !tensor.scale;
        if (type == "float16" || halved) rounded = FromF16(ToF16(rounded));
        // Half a step of the integers.
        float within = 0;
        if (tensor.scale) {
          float scale;
          const uint64_t row = tensor.row_begin + i / tensor.shape[1];
          const uint64_t at = tensor.scale->count() == 1 ? 0 : row;
          std::memcpy(&scale, tensor.scale->bytes.data() + 4 * at, 4);
          within = 0.5001f / scale;
          EXPECT_EQ(got[i], std::nearbyint(got[i] * scale) / scale);
        }
        ASSERT_NEAR(got[i], rounded, within) << type << " " << original.name << " " << i;
      }
      ++compared;
    }
    // Beside them: embeddings of both sides, the head, and positions of both sides.
    EXPECT_EQ(compared + 4, folder->weights.tensors.size()) << type;
    EXPECT_EQ(NumbersOf(TensorNamed(folder->weights, "lm_head.weight")),
              NumbersOf(TensorNamed(folder->weights, "model.encoder.embed_tokens.weight")));
  }
}

TEST(Ctranslate2, HasTheShapeOfTheModel) {
  const auto folder = ReadCt2Folder(kTiny / "int8");
  ASSERT_TRUE(folder) << folder.error().message;
  const Ct2Shape& shape = folder->weights.shape;
  EXPECT_EQ(shape.hidden_size, 12u);
  EXPECT_EQ(shape.encoder.layers, 2u);
  EXPECT_EQ(shape.decoder.layers, 1u);
  EXPECT_EQ(shape.encoder.heads, 3u);
  EXPECT_EQ(shape.encoder.ffn_size, 20u);
  EXPECT_EQ(shape.decoder.ffn_size, 28u);
  EXPECT_EQ(shape.decoder.vocab_size, 37u);
  EXPECT_EQ(shape.decoder.activation, Ct2Activation::kGelu);
  EXPECT_EQ(shape.encoder.embedding_scale, std::sqrt(12.0f));
  EXPECT_TRUE(shape.encoder.norm_first && shape.decoder.has_final_norm);
  EXPECT_EQ(shape.max_positions, 14u);
  EXPECT_EQ(folder->decoder_start, "</s>");
  EXPECT_EQ(folder->eos, "</s>");
  EXPECT_EQ(folder->norm_eps, 1e-5f);
  EXPECT_EQ(folder->source_tokens.size(), 37u);
  EXPECT_EQ(folder->target_tokens[4], "\xE2\x96\x81t0");
}

// Trained, of version 2 of the format: no config.json, two vocabularies without <unk>.
TEST(Ctranslate2, ReadsTheTrainedModelInThreeTypes) {
  const fs::path shared = fs::path(KVASIR_SHARED_DIR) / "data/aren-transliteration";
  KV_NEEDS(shared / "golden.json");
  const auto whole = ReadCt2Folder(shared / "aren-transliteration");
  ASSERT_TRUE(whole) << whole.error().message;
  EXPECT_EQ(whole->weights.shape.hidden_size, 32u);
  EXPECT_EQ(whole->weights.shape.encoder.layers, 6u);
  EXPECT_EQ(whole->weights.shape.decoder.layers, 6u);
  EXPECT_EQ(whole->weights.shape.decoder.heads, 8u);
  EXPECT_EQ(whole->weights.shape.encoder.ffn_size, 128u);
  EXPECT_EQ(whole->weights.shape.encoder.activation, Ct2Activation::kRelu);
  EXPECT_FALSE(whole->weights.shape.max_positions);
  EXPECT_EQ(whole->source_tokens.back(), "<unk>");
  EXPECT_EQ(whole->source_tokens.size(), 51u);
  EXPECT_EQ(whole->target_tokens.size(), 43u);
  EXPECT_EQ(whole->decoder_start, "<s>");
  EXPECT_EQ(whole->target_tokens[1], "<s>");
  for (const char* name : {"aren-transliteration-i8", "aren-transliteration-i16"}) {
    const auto rounded = ReadCt2Folder(shared / name);
    ASSERT_TRUE(rounded) << rounded.error().message;
    ASSERT_EQ(rounded->weights.tensors.size(), whole->weights.tensors.size());
    for (size_t i = 0; i < whole->weights.tensors.size(); ++i) {
      const auto a = NumbersOf(whole->weights.tensors[i]);
      const auto b = NumbersOf(rounded->weights.tensors[i]);
      float most = 0;
      for (const float x : a) most = std::max(most, std::abs(x));
      for (size_t k = 0; k < a.size(); ++k) ASSERT_NEAR(a[k], b[k], most / 125) << name << i;
    }
  }
}

TEST(Ctranslate2, RefusesACutFileAtEveryByteWithItsPlace) {
  const std::string whole = ReadFile(kTiny / "int8/model.bin");
  ASSERT_TRUE(Describe(whole));
  for (size_t size = 0; size < whole.size(); size += size < 3000 ? 1 : 53) {
    const auto cut = ParseModel(whole.substr(0, size));
    ASSERT_FALSE(cut) << size;
    EXPECT_EQ(cut.error().code, Code::kCorruption);
    EXPECT_NE(cut.error().message.find("dir/model.bin: damaged at byte"), std::string::npos);
  }
  const auto longer = ParseModel(whole + "x");
  ASSERT_FALSE(longer);
  EXPECT_NE(longer.error().message.find("should end here"), std::string::npos);
}

TEST(Ctranslate2, RefusesWhatLies) {
  const auto refused = [](const std::string& bytes, const char* part,
                          Code code = Code::kCorruption) {
    const auto model = Describe(bytes);
    ASSERT_FALSE(model) << part;
    EXPECT_EQ(model.error().code, code) << model.error().message;
    EXPECT_NE(model.error().message.find(part), std::string::npos) << model.error().message;
  };
  const std::string spec = "TransformerSpec", four(16, '\0');
  refused(U32(1), "version 1", Code::kUnsupported);
  refused(U32(7), "version 7", Code::kUnsupported);
  refused(Head(spec, 7, 1) + Variable("a/b", {2, 2}, 0, four) + U32(0), "embeddings/weight");
  refused(Head(spec, 7, 1) + Variable("a/b", {2, 3}, 0, four) + U32(0), "not those of its shape");
  refused(Head(spec, 7, 1) + Variable("a", {1u << 31, 1u << 31, 8}, 0, four), "not those of its");
  refused(Head(spec, 7, 1) + Variable("a", std::vector<uint32_t>(9, 1), 0, four), "9 dimensions");
  refused(Head(spec, 7, 1) + Variable("a", {4}, 6, four), "unknown type 6");
  refused(Head(spec, 7, 1) + Variable("a\n", {4}, 0, four), "not a name");
  refused(Head(spec, 7, 2) + Variable("a", {4}, 0, four) + Variable("a", {4}, 0, four), "twice");
  refused(Head(spec, 7, 0) + U32(1) + Text("a") + Text("b"), "which is not in the file");
  refused(Head(spec, 7, 1) + Variable("a", {4}, 0, four) + U32(1) + Text("a") + Text("a"), "twice");
  refused(Head(spec, 8, 0) + U32(0), "revision 8", Code::kUnsupported);
  for (const char* other : {"WhisperSpec", "TransformerDecoderSpec", "TransformerEncoderSpec"}) {
    refused(Head(other, 3, 0) + U32(0), other, Code::kUnsupported);
  }
}

TEST(Ctranslate2, RefusesPartsThatAreNotUnderstood) {
  const std::string whole = ReadFile(kTiny / "int8/model.bin");
  const auto refused = [&](const std::string& bytes, const char* part, Code code) {
    const auto model = Describe(bytes);
    ASSERT_FALSE(model) << part;
    EXPECT_EQ(model.error().code, code) << model.error().message;
    EXPECT_NE(model.error().message.find(part), std::string::npos) << model.error().message;
  };
  const std::string name = "encoder/layer_0/self_attention/relative_position_keys";
  refused(Plus(whole, Variable(name, {1}, 1, "x")), name.c_str(), Code::kUnsupported);
  EXPECT_TRUE(Describe(Plus(whole, Variable("with_source_bos", {}, 1, "x"))));
  // A number of the file that is changed in place.
  const auto changed = [&](const std::string& variable, const std::string& bytes) {
    const auto model = ParseModel(whole);
    std::string other = whole;
    return other.replace(model->variables.find(variable)->second.offset, bytes.size(), bytes);
  };
  refused(changed("decoder/alibi", "\1"), "decoder/alibi", Code::kUnsupported);
  refused(changed("encoder/activation", "\4"), "encoder/activation 4", Code::kUnsupported);
  refused(changed("encoder/num_heads", "\5"), "5 heads", Code::kCorruption);
  const std::string scale = "encoder/layer_0/ffn/linear_0/weight_scale";
  for (const float bad : {0.0f, -1.0f, INFINITY, NAN, 1e-45f}) {
    const std::string bits(reinterpret_cast<const char*>(&bad), 4);
    refused(changed(scale, bits), scale.c_str(), Code::kCorruption);
  }
  std::string renamed = whole;
  renamed.replace(renamed.find("decoder/layer_norm/beta"), 23, "decoder/layer_norm/bata");
  refused(renamed, "decoder/layer_norm/beta: missing", Code::kCorruption);
}

class Ct2FolderFiles : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "kvasir-ct2-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
    for (const char* file : {"model.bin", "config.json", "shared_vocabulary.json"}) {
      fs::copy_file(kTiny / "float32" / file, folder_ / file);
    }
  }
  void TearDown() override { fs::remove_all(folder_); }
  void Write(const char* name, const std::string& text) {
    fs::remove(folder_ / name);
    std::ofstream(folder_ / name, std::ios::binary) << text;
  }
  void Refused(Code code, const char* part) const {
    const auto folder = ReadCt2Folder(folder_);
    ASSERT_FALSE(folder) << part;
    EXPECT_EQ(folder.error().code, code) << folder.error().message;
    EXPECT_NE(folder.error().message.find(part), std::string::npos) << folder.error().message;
  }
  fs::path folder_;
};

TEST_F(Ct2FolderFiles, AreReadAsTheConfigSays) {
  Write("config.json", R"({"decoder_start_token": null, "add_source_eos": true, "unk_token": "?",
                           "layer_norm_epsilon": 1e-6})");
  std::string tokens = "?\r\n";
  for (int i = 1; i < 37; ++i) tokens += std::to_string(i) + "\n";
  fs::remove(folder_ / "shared_vocabulary.json");
  Write("source_vocabulary.txt", tokens);
  Write("target_vocabulary.txt", tokens.substr(3));  // the unknown token comes last
  const auto folder = ReadCt2Folder(folder_);
  ASSERT_TRUE(folder) << folder.error().message;
  EXPECT_FALSE(folder->decoder_start);
  EXPECT_TRUE(folder->add_source_eos);
  EXPECT_EQ(folder->norm_eps, 1e-6f);
  EXPECT_EQ(folder->source_tokens.front(), "?");
  EXPECT_EQ(folder->target_tokens.front(), "1");
  EXPECT_EQ(folder->target_tokens.back(), "?");
  fs::remove(folder_ / "config.json");
  Write("source_vocabulary.txt", tokens.substr(3));
  const auto plain = ReadCt2Folder(folder_);
  ASSERT_TRUE(plain) << plain.error().message;
  EXPECT_EQ(plain->decoder_start, "<s>");
}

TEST_F(Ct2FolderFiles, TheSharedVocabularyComesFirst) {
  const auto before = ReadCt2Folder(folder_);
  for (const char* name : {"source_vocabulary.txt", "target_vocabulary.txt"}) {
    std::string tokens = "<unk>\n";
    for (int i = 1; i < 37; ++i) tokens += std::to_string(i) + "\n";
    Write(name, tokens);
  }
  const auto folder = ReadCt2Folder(folder_);
  ASSERT_TRUE(before && folder);
  EXPECT_EQ(folder->source_tokens, before->source_tokens);
  EXPECT_EQ(folder->target_tokens, before->target_tokens);
}

TEST_F(Ct2FolderFiles, RefuseDamage) {
  Write("shared_vocabulary.json", R"(["<unk>", "a"])");
  Refused(Code::kCorruption, "2 tokens, but the encoder's embedding has 37 rows");
  Write("shared_vocabulary.json", R"(["a", 1])");
  Refused(Code::kCorruption, "not a list of tokens");
  Write("shared_vocabulary.json", R"([], "tokens2": [])");
  Refused(Code::kCorruption, "not a list of tokens");
  fs::remove(folder_ / "shared_vocabulary.json");
  fs::copy_file(kTiny / "float32/shared_vocabulary.json", folder_ / "shared_vocabulary.json");
  Write("config.json", R"({"bos_token": 1})");
  Refused(Code::kCorruption, "bos_token");
  Write("config.json", R"({"layer_norm_epsilon": 2})");
  Refused(Code::kCorruption, "layer_norm_epsilon");
  Write("config.json", "[");
  Refused(Code::kCorruption, "config.json");
  fs::remove(folder_ / "config.json");
  fs::remove(folder_ / "shared_vocabulary.json");
  Refused(Code::kNotFound, "source_vocabulary");
  Write("model.bin", "");
  Refused(Code::kCorruption, "damaged at byte 0");
  fs::remove(folder_ / "model.bin");
  Refused(Code::kNotFound, "model.bin");
}

}  // namespace
}  // namespace kvasir
