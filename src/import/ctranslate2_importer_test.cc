// CTranslate2 folders as models.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cmath>

#include "import/ct2_file_for_test.h"
#include "import/importer.h"
#include "source_paths.h"

namespace kvasir {
namespace {

namespace fs = std::filesystem;

const fs::path kTinyModel = fs::path(KVASIR_SOURCE_DIR) / "tests/data/ct2-tiny";

class Ct2Importer : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "kvasir-ct2-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { fs::remove_all(folder_); }
  void CopyTiny(const fs::path& to, const char* type = "float32") const {
    fs::create_directories(to.parent_path());
    fs::copy(kTinyModel / type, to);
  }
  static void Write(const fs::path& path, const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
  }
  // Replaces the bytes of a variable in folder_/model.bin.
  void Change(const std::string& variable, const std::string& bytes) const {
    std::ifstream file(folder_ / "model.bin", std::ios::binary);
    std::string whole{std::istreambuf_iterator<char>(file), {}};
    const auto model = ParseCt2(std::as_bytes(std::span(whole)), "model.bin");
    ASSERT_TRUE(model && model->variables.contains(variable)) << variable;
    whole.replace(model->variables.find(variable)->second.offset, bytes.size(), bytes);
    Write(folder_ / "model.bin", whole);
  }
  static void Refused(const fs::path& path, Code code, const char* part) {
    const auto model = ImportModel(path);
    ASSERT_FALSE(model) << part;
    EXPECT_EQ(model.error().code, code) << model.error().message;
    EXPECT_NE(model.error().message.find(part), std::string::npos) << model.error().message;
  }
  fs::path folder_;
};

TEST_F(Ct2Importer, HasTheConfigOfTheModelThatWasConverted) {
  const auto original = ImportModel(kTinyModel / "hf");
  ASSERT_TRUE(original) << original.error().message;
  for (const char* type : {"float32", "float16", "bfloat16", "int16", "int8", "int8_float16"}) {
    const auto model = ImportModel(kTinyModel / type);
    ASSERT_TRUE(model) << model.error().message;
    EXPECT_EQ(model->name, type);
    const ModelConfig &a = model->config, &b = original->config;
    EXPECT_EQ(a.vocab_size, b.vocab_size);
    EXPECT_EQ(a.hidden_size, b.hidden_size);
    EXPECT_EQ(a.num_layers, b.num_layers);
    EXPECT_EQ(a.head_dim, b.head_dim);
    EXPECT_EQ(a.ffn_size, b.ffn_size);
    EXPECT_EQ(a.max_positions, b.max_positions);
    EXPECT_EQ(a.activation, b.activation);
    EXPECT_EQ(a.embedding_multiplier, b.embedding_multiplier);
    EXPECT_EQ(a.eos, b.eos);
    EXPECT_TRUE(a.tied_embeddings && a.qkv_bias && a.o_bias && a.mlp_bias);
    EXPECT_FALSE(a.head_bias || a.sinusoids || a.encoder->vocab_size);
    EXPECT_EQ(a.encoder->num_layers, b.encoder->num_layers);
    EXPECT_EQ(a.encoder->decoder_start, b.encoder->decoder_start);
    EXPECT_EQ(model->mapped_files.size(), 1u);
    const bool integers = std::string_view(type).starts_with("int");
    EXPECT_EQ(model->embedding.integers.has_value(), integers) << type;
    EXPECT_EQ(model->layers[0][Slot::kCrossV].view.integers.has_value(), integers) << type;
  }
}

TEST_F(Ct2Importer, TakesTwoVocabulariesAndABiasOfTheHead) {
  ct2_file::SmallModel(ct2_file::Stored::kI8).WriteTo(folder_);
  for (const fs::path& path : {folder_, folder_ / "model.bin"}) {
    const auto model = ImportModel(path);
    ASSERT_TRUE(model) << model.error().message;
    EXPECT_EQ(model->config.vocab_size, ct2_file::SmallModel::kTargetVocab);
    EXPECT_EQ(model->config.encoder->vocab_size, ct2_file::SmallModel::kSourceVocab);
    EXPECT_TRUE(model->config.head_bias && model->config.sinusoids);
    EXPECT_FALSE(model->config.tied_embeddings);
    EXPECT_EQ(model->config.encoder->first_position, 1u);
    EXPECT_EQ(model->config.encoder->decoder_start, 1);
    EXPECT_EQ(model->config.eos, std::vector<TokenId>{2});
    EXPECT_EQ(model->config.max_positions, 1024u);
    EXPECT_TRUE(model->config.encoder->pair);
    ASSERT_FALSE(model->vocabulary);
    EXPECT_EQ(model->vocabulary.error().code, Code::kUnsupported);
  }
}

TEST_F(Ct2Importer, ReadsByOneVocabularyAndWritesByAnother) {
  const auto model = ImportModel(kTinyModel / "pair");
  ASSERT_TRUE(model) << model.error().message;
  ASSERT_TRUE(model->vocabulary) << model->vocabulary.error().message;
  const Vocabulary& target = **model->vocabulary;
  ASSERT_TRUE(target.sources);
  EXPECT_EQ(target.vocab_size(), model->config.vocab_size);
  EXPECT_EQ(target.sources->vocab_size(), model->config.encoder->vocab_size);
  EXPECT_NE(target.file.find("target_vocabulary"), std::string::npos) << target.file;
  EXPECT_NE(target.sources->file.find("source_vocabulary"), std::string::npos);
  EXPECT_EQ(model->config.encoder->pair->frame.after, std::vector<TokenId>{2});
}

TEST_F(Ct2Importer, FindsTheModelInAPackage) {
  const fs::path package = folder_ / "translate-en_es";
  CopyTiny(package / "model", "int8");
  Write(package / "metadata.json",
        R"({"from_code": "en", "to_code": "es", "package_version": "1"})");
  for (const fs::path& path : {package, package / "model"}) {
    const auto model = ImportModel(path);
    ASSERT_TRUE(model) << model.error().message;
    EXPECT_EQ(model->path, path);
    ASSERT_TRUE(model->config.encoder->pair);
    EXPECT_EQ(model->config.encoder->pair->source, "en");
    EXPECT_EQ(model->config.encoder->pair->target, "es");
    EXPECT_TRUE(model->config.encoder->pair->frame.before.empty());
    ASSERT_FALSE(model->vocabulary);
    EXPECT_NE(model->vocabulary.error().message.find("sentencepiece.model"), std::string::npos);
  }
  Write(package / "metadata.json", "[");
  Refused(package, Code::kCorruption, "metadata.json");
}

TEST_F(Ct2Importer, PutsTheEndsThatTheConfigNamesAroundSources) {
  CopyTiny(folder_ / "m");
  Write(folder_ / "m/config.json", R"({"add_source_bos": true, "add_source_eos": true,
                                       "decoder_start_token": "<s>"})");
  const auto model = ImportModel(folder_ / "m");
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_EQ(model->config.encoder->decoder_start, 0);
  EXPECT_EQ(model->config.encoder->pair->frame.before, std::vector<TokenId>{0});
  EXPECT_EQ(model->config.encoder->pair->frame.after, std::vector<TokenId>{2});
}

