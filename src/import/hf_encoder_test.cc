// Encoder-decoder models of Hugging Face: what config.json says, and what is refused.
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "import/architecture.h"
#include "import/hf_config.h"
#include "import/model_files_for_test.h"
#include "import/tiny_models_for_test.h"

namespace kvasir {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

json TinyConfig() {
  return json::parse(std::ifstream(TinyModelPath("m2m100-tiny") + "/config.json"));
}
json EncoderWith(const json& changes) {
  json config = TinyConfig();
  config.update(changes);
  return config;
}
Result<ModelConfig> ParseEncoder(const json& config) {
  return ParseHfConfig(config.dump(), {}, "config.json");
}

TEST(HfEncoder, TheHalvesMayDiffer) {
  const auto config = ParseEncoder(TinyConfig());
  ASSERT_TRUE(config) << config.error().message;
  ASSERT_TRUE(config->encoder);
  EXPECT_EQ(config->num_layers, 2u);
  EXPECT_EQ(config->num_heads, 2u);
  EXPECT_EQ(config->head_dim, 18u);
  EXPECT_EQ(config->ffn_size, 52u);
  EXPECT_EQ(config->encoder->num_layers, 3u);
  EXPECT_EQ(config->encoder->num_heads, 3u);
  EXPECT_EQ(config->encoder->head_dim, 12u);
  EXPECT_EQ(config->encoder->ffn_size, 44u);
  EXPECT_EQ(config->encoder->first_position, 2u);
  EXPECT_EQ(config->encoder->decoder_start, 2);
  EXPECT_EQ(config->activation, Activation::kGelu);
  EXPECT_EQ(config->embedding_multiplier, 6.0);
  const ModelConfig encoder = EncoderOf(*config);
  EXPECT_FALSE(encoder.encoder);
  EXPECT_FALSE(LayerOf(encoder, 2).cross);
  EXPECT_TRUE(LayerOf(*config, 1).cross);
  EXPECT_FALSE(LayerOf(*config, 1).rotated);
  EXPECT_EQ(LayerOf(*config, 1).norm, NormKind::kLayer);
  EXPECT_EQ(LayerOf(*config, 1).ffn, FfnKind::kPlain);
}

TEST(HfEncoder, MissingKeysHaveTheDefaultsOfTransformers) {
  const auto config = ParseEncoder({{"architectures", {"M2M100ForConditionalGeneration"}},
                                    {"d_model", 1024},
                                    {"encoder_layers", 12},
                                    {"decoder_layers", 12}});
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->vocab_size, 128112u);
  EXPECT_EQ(config->max_positions, 1024u);
  EXPECT_EQ(config->num_heads, 16u);
  EXPECT_EQ(config->ffn_size, 4096u);
  EXPECT_EQ(config->encoder->num_heads, 16u);
  EXPECT_EQ(config->encoder->ffn_size, 4096u);
  EXPECT_EQ(config->activation, Activation::kRelu);
  EXPECT_EQ(config->rms_norm_eps, 1e-5);
  EXPECT_EQ(config->embedding_multiplier, 32.0);
  EXPECT_TRUE(config->tied_embeddings);
  EXPECT_EQ(config->encoder->decoder_start, 2);
}

TEST(HfEncoder, EveryFigureThatDecidesKvIsInTheIdentity) {
  const auto config = ParseEncoder(TinyConfig());
  ASSERT_TRUE(config);
  for (const json& change : {json{{"encoder_layers", 2}}, json{{"encoder_attention_heads", 2}},
                             json{{"encoder_ffn_dim", 43}}, json{{"pad_token_id", 0}},
                             json{{"scale_embedding", false}}}) {
    const auto other = ParseEncoder(EncoderWith(change));
    ASSERT_TRUE(other) << change << other.error().message;
    EXPECT_NE(CanonicalText(*config), CanonicalText(*other)) << change;
  }
  EXPECT_EQ(ParseEncoder(EncoderWith({{"scale_embedding", false}}))->embedding_multiplier, 1.0);
}

TEST(HfEncoder, TheGenerationConfigsStartTokenWins) {
  const auto config =
      ParseHfConfig(TinyConfig().dump(), R"({"decoder_start_token_id": 5})", "config.json");
  ASSERT_TRUE(config);
  EXPECT_EQ(config->encoder->decoder_start, 5);
}

TEST(HfEncoder, RefusesConfigurationsThatCannotBe) {
  const std::pair<json, const char*> cases[] = {
      {{{"encoder_layers", 0}}, "encoder_layers"},
      {{{"decoder_layers", 0}}, "decoder_layers"},
      {{{"encoder_layers", nullptr}}, "encoder_layers"},
      {{{"encoder_attention_heads", 5}}, "encoder_attention_heads"},
      {{{"decoder_attention_heads", 5}}, "decoder_attention_heads"},
      {{{"encoder_attention_heads", 4}}, "head_dim 9 of the encoder is odd"},
      {{{"d_model", 35}}, "d_model"},
      {{{"decoder_start_token_id", 71}}, "decoder-start id 71"},
      {{{"decoder_start_token_id", {2, 3}}}, "decoder_start_token_id"},
      {{{"activation_function", "softplus"}}, "softplus"},
      {{{"tie_word_embeddings", false}}, "tie_word_embeddings"},
      {{{"encoder_ffn_dim", -1}}, "encoder_ffn_dim"},
      {{{"max_position_embeddings", 0}}, "max_position_embeddings"}};
  for (const auto& [change, what] : cases) {
    const auto config = ParseEncoder(EncoderWith(change));
    ASSERT_FALSE(config) << change;
    EXPECT_NE(config.error().message.find(what), std::string::npos) << config.error().message;
  }
}

