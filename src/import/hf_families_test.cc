// What config.json says of each family, and what is refused.
#include <nlohmann/json.hpp>

#include "import/hf_config.h"
#include "import/model_files_for_test.h"

namespace kvasir {
namespace {

using nlohmann::json;

Result<ModelConfig> Parse(const json& config) {
  return ParseHfConfig(config.dump(), {}, "config.json");
}

json Family(const char* hf_class, const json& more = json::object()) {
  json config = json::parse(R"({"vocab_size": 100, "hidden_size": 48, "intermediate_size": 100,
      "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2,
      "max_position_embeddings": 512})");
  config["architectures"] = {hf_class};
  config.update(more);
  return config;
}

TEST(HfFamilies, EachFamilyHasItsOwnDefaults) {
  const auto qwen2 = Parse(Family("Qwen2ForCausalLM"));
  ASSERT_TRUE(qwen2) << qwen2.error().message;
  EXPECT_TRUE(qwen2->qkv_bias && !qwen2->o_bias && !qwen2->mlp_bias && !qwen2->tied_embeddings);
  const auto qwen3 = Parse(Family("Qwen3ForCausalLM"));
  ASSERT_TRUE(qwen3) << qwen3.error().message;
  EXPECT_EQ(qwen3->head_dim, 128u);
  EXPECT_FALSE(qwen3->qkv_bias);
  const auto smollm3 = Parse(Family("SmolLM3ForCausalLM"));
  ASSERT_TRUE(smollm3) << smollm3.error().message;
  EXPECT_TRUE(smollm3->tied_embeddings);
  EXPECT_EQ(smollm3->rope.theta, 2e6);
  const auto granite = Parse(Family("GraniteForCausalLM"));
  ASSERT_TRUE(granite) << granite.error().message;
  EXPECT_EQ(granite->attention_multiplier, 1.0);  // not 1/sqrt(head_dim)
  EXPECT_FALSE(qwen3->attention_multiplier);
}

TEST(HfFamilies, ReadsGranitesMultipliersAndRefusesWhatIsNone) {
  const auto c = Parse(Family("GraniteForCausalLM", {{"embedding_multiplier", 12},
                                                     {"attention_multiplier", 0.015625},
                                                     {"residual_multiplier", 0.22},
                                                     {"logits_scaling", 8.0}}));
  ASSERT_TRUE(c) << c.error().message;
  EXPECT_EQ(c->embedding_multiplier, 12);
  EXPECT_EQ(c->attention_multiplier, 0.015625);
  EXPECT_EQ(c->residual_multiplier, 0.22);
  EXPECT_EQ(c->logits_scaling, 8);
  for (const char* key :
       {"embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling"}) {
    for (const json& wrong : {json(0), json(-1), json(1e39), json("x")}) {
      ExpectError(Parse(Family("GraniteForCausalLM", {{key, wrong}})), Code::kInvalidArgument,
                  {"config.json"});
    }
  }
}

TEST(HfFamilies, ReadsWhichLayersOfSmolLm3RopeRotates) {
  const auto layers = [](const json& more) {
    json config = Family("SmolLM3ForCausalLM", more);
    config["num_hidden_layers"] = 6;
    return Parse(config);
  };
  EXPECT_EQ(layers(json::object())->rotated_layers, (std::vector<bool>{1, 1, 1, 0, 1, 1}));
  EXPECT_EQ(layers({{"no_rope_layer_interval", 2}})->rotated_layers,
            (std::vector<bool>{1, 0, 1, 0, 1, 0}));
  EXPECT_EQ(layers({{"no_rope_layers", {0, 1, 1, 0, 1, 1}}})->rotated_layers,
            (std::vector<bool>{0, 1, 1, 0, 1, 1}));
  for (const json& wrong : {json(3), json{1, 1}, json{1, 1, 2, 1, 1, 1}, json{1, 1, "", 1, 1, 1}}) {
    ExpectError(layers({{"no_rope_layers", wrong}}), Code::kInvalidArgument, {"no_rope_layers"});
  }
}

TEST(HfFamilies, ReadsPhi3sPartialRotaryAndRefusesItsLongRope) {
  const auto c = Parse(Family("Phi3ForCausalLM", {{"partial_rotary_factor", 0.75}}));
  ASSERT_TRUE(c) << c.error().message;
  EXPECT_EQ(c->rope.rotated_dims, 6u);
  for (const double wrong : {0.0, -1.0, 1.5, 0.4}) {  // 0.4 of 8 are 3
    ExpectError(Parse(Family("Phi3ForCausalLM", {{"partial_rotary_factor", wrong}})),
                Code::kInvalidArgument, {"config.json"});
  }
  for (const char* type : {"longrope", "su", "yarn"}) {
    ExpectError(Parse(Family("Phi3ForCausalLM", {{"rope_scaling", {{"type", type}}}})),
                Code::kUnsupported, {type, "Phi3ForCausalLM"});
  }
}

using Windows = std::vector<uint32_t>;

TEST(HfFamilies, EveryLayerOfMistralAndPhi3HasTheWindowThatIsNamed) {
  for (const char* hf_class : {"MistralForCausalLM", "MinistralForCausalLM", "Phi3ForCausalLM"}) {
    const auto with = [&](const json& window) {
      return Parse(Family(hf_class, {{"sliding_window", window}}));
    };
    EXPECT_EQ(with(511)->windows, (Windows{511, 511}));
    EXPECT_EQ(with(nullptr)->windows, Windows());
    EXPECT_EQ(with(512)->windows, Windows());  // as long as the context: full
    ExpectError(with(0), Code::kInvalidArgument, {"sliding_window is 0"});
    ExpectError(with(-1), Code::kInvalidArgument, {"sliding_window is -1"});
    ExpectError(with("x"), Code::kInvalidArgument, {"sliding_window"});
  }
  const json longer = {{"max_position_embeddings", 8192}};
  EXPECT_EQ(Parse(Family("MistralForCausalLM", longer))->windows, (Windows{4096, 4096}));
  EXPECT_EQ(Parse(Family("Phi3ForCausalLM", longer))->windows, Windows());
}

TEST(HfFamilies, LayersOfQwen2HaveAWindowFromMaxWindowLayersOn) {
  const auto qwen = [](json more) {
    more["num_hidden_layers"] = 3;
    if (!more.contains("sliding_window")) more["sliding_window"] = 64;
    return Parse(Family("Qwen2ForCausalLM", more));
  };
  const auto used = [&](json more) {
    more["use_sliding_window"] = true;
    return qwen(std::move(more));
  };
  EXPECT_EQ(qwen({{"use_sliding_window", false}, {"max_window_layers", 0}})->windows, Windows());
  EXPECT_EQ(used({})->windows, Windows());  // max_window_layers is 28 where it is missing
  EXPECT_EQ(used({{"max_window_layers", 1}})->windows, (Windows{0, 64, 64}));
  EXPECT_EQ(used({{"max_window_layers", 0}})->windows, (Windows{64, 64, 64}));
  EXPECT_EQ(used({{"max_window_layers", 3}})->windows, Windows());
  EXPECT_EQ(used({{"max_window_layers", 1}, {"sliding_window", nullptr}})->windows, Windows());
  ExpectError(used({{"max_window_layers", -1}}), Code::kInvalidArgument, {"max_window_layers"});
}

TEST(HfFamilies, LayerTypesDecideWhichLayersHaveAWindow) {
  const auto with = [](const char* hf_class, json more) {
    if (!more.contains("sliding_window")) more["sliding_window"] = 64;
    return Parse(Family(hf_class, more));
  };
  const json types = {"full_attention", "sliding_attention"}, full = {types[0], types[0]};
  EXPECT_EQ(with("Qwen2ForCausalLM", {{"layer_types", types}})->windows, (Windows{0, 64}));
  EXPECT_EQ(with("MistralForCausalLM", {{"layer_types", types}})->windows, (Windows{0, 64}));
  EXPECT_EQ(with("MistralForCausalLM", {{"layer_types", full}})->windows, Windows());
  EXPECT_EQ(with("LlamaForCausalLM", {{"layer_types", full}})->windows, Windows());
  ExpectError(with("LlamaForCausalLM", {{"layer_types", types}}), Code::kUnsupported,
              {"LlamaForCausalLM", "64", "512"});
  ExpectError(with("LlamaForCausalLM", {{"use_sliding_window", true}}), Code::kUnsupported,
              {"LlamaForCausalLM", "64", "512"});
  ExpectError(with("MistralForCausalLM", {{"layer_types", types}, {"sliding_window", nullptr}}),
              Code::kInvalidArgument, {"sliding_window is null"});
  ExpectError(with("Qwen2ForCausalLM", {{"layer_types", {types[0], "linear_attention"}}}),
              Code::kUnsupported, {"linear_attention"});
  ExpectError(with("Qwen2ForCausalLM", {{"layer_types", {types[0]}}}), Code::kInvalidArgument,
              {"layer_types", "2 layers"});
  ExpectError(with("Qwen2ForCausalLM", {{"layer_types", 3}}), Code::kInvalidArgument,
              {"layer_types", "2 layers"});
}

json Gpt2() {
  return json::parse(R"({"architectures": ["GPT2LMHeadModel"], "vocab_size": 100, "n_embd": 48,
      "n_layer": 2, "n_head": 6, "n_positions": 256, "layer_norm_epsilon": 1e-5,
      "activation_function": "gelu_new", "n_inner": null})");
}

