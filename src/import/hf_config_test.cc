#include "import/hf_config.h"

#include <nlohmann/json.hpp>

#include "import/model_files_for_test.h"

namespace kvasir {
namespace {

using nlohmann::json;

json Base() {
  return json::parse(R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 100,
      "hidden_size": 48, "intermediate_size": 100, "num_hidden_layers": 2,
      "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 512,
      "rms_norm_eps": 1e-5})");
}
Result<ModelConfig> ParseConfig(const json& config,
                                std::optional<std::string_view> generation = {}) {
  return ParseHfConfig(config.dump(), generation, "config.json");
}
Result<ModelConfig> With(const char* key, const json& value) {
  json config = Base();
  config[key] = value;
  return ParseConfig(config);
}
void ExpectInvalid(const char* key, const json& value, const std::string& part) {
  ExpectError(With(key, value), Code::kInvalidArgument, {"config.json", part});
}

TEST(HfConfig, ReadsSizesAndFillsInWhatLlamaConfigDefaults) {
  const auto c = ParseConfig(Base());
  ASSERT_TRUE(c) << c.error().message;
  EXPECT_EQ(c->architecture, "llama");
  EXPECT_EQ(c->head_dim, 8u);
  EXPECT_EQ(c->num_kv_heads, 2u);
  EXPECT_EQ(c->rope.type, RopeType::kDefault);
  EXPECT_EQ(c->rope.theta, 10000.0);
  EXPECT_FALSE(c->tied_embeddings || c->qkv_bias || c->o_bias || c->mlp_bias);
  EXPECT_TRUE(c->bos.empty() && c->eos.empty());
  json few = Base();
  for (const char* key : {"num_key_value_heads", "max_position_embeddings", "rms_norm_eps"}) {
    few.erase(key);
  }
  few["head_dim"] = 20;
  const auto d = ParseConfig(few);
  ASSERT_TRUE(d) << d.error().message;
  EXPECT_EQ(d->num_kv_heads, 6u);
  EXPECT_EQ(d->head_dim, 20u);
  EXPECT_EQ(d->max_positions, 2048u);
  EXPECT_EQ(d->rms_norm_eps, 1e-6);
}

TEST(HfConfig, ReadsBiasesTyingAndNulls) {
  json config = Base();
  config.update({{"attention_bias", true},
                 {"mlp_bias", true},
                 {"tie_word_embeddings", true},
                 {"head_dim", nullptr},
                 {"rope_scaling", nullptr},
                 {"eos_token_id", nullptr}});
  const auto c = ParseConfig(config);
  ASSERT_TRUE(c) << c.error().message;
  EXPECT_TRUE(c->qkv_bias && c->o_bias && c->mlp_bias && c->tied_embeddings);
  EXPECT_EQ(c->head_dim, 8u);
}

TEST(HfConfig, ReadsRopeOfTransformers4And5Alike) {
  const json llama3 = {{"rope_type", "llama3"},
                       {"factor", 8.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 64}};
  json four = Base(), five = Base(), legacy = Base();
  four["rope_theta"] = 500000.0;
  four["rope_scaling"] = llama3;
  legacy = four;
  legacy["rope_scaling"].erase("rope_type");
  legacy["rope_scaling"]["type"] = "llama3";
  five["rope_parameters"] = llama3;
  five["rope_parameters"]["rope_theta"] = 500000;
  for (const json& config : {four, five, legacy}) {
    const auto c = ParseConfig(config);
    ASSERT_TRUE(c) << c.error().message;
    EXPECT_EQ(c->rope.type, RopeType::kLlama3);
    EXPECT_EQ(c->rope.theta, 500000.0);
    EXPECT_EQ(c->rope.factor, 8.0);
    EXPECT_EQ(c->rope.original_max_positions, 64.0);
    EXPECT_EQ(CanonicalText(*c), CanonicalText(*ParseConfig(four)));
  }
  const auto linear = With("rope_scaling", {{"type", "linear"}, {"factor", 2}});
  ASSERT_TRUE(linear) << linear.error().message;
  EXPECT_EQ(linear->rope.type, RopeType::kLinear);
  EXPECT_EQ(linear->rope.factor, 2.0);
  EXPECT_TRUE(With("rope_scaling", {{"type", "default"}}));
}

TEST(HfConfig, RefusesRopeThatItCannotCompute) {
  ExpectError(With("rope_scaling", {{"rope_type", "ntk"}, {"factor", 2}}), Code::kUnsupported,
              {"ntk", "default, dynamic, linear, llama3, yarn, longrope"});
  ExpectError(With("partial_rotary_factor", 0.5), Code::kUnsupported, {"partial_rotary_factor"});
  ExpectInvalid("rope_scaling", 3, "rope_scaling");
  ExpectInvalid("rope_scaling", {{"type", "linear"}}, "factor is missing");
  ExpectInvalid("rope_scaling", {{"type", "linear"}, {"factor", 0}}, "factor is 0");
  ExpectInvalid("rope_scaling", {{"type", "linear"}, {"factor", "2"}}, "factor is \"2\"");
  ExpectInvalid("rope_scaling", {{"type", 1}}, "type is 1");
  const json llama3 = {{"rope_type", "llama3"},
                       {"factor", 8.0},
                       {"low_freq_factor", 4.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 64}};
  ExpectInvalid("rope_scaling", llama3, "low_freq_factor < high_freq_factor");
  json missing = llama3;
  missing.erase("original_max_position_embeddings");
  ExpectInvalid("rope_scaling", missing, "original_max_position_embeddings is missing");
  ExpectInvalid("rope_theta", 0, "theta is 0");
  ExpectInvalid("rope_theta", -1.5, "theta is -1.5");
  ExpectInvalid("rope_theta", "big", "rope_theta is \"big\"");
}

TEST(HfConfig, ReadsYarnWithItsDefaults) {
  const auto c = With("rope_scaling", {{"type", "yarn"}, {"factor", 4.0}});
  ASSERT_TRUE(c) << c.error().message;
  EXPECT_EQ(c->rope.type, RopeType::kYarn);
  EXPECT_EQ(c->rope.original_max_positions, 512);  // max_position_embeddings
  EXPECT_EQ(c->rope.beta_fast, 32);
  EXPECT_EQ(c->rope.beta_slow, 1);
  EXPECT_NEAR(c->rope.attention_factor, 1.1386294361119891, 1e-15);  // 0.1 log 4 + 1
  json scaling = {{"type", "yarn"},
                  {"factor", 4.0},
                  {"mscale", 1.0},
                  {"mscale_all_dim", 0.5},
                  {"truncate", false},
                  {"beta_fast", 16},
                  {"original_max_position_embeddings", 64}};
  const auto scaled = With("rope_scaling", scaling);
  ASSERT_TRUE(scaled) << scaled.error().message;
  EXPECT_NEAR(scaled->rope.attention_factor, 1.1386294361119891 / 1.0693147180559945, 1e-15);
  EXPECT_FALSE(scaled->rope.truncate);
  EXPECT_EQ(scaled->rope.beta_fast, 16);
  EXPECT_EQ(scaled->rope.original_max_positions, 64);
  scaling["attention_factor"] = 0.7;
  EXPECT_EQ(With("rope_scaling", scaling)->rope.attention_factor, 0.7);
  EXPECT_EQ(With("rope_scaling", {{"type", "dynamic"}, {"factor", 2}})->rope.type,
            RopeType::kDefault);
  scaling["beta_slow"] = 16;
  ExpectInvalid("rope_scaling", scaling, "beta_slow < beta_fast");
}

TEST(HfConfig, RefusesEveryFigureThatIsMissingOrImpossible) {
  for (const char* key : {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                          "num_attention_heads"}) {
    json config = Base();
    config.erase(key);
    ExpectError(ParseConfig(config), Code::kInvalidArgument, {std::string(key) + " is missing"});
  }
  for (const char* key :
       {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
        "num_attention_heads", "num_key_value_heads", "max_position_embeddings", "head_dim"}) {
    for (const json& wrong : {json(0), json(-1), json(1.5), json("8"), json(true), json::array({1}),
                              json::object(), json(uint64_t{1} << 40)}) {
      ExpectInvalid(key, wrong, std::string(key) + " is ");
    }
  }
  for (const json& wrong : {json(0), json(-1e-5), json(1.0), json("x")}) {
    EXPECT_FALSE(With("rms_norm_eps", wrong)) << wrong;
  }
  for (const char* key : {"attention_bias", "mlp_bias", "tie_word_embeddings"}) {
    ExpectInvalid(key, "yes", std::string(key) + " is \"yes\"");
    ExpectInvalid(key, 1, std::string(key) + " is 1");
  }
}

TEST(HfConfig, RefusesHeadsThatDoNotFit) {
  ExpectInvalid("num_key_value_heads", 4, "6 attention heads");
  ExpectInvalid("num_key_value_heads", 12, "6 attention heads");
  ExpectInvalid("hidden_size", 50, "hidden_size 50 is not a multiple");
  ExpectInvalid("hidden_size", 54, "head_dim 9 is odd");
  ExpectInvalid("head_dim", 7, "head_dim 7 is odd");
  ExpectInvalid("hidden_size", 6 * 1024, "head_dim 1024; at most 512");
}

// Their bytes are multiplied by the sequences that fit: no product of sizes may wrap.
TEST(HfConfig, KAndVOfTheWholeContextHaveALimit) {
  json config = Base();
  config["num_hidden_layers"] = 1 << 14;
  config["max_position_embeddings"] = 1 << 30;
  ExpectError(ParseConfig(config), Code::kInvalidArgument,
              {"config.json: K and V of 16384 layers and 1073741824 positions", "at most 2^48"});
  config["max_position_embeddings"] = 1 << 20;
  EXPECT_TRUE(ParseConfig(config));
}

TEST(HfConfig, NamesAnUnsupportedArchitectureAndSimilarOnes) {
  ExpectError(With("architectures", {"GptOssForCausalLM"}), Code::kUnsupported,
              {"'GptOssForCausalLM' is not supported yet; docs/models.md"});
  for (const char* name : {"BertModel", "XLMRobertaModel", "LlamaBidirectionalModel"}) {
    ExpectError(With("architectures", {name}), Code::kUnsupported, {name, "is bidirectional"});
  }
  ExpectError(With("architectures", {"gemma2forcausallm"}), Code::kUnsupported,
              {"yet (similar: Gemma2ForCausalLM); docs/models.md"});
  ExpectError(With("architectures", {"Qwen3NextForCausalLM"}), Code::kUnsupported,
              {"(similar: Qwen3ForCausalLM, Qwen3MoeForCausalLM)"});
  for (const char* other :
       {"LlamaForSequenceClassification", "Qwen3NextForCausalLM", "DeepseekV3ForCausalLM",
        "BloomForCausalLM", "GPTNeoXForCausalLM", "MambaForCausalLM", "Qwen2MoeForCausalLM"}) {
    ExpectError(With("architectures", {other}), Code::kUnsupported, {other});
  }
  ExpectInvalid("architectures", "LlamaForCausalLM", "architectures must be a list");
  ExpectInvalid("architectures", {1}, "architectures must be a list");
  json config = Base();
  config.erase("architectures");
  ExpectError(ParseConfig(config), Code::kUnsupported, {"'none'"});
  config["model_type"] = "llama";
  EXPECT_TRUE(ParseConfig(config));
  config["model_type"] = "qwen2_vl";
  ExpectError(ParseConfig(config), Code::kUnsupported, {"(similar: qwen2)"});
  config["model_type"] = "bert";
  ExpectError(ParseConfig(config), Code::kUnsupported, {"'bert'"});
}

TEST(HfConfig, RefusesOtherActivationsAndQuantisedModels) {
  ExpectError(With("hidden_act", "quick_gelu"), Code::kUnsupported, {"'quick_gelu'", "silu"});
  ExpectInvalid("hidden_act", 3, "hidden_act is 3");
  ExpectError(With("quantization_config", {{"quant_method", "gptq"}}), Code::kUnsupported,
              {"quantization_config"});
}

TEST(HfConfig, KnowsTransformersNamesOfActivations) {
  const std::pair<const char*, Activation> names[] = {
      {"silu", Activation::kSilu},         {"swish", Activation::kSilu},
      {"gelu_new", Activation::kGeluTanh}, {"gelu_pytorch_tanh", Activation::kGeluTanh},
      {"gelu", Activation::kGelu},         {"relu", Activation::kRelu}};
  for (const auto& [name, activation] : names) {
    const auto c = With("hidden_act", name);
    ASSERT_TRUE(c) << c.error().message;
    EXPECT_EQ(c->activation, activation) << name;
  }
}

TEST(HfConfig, GenerationConfigDecidesSpecialIds) {
  json config = Base();
  config.update({{"bos_token_id", 1}, {"eos_token_id", 2}});
  const auto alone = ParseConfig(config);
  ASSERT_TRUE(alone);
  EXPECT_EQ(alone->eos, std::vector<TokenId>{2});
  const auto both = ParseConfig(config, R"({"eos_token_id": [7, 9], "max_new_tokens": 3})");
  ASSERT_TRUE(both) << both.error().message;
  EXPECT_EQ(both->bos, std::vector<TokenId>{1});
  EXPECT_EQ(both->eos, (std::vector<TokenId>{7, 9}));
  ExpectError(ParseConfig(config, "{"), Code::kCorruption,
              {"generation_config.json", "not valid JSON"});
  ExpectError(ParseConfig(config, "[]"), Code::kCorruption, {"generation_config.json"});
  ExpectError(ParseConfig(config, R"({"eos_token_id": 100})"), Code::kInvalidArgument,
              {"id 100", "vocabulary of 100"});
  for (const char* wrong : {"-1", "\"2\"", "[1, 2.5]", "[[1]]", "99999999999"}) {
    ExpectError(ParseConfig(config, std::string(R"({"eos_token_id": )") + wrong + "}"),
                Code::kInvalidArgument, {"eos_token_id", "not a token id"});
  }
}

TEST(HfConfig, RefusesMalformedJson) {
  for (const char* text : {"", "{", "[1", "{\"a\": NaN}", "\xff\xfe", "{\"a\": \"\xff\"}"}) {
    ExpectError(ParseHfConfig(text, {}, "config.json"), Code::kCorruption, {"not valid JSON"});
  }
  ExpectError(ParseHfConfig("3", {}, "config.json"), Code::kCorruption, {"not a JSON object"});
  ParseHfConfig(std::string(1'000'000, '['), {}, "config.json");  // deep, not crashing
}

TEST(ModelConfig, CanonicalTextSaysAllThatDecidesKv) {
  const ModelConfig base = *ParseConfig(Base());
  const auto differs = [&](auto change) {
    ModelConfig other = base;
    change(other);
    return CanonicalText(other) != CanonicalText(base);
  };
  EXPECT_TRUE(differs([](ModelConfig& c) { c.rope.theta += 1e-9; }));
  EXPECT_TRUE(differs([](ModelConfig& c) { c.rms_norm_eps *= 2; }));
  EXPECT_TRUE(differs([](ModelConfig& c) { c.num_kv_heads = 1; }));
  EXPECT_TRUE(differs([](ModelConfig& c) { c.head_dim = 10; }));
  EXPECT_TRUE(differs([](ModelConfig& c) { c.qkv_bias = true; }));
  EXPECT_TRUE(differs([](ModelConfig& c) { c.rope.type = RopeType::kLinear; }));
  EXPECT_TRUE(differs([](ModelConfig& c) { c.rope.freq_factors = {1, 2, 3, 4}; }));
  EXPECT_TRUE(differs([](ModelConfig& c) { c.rope.rotated_dims = 4; }));
  ModelConfig longrope = base;
  longrope.rope.type = RopeType::kLongRope;
  longrope.rope.freq_factors = longrope.rope.long_freq_factors = {1, 2, 3, 4};
  const auto longrope_differs = [&](auto change) {
    ModelConfig other = longrope;
    change(other.rope);
    return CanonicalText(other) != CanonicalText(longrope);
  };
  EXPECT_TRUE(longrope_differs([](RopeConfig& r) { r.long_freq_factors[3] = 5; }));
  EXPECT_TRUE(longrope_differs([](RopeConfig& r) { r.original_max_positions = 7; }));
  EXPECT_TRUE(longrope_differs([](RopeConfig& r) { r.attention_factor = 1.5; }));
  EXPECT_TRUE(differs([](ModelConfig& c) { c.rotated_layers = {true, false}; }));
  EXPECT_TRUE(differs([](ModelConfig& c) { c.activation = Activation::kGelu; }));
  EXPECT_TRUE(differs([](ModelConfig& c) { c.embedding_multiplier = 2; }));
  EXPECT_TRUE(differs([](ModelConfig& c) { c.residual_multiplier = 0.5; }));
  EXPECT_TRUE(differs([](ModelConfig& c) { c.logits_scaling = 2; }));
  EXPECT_TRUE(differs([](ModelConfig& c) { c.attention_multiplier = 1; }));
  EXPECT_FALSE(differs([](ModelConfig& c) { c.max_positions = 7; }));
  EXPECT_FALSE(differs([](ModelConfig& c) { c.eos = {3}; }));
  EXPECT_FALSE(differs([](ModelConfig& c) { c.rope.factor = 7; }));  // without scaling: unused
}

}  // namespace
}  // namespace kvasir