TEST_F(Ct2Importer, RefusesWhatItDoesNotRunByName) {
  fs::remove(folder_);
  CopyTiny(folder_);
  Write(folder_ / "config.json", R"({"decoder_start_token": null})");
  Refused(folder_, Code::kUnsupported, "decoder_start_token is null");
  Write(folder_ / "config.json", R"({"decoder_start_token": "<start>"})");
  Refused(folder_, Code::kCorruption, "no token '<start>'");
  Write(folder_ / "config.json", R"({"eos_token": "<end>", "decoder_start_token": "</s>"})");
  Refused(folder_, Code::kCorruption, "no token '<end>'");
  fs::remove(folder_ / "config.json");
  Change("encoder/activation", std::string(1, '\0'));
  Refused(folder_, Code::kUnsupported, "activation differ");
  Change("encoder/activation", std::string(1, '\3'));
  Change("decoder/pre_norm", std::string(1, '\0'));
  Refused(folder_, Code::kUnsupported, "decoder/pre_norm is 0");
  Write(folder_ / "model.bin", ct2_file::Head("WhisperSpec", 3, 0) + ct2_file::U32(0));
  Refused(folder_, Code::kUnsupported, "WhisperSpec");
  Write(folder_ / "model.bin", "version https://git-lfs.github.com/spec/v1\n");
  Refused(folder_, Code::kCorruption, "git-LFS");
}

TEST_F(Ct2Importer, RefusesDamagedFolders) {
  ct2_file::SmallModel(ct2_file::Stored::kI16).WriteTo(folder_);
  Write(folder_ / "target_vocabulary.txt", "<s>\n</s>\n");
  Refused(folder_, Code::kCorruption, "3 tokens, but the decoder's embedding has 9 rows");
  fs::remove(folder_ / "target_vocabulary.txt");
  Refused(folder_, Code::kNotFound, "target_vocabulary");
  const std::string whole = ct2_file::SmallModel(ct2_file::Stored::kI16).File();
  Write(folder_ / "model.bin", whole.substr(0, whole.size() / 2));
  Refused(folder_, Code::kCorruption, "damaged at byte");
}

}  // namespace
}  // namespace kvasir