TEST(HfFamilies, ReadsGpt2sOwnNames) {
  const auto c = Parse(Gpt2());
  ASSERT_TRUE(c) << c.error().message;
  EXPECT_EQ(c->hidden_size, 48u);
  EXPECT_EQ(c->num_kv_heads, 6u);
  EXPECT_EQ(c->ffn_size, 192u);
  EXPECT_EQ(c->max_positions, 256u);
  EXPECT_EQ(c->rope.rotated_dims, 0u);
  EXPECT_EQ(c->activation, Activation::kGeluTanh);
  EXPECT_TRUE(c->tied_embeddings && c->qkv_bias && c->o_bias && c->mlp_bias);
  json other = Gpt2();
  other.update({{"n_inner", 100}, {"activation_function", "relu"}});
  EXPECT_EQ(Parse(other)->ffn_size, 100u);
  EXPECT_EQ(Parse(other)->activation, Activation::kRelu);
  for (const auto& [key, value] : {std::pair{"scale_attn_weights", false},
                                   {"scale_attn_by_inverse_layer_idx", true},
                                   {"add_cross_attention", true}}) {
    json wrong = Gpt2();
    wrong[key] = value;
    ExpectError(Parse(wrong), Code::kUnsupported, {key});
  }
  json missing = Gpt2();
  missing.erase("n_head");
  ExpectError(Parse(missing), Code::kInvalidArgument, {"n_head is missing"});
}

}  // namespace
}  // namespace kvasir