TEST(HfEncoder, OtherEncoderDecodersAreRefusedByName) {
  for (const char* hf_class :
       {"T5ForConditionalGeneration", "BartForConditionalGeneration",
        "MBartForConditionalGeneration", "MarianMTModel", "WhisperForConditionalGeneration",
        "NllbMoeForConditionalGeneration"}) {
    const auto config = ParseEncoder(EncoderWith({{"architectures", {hf_class}}}));
    ASSERT_FALSE(config) << hf_class;
    EXPECT_EQ(config.error().code, Code::kUnsupported);
    EXPECT_NE(config.error().message.find(hf_class), std::string::npos);
  }
  for (const char* type : {"t5", "bart", "mbart", "marian", "whisper", "nllb-moe"}) {
    json other = EncoderWith({{"model_type", type}});
    other.erase("architectures");
    const auto config = ParseEncoder(other);
    ASSERT_FALSE(config) << type;
    EXPECT_NE(config.error().message.find(type), std::string::npos);
  }
}

// The tiny model's files with its tensors renamed or added to.
class HfEncoderFiles : public testing::Test {
 protected:
  HfEncoderFiles() {
    std::ifstream file(TinyModelPath("m2m100-tiny") + "/model.safetensors", std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    uint64_t size = 0;
    std::memcpy(&size, bytes.data(), sizeof(size));
    header_ = json::parse(bytes.substr(8, size));
    data_ = bytes.substr(8 + size);
  }
  Result<ImportedModel> Written() {
    folder_.Write("config.json", TinyConfig().dump());
    folder_.Write("model.safetensors", Safetensors(header_.dump(), data_));
    return ImportModel(folder_.path());
  }
  // Adds another tensor with the numbers of `like`.
  void Add(const std::string& name, const std::string& like) {
    json entry = header_[like];
    const size_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
    entry["data_offsets"] = {data_.size(), data_.size() + end - begin};
    data_ += data_.substr(begin, end - begin);
    header_[name] = entry;
  }
  void Rename(const std::string& from, const std::string& to) {
    header_[to] = header_[from];
    header_.erase(from);
  }

  static constexpr const char* kShared = "model.shared.weight";
  TemporaryFolder folder_;
  json header_;
  std::string data_;
};

TEST_F(HfEncoderFiles, TheTableHasAnyOfItsNames) {
  std::string name = kShared;
  for (const char* other : {"model.encoder.embed_tokens.weight",
                            "model.decoder.embed_tokens.weight", "lm_head.weight"}) {
    Rename(name, other);
    name = other;
    const auto model = Written();
    ASSERT_TRUE(model) << model.error().message;
    EXPECT_EQ(model->embedding.shape, (std::vector<uint64_t>{71, 36}));
    EXPECT_FALSE(model->lm_head);
  }
}

TEST_F(HfEncoderFiles, TablesUnderSeveralNamesMustBeEqual) {
  Add("model.encoder.embed_tokens.weight", kShared);
  Add("lm_head.weight", kShared);
  ASSERT_TRUE(Written());
  data_.back() = static_cast<char>(data_.back() ^ 1);  // of lm_head
  const auto model = Written();
  ASSERT_FALSE(model);
  EXPECT_NE(model.error().message.find("lm_head.weight"), std::string::npos);
}

TEST_F(HfEncoderFiles, AMissingOrUnknownTensorOfEitherHalfIsNamed) {
  for (const char* name : {"model.encoder.layers.2.fc1.bias", "model.encoder.layer_norm.weight",
                           "model.decoder.layers.1.encoder_attn.k_proj.weight"}) {
    const json whole = header_;
    Rename(name, "other");
    const auto model = Written();
    ASSERT_FALSE(model) << name;
    EXPECT_EQ(model.error().code, Code::kNotFound);
    EXPECT_NE(model.error().message.find(name), std::string::npos);
    header_ = whole;
  }
  // Buffers of old files are passed over, layers that the configuration lacks are not.
  Add("model.encoder.embed_positions.weights", kShared);
  ASSERT_TRUE(Written());
  Add("model.encoder.layers.3.fc1.bias", "model.encoder.layers.2.fc1.bias");
  const auto model = Written();
  ASSERT_FALSE(model);
  EXPECT_NE(model.error().message.find("model.encoder.layers.3.fc1.bias"), std::string::npos);
}

}  // namespace
}  // namespace kvasir
